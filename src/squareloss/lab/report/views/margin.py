"""The view of `margin`: the least distance of the boundary from the support, by n and loss."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from squareloss.lab.report.figures import Figure, Panel
from squareloss.lab.report.header import Header
from squareloss.lab.report.svg import Plot
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import by
from squareloss.lab.runs.store import Record

NAMES = {
    "square": "square loss",
    "ce": "cross-entropy",
    "network-square": "networks, square loss",
    "network-ce": "networks, cross-entropy",
}
PANELS = {"Kernel machines": ("square", "ce"), "Networks": ("network-square", "network-ce")}


def view(records: Sequence[Record], header: Header) -> View:
    """Bounded below, and by what."""
    found = by(records, lambda spec: f"network-{spec['loss']}" if "width" in spec else spec["loss"])
    groups = {name: found[name] for name in NAMES if name in found}
    widest = 2 * math.sin(records[0].spec["gap"] / 2)  # l_2 distance from the middle of a gap
    sentences = [
        "Statement: on separable classes, with mu = o(1), the decision boundary keeps at least a constant distance from the "
        "support, with a probability that tends to one exponentially.",
        *(_sentence(NAMES[name], rows, widest) for name, rows in groups.items()),
        "Both losses have the same mu = 1/n, which is a weaker penalty for square loss; so this does not rank them.",
        "In l_inf the distance is at least that in l_2 over sqrt(d) (the paper has the inequality the wrong way).",
    ]
    caption = "Median and lowest replication; the dashed line is the most there can be, the middle of the gap."
    sides = {heading: {k: groups[k] for k in names if k in groups} for heading, names in PANELS.items()}
    panels = [_panel(heading, side, widest) for heading, side in sides.items() if side]
    return View(
        [_table(groups)], [Figure("Distance from the boundary to the support", caption, panels)], sentences, plain=False
    )


def _sentence(name: str, records: Sequence[Record], widest: float) -> str:
    reach: dict[int, list[float]] = defaultdict(list)  # of all seeds
    for record in records:
        reach[record.spec["n"]] += record.metrics["l2"]
    medians = [f"{np.median(reach[n]):.3f} at n = {n}" for n in sorted({min(reach), max(reach)})]
    last = reach[max(reach)]
    return (
        f"{name}: median l_2 distance {', '.join(medians)}, of {widest:.3f} possible; the lowest of {len(last)} replications "
        f"there is {min(last):.3f}."
    )


def _table(groups: dict[str, list[Record]]) -> Table:
    rows = []
    for loss, found in groups.items():
        for record in found:
            l2, linf = record.metrics["l2"], record.metrics["linf"]
            reach = [Entry.number(value, ".4f") for value in (float(np.median(l2)), min(l2), float(np.median(linf)))]
            setting = [Entry(NAMES[loss], loss), Entry.number(record.spec["n"], "d")]
            rows.append([*setting, *reach, Entry.number(record.metrics["right"], ".0%")])
    columns = ["loss", "n", "l_2, median", "l_2, lowest", "l_inf, median", "no error anywhere"]
    return Table("Distances", columns, rows, "0 where any point of the support is wrong.")


def _panel(heading: str, groups: dict[str, list[Record]], widest: float) -> Panel:
    ns = [record.spec["n"] for found in groups.values() for record in found]
    x = (min(ns), max(max(ns), min(ns) + 1))
    plot = Plot("n", "l_2 distance", x, (0, 1.1 * widest), heading, log="x")
    legend = []
    for i, (loss, found) in enumerate(groups.items()):
        for colour, part, read in ((2 * i, "median", np.median), (2 * i + 1, "lowest", np.min)):
            points = [(record.spec["n"], float(read(record.metrics["l2"]))) for record in found]
            plot.line(points, colour, dots=False)
            legend.append((colour, f"{NAMES[loss]}, {part}", False))
    plot.rule((x[0], widest), (x[1], widest))
    return Panel(heading, plot.svg(), legend)
