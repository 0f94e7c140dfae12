"""The view of `ntk_equivalence`: the distance of networks to ridge by width, and by time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squareloss.lab.report.figures import Figure, Panel, legend
from squareloss.lab.report.header import Header
from squareloss.lab.report.svg import Plot
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import Series, by, late, panel, slope, table
from squareloss.lab.runs.store import Record

NAMES = {
    "zero-random": "decay toward 0, random start",
    "zero-antisymmetric": "decay toward 0, f_0 = 0",
    "start-antisymmetric": "decay toward W(0), f_0 = 0",
}
ROUND = "distance to ridge"
ROUGH = -0.25  # expected of decay toward 0 at its best time: see `_window`


def view(records: Sequence[Record], header: Header) -> View:
    """By width at the end and at the best time; by time at the largest width."""
    found = by(records, lambda spec: spec["variant"], "width")
    groups = {name: found[name] for name in NAMES if name in found}
    last = [_series(name, rows, len(rows[0].spec["times"]) - 1) for name, rows in groups.items()]
    best = [_series(name, rows) for name, rows in groups.items()]
    sentences = [
        "Statement: the penalised network comes to kernel ridge with h at the same mu, if it is wide and the time 2 zeta mu k "
        "lies between two logarithms.",
        *(_sentence(name, rows) for name, rows in groups.items()),
        *_window([found for found in best if found.bound == ROUGH]),
    ]
    caption = (
        "Root mean square over the sphere, mean over replications. Decay toward W(0) has the usual -1/2; decay toward 0 "
        "has erased W(0) by then, at any width."
    )
    tables = [
        table(f"At the last time: {ROUND} against width", last, caption, law=True, halves=True),
        table(
            f"At the best time: {ROUND} against width",
            best,
            "The best of the times in the figure at each width.",
            law=True,
            halves=True,
        ),
        _diagnostics(groups),
    ]
    panels = [
        *panel("By width, at the last time", last, "width", ROUND),
        *panel("By width, at the best time", best, "width", ROUND),
        _by_time(groups),
    ]
    figure = Figure("Network and ridge", "Distances of outputs; dashes: the expected exponent. Time is 2 zeta mu k.", panels)
    return View(tables, [figure], sentences, plain=False)


def _means(record: Record) -> list[float]:
    return [float(np.mean(values)) for values in record.metrics["ridge"]]


def _series(variant: str, records: Sequence[Record], time: int | None = None) -> Series:
    """Distances by width at one time, or each width's best."""
    chosen = [int(np.argmin(_means(record))) if time is None else time for record in records]
    samples = [record.metrics["ridge"][i] for record, i in zip(records, chosen, strict=True)]
    expected = -0.5 if variant.startswith("start") else ROUGH if time is None else None
    return Series(NAMES[variant], [record.spec["width"] for record in records], samples, expected)


def _sentence(variant: str, records: Sequence[Record]) -> str:
    widest = records[-1]
    means, times = _means(widest), widest.spec["times"]
    best, last = int(np.argmin(means)), len(times) - 1
    found = _series(variant, records, last)
    law, end = (slope(part) for part in (found, late(found)))
    nearest = f"nearest to ridge at time {times[best]:g} ({means[best]:.4f}); " if best < last else ""
    return (
        f"{NAMES[variant]}, width {widest.spec['width']}: {nearest}{means[-1]:.4f} from ridge at time {times[-1]:g}, where the "
        f"slope in the width is {law} ({end} over the last half)."
    )


def _window(found: Sequence[Series]) -> list[str]:
    """How near decay toward 0 comes at all, if it was run."""
    told = " and ".join(str(slope(series)) for series in found)
    if not told:
        return []
    return [
        f"At its best time decay toward 0 comes nearer with the width by slopes of {told}. A rough argument, made after the "
        "measurement, gives -1/4: by time t what is left of the start falls as e^-t, and the relative change of the weights "
        "grows as e^t / sqrt(m)."
    ]


def _diagnostics(groups: dict[str, list[Record]]) -> Table:
    rows = []
    for name, found in groups.items():
        for record in found:
            m = record.metrics
            values = [_means(record)[-1], float(np.mean(m["limit"][-1])), m["moved"][-1], m["changed"][-1], m["kernel"][-1]]
            entries = [Entry.number(value, ".3g") for value in values]
            rows.append([Entry(NAMES[name], name), Entry.number(record.spec["width"], "d"), *entries])
    columns = [
        "penalty and start",
        "width",
        "to ridge",
        "to its linear limit",
        "farthest unit",
        "activations changed",
        "|H(k) - H| / |H|",
    ]
    caption = (
        "At the last time. The linear limit is the same descent on infinitely many units from the same f_0; H(k) is the "
        "network's kernel at that step, H that of h."
    )
    return Table("Diagnostics", columns, rows, caption)


def _by_time(groups: dict[str, list[Record]]) -> Panel:
    curves = {NAMES[name]: list(zip(found[-1].spec["times"], _means(found[-1]), strict=True)) for name, found in groups.items()}
    points = [point for curve in curves.values() for point in curve]
    x = (min(t for t, _ in points), max(t for t, _ in points))
    y = (min(v for _, v in points) / 1.25, max(v for _, v in points) * 1.25)
    plot = Plot("time 2 zeta mu k", ROUND, x, y, "By time", log="xy")
    for i, curve in enumerate(curves.values()):
        plot.line(curve, i, dots=False)
    return Panel("By time, at the largest width", plot.svg(), legend(curves))
