"""The view of `calibration_rate`: the largest error of the probability against n, and the floor of bounded cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import GUIDE, Series, by, panel, series, slope, table, tally
from squareloss.lab.runs.store import Record

NAMES = {
    "square": "square loss",
    "ce": "cross-entropy",
    "ce-bound1": "cross-entropy, |f| <= 1",
    "ce-bound2": "cross-entropy, |f| <= 2",
}
FLOORS = {"ce-bound1": 1 / (1 + math.e), "ce-bound2": 1 / (1 + math.e**2)}
NEAR = 1.1  # times its floor, within which an error counts as having come down to it


def view(records: Sequence[Record], header: Header) -> View:
    """The rate of square loss by dimension; the losses side by side on the circle."""
    dimensions = by(records, lambda spec: spec["d"] if spec["height"] < 1 else None)
    losses = by(records, lambda spec: spec["loss"] if spec["height"] == 1 else None)
    rows = [series(f"d = {d}", dimensions[d], "largest", -1 / (4 * d - 2)) for d in sorted(dimensions)]
    sides = {name: series(NAMES[name], losses[name], "largest") for name in NAMES if name in losses}
    guess = ", ".join(f"{slope(s)} for {s.name} (bound {s.bound:.3f})" for s in rows)
    halves = ", ".join(f"{-d / (4 * d - 2):.3f}" for d in sorted(dimensions))
    sentences = [
        "Statement: with mu of the order n^((d-1)/(2d-1)), the largest error of (f + 1)/2 as an estimate of eta is at most of "
        "the order n^(-1/(4d-2)).",
        f"At least as steep in {tally(rows)} dimensions: {guess}. The bound is loose; that on the root of the squared error "
        f"has the exponent -d/(4d-2), here {halves}."
        if rows
        else "Square loss has no results by dimension.",
        _floors(sides),
    ]
    caption = "Over 2,000 points of the circle, or thousands of random ones and the axes of the sphere: at most the supremum."
    tables = [table("Largest error against n", rows, caption, halves=True), _side(sides)]
    drawn = panel("On the circle, eta from 0 to 1", list(sides.values()), "n", "largest error of eta")
    beside = "The same kernel, mu and samples; one mu for all losses, so their order is no ranking."
    figures = [
        Figure("Square loss", GUIDE, panel("Square loss", rows, "n", "largest error of eta")),
        Figure("Beside cross-entropy", beside, drawn),
    ]
    return View(tables, figures, sentences, plain=False)


def _floors(sides: dict[str, Series]) -> str:
    """What the claim on cross-entropy comes to."""
    ends = {name: (sides[name].means[-1], floor) for name, floor in FLOORS.items() if name in sides}
    told = [
        f"{NAMES[name]}: {end:.3f} at n = {sides[name].x[-1]:g} (1 - sigmoid(C) is {floor:.3f})"
        for name, (end, floor) in ends.items()
    ]
    free = sides.get("ce")
    if not told or free is None:
        return "Cross-entropy has no results."
    near = all(end <= NEAR * floor for end, floor in ends.values())
    below = free.means[-1] < min(floor for _, floor in ends.values())
    return (
        f"Cross-entropy {'comes down to a floor' if near else 'is still above its floor'} where its outputs have a hard bound "
        f"C ({'; '.join(told)}){', as the text says' if near else ''}. "
        f"With the same penalty and no bound {'it shows none' if below else 'it is no lower'}: {free.means[0]:.3f} at n = "
        f"{free.x[0]:g}, {free.means[-1]:.3f} at n = {free.x[-1]:g}, a slope of {slope(free)}."
    )


def _side(sides: dict[str, Series]) -> Table:
    by_n = [dict(zip(found.x, found.means.tolist(), strict=True)) for found in sides.values()]
    rows = [
        [Entry.number(n, "g"), *(Entry.number(mine.get(n), ".4f") for mine in by_n)]
        for n in sorted({n for mine in by_n for n in mine})
    ]
    columns = ["n", *(found.name for found in sides.values())]
    return Table("Losses on the circle", columns, rows, "The largest error of eta, means over replications.")
