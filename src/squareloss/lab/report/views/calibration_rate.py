"""The view of `calibration_rate`: the largest error of the probability against n, and the floor of bounded cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import GUIDE, Series, by, held, panel, series, slope, table
from squareloss.lab.runs.store import Record

NAMES = {
    "square": "square loss",
    "ce": "cross-entropy",
    "ce-bound1": "cross-entropy, |f| <= 1",
    "ce-bound2": "cross-entropy, |f| <= 2",
}
FLOORS = {"ce-bound1": 1 / (1 + math.e), "ce-bound2": 1 / (1 + math.e**2)}


def view(records: Sequence[Record], header: Header) -> View:
    """The rate of square loss by dimension; the losses side by side on the circle."""
    dimensions = by(records, lambda spec: spec["d"] if spec["height"] < 1 else None)
    losses = by(records, lambda spec: spec["loss"] if spec["height"] == 1 else None)
    rows = [series(f"d = {d}", dimensions[d], "largest", -1 / (4 * d - 2)) for d in sorted(dimensions)]
    sides = {name: series(NAMES[name], losses[name], "largest") for name in NAMES if name in losses}
    good, judged = held(rows)
    guess = ", ".join(f"{slope(s).value:.3f} for {s.name} (bound {s.bound:.3f})" for s in rows)
    sentences = [
        "Statement: with mu of the order n^((d-1)/(2d-1)), the largest error of (f + 1)/2 as an estimate of eta is at most of "
        "the order n^(-1/(4d-2)).",
        f"At least as steep in {good} of {judged} dimensions: {guess}. The bound is loose; the slopes lie nearer -d/(4d-2).",
        _floors(sides),
    ]
    tables = [table("Largest error against n", rows, "Over a fine set of points."), _side(sides)]
    figures = [Figure("Square loss", GUIDE, [panel("Square loss", rows, "n", "largest error of eta")])]
    if sides:
        drawn = [panel("On the circle, eta from 0 to 1", list(sides.values()), "n", "largest error of eta")]
        figures.append(
            Figure(
                "Beside cross-entropy",
                "The same kernel, mu and samples; one mu for all losses, so their order is no ranking.",
                drawn,
            )
        )
    return View(tables, figures, sentences, plain=False)


def _floors(sides: dict[str, Series]) -> str:
    """What the claim on cross-entropy comes to."""
    told = [
        f"{NAMES[name]}: {sides[name].means[-1]:.3f} at n = {sides[name].x[-1]:g} (1 - sigmoid(C) is {floor:.3f})"
        for name, floor in FLOORS.items()
        if name in sides
    ]
    free = sides.get("ce")
    if not told or free is None:
        return "Cross-entropy has no results."
    return (
        f"Cross-entropy stops at a floor where its outputs have a hard bound C ({'; '.join(told)}), as the text says. With the "
        f"same penalty and no bound it shows none: {free.means[0]:.3f} at n = {free.x[0]:g}, {free.means[-1]:.3f} at n = "
        f"{free.x[-1]:g}."
    )


def _side(sides: dict[str, Series]) -> Table:
    rows = [
        [Entry(found.name, found.name), *(Entry(f"{mean:.4f}", float(mean)) for mean in found.means)]
        for found in sides.values()
    ]
    columns = ["largest error at n =", *(f"{n:g}" for n in next(iter(sides.values())).x)] if sides else []
    return Table("Losses on the circle", columns, rows, "Means over replications.")
