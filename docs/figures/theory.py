"""The figure of docs/theory.md: six rates, from results/theory-paper.

    python docs/figures/theory.py       # seconds; writes theory.svg

The numbers are measured by `squareloss reproduce excess_risk --scale paper` and the like.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from squareloss.lab.report import gather
from squareloss.lab.report.views import calibration_rate, excess_risk, ntk_equivalence
from squareloss.lab.report.views._rates import Series, by, failing, failures, series
from squareloss.lab.runs.store import Record
from squareloss.metrics import plots

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "results" / "theory-paper"
# Okabe and Ito's palette; lines differ by their marks too
LOOK = ((plots.BLUE, "o"), (plots.VERMILION, "s"), ("#009E73", "^"), ("#CC79A7", "D"))


def main() -> None:
    """Draw and write."""
    with rc_context(plots.STYLE):
        plots.save(six(), HERE / "theory.svg")


def records(study: str) -> Sequence[Record]:
    """The results of a study."""
    return gather(RESULTS / study)[0].records


def six() -> Figure:
    """Excess risk above; separable classes, calibration, and networks beside ridge below."""
    figure = Figure(figsize=(10.5, 6.4), layout="constrained")
    above, below = figure.subplots(2, 3)
    groups = by(records("excess_risk"), lambda spec: (spec["d"], spec["kappa"]))
    for axes, d in zip(above, (2, 3, 5), strict=True):
        # kappa = 4 and 8, on the circle alone, fall to 1e-12
        mine = {k: found for (dimension, k), found in sorted(groups.items()) if dimension == d and k <= 2}
        rows = [series(f"$\\kappa$ = {k:g}", found, "excess", -excess_risk.bound(d, k)) for k, found in mine.items()]
        lines(axes, rows, f"noisy labels, d = {d}", "n", "excess risk")
    separable(below[0])
    calibration(below[1])
    network(below[2])
    return figure


def lines(axes: Any, rows: Sequence[Series], title: str, x: str, y: str) -> None:
    """Means with twice their standard errors, and the slope of the bound through the first point."""
    for (colour, mark), found in zip(LOOK, rows, strict=False):
        style = {"color": colour, "marker": mark, "markersize": 3.5, "linewidth": 1, "capsize": 2}
        axes.errorbar(found.x, found.means, 2 * found.errors, label=found.name, **style)
        if found.bound is not None:
            guide = found.means[0] * (np.array(found.x) / found.x[0]) ** found.bound
            axes.plot(found.x, guide, color=colour, linestyle=":", linewidth=1)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale="log")
    axes.legend(frameon=False, fontsize=8)


def separable(axes: Any) -> None:
    """P(any error): straight lines where the label lies in the RKHS."""
    groups = by(records("separable_rate"), lambda spec: spec["mu"] if spec["classes"] == "arcs" else None)
    shown = {mu: failing(found) for mu, found in groups.items()}
    rows = [Series(f"$\\mu$ = {mu}", [r.spec["n"] for r in found], failures(found)) for mu, found in shown.items()]
    lines(axes, rows, "separable classes (eight arcs)", "n", "P(any error)")
    axes.set_xscale("linear")


def calibration(axes: Any) -> None:
    """The largest error of eta by loss."""
    groups = by(records("calibration_rate"), lambda spec: spec["loss"] if spec["height"] == 1 else None)
    rows = [series(name, groups[key], "largest") for key, name in calibration_rate.NAMES.items()]
    lines(axes, rows, "calibration, d = 2", "n", "largest error of $\\hat\\eta$")


def network(axes: Any) -> None:
    """Distance to ridge by time, at the largest width."""
    groups = by(records("ntk_equivalence"), lambda spec: spec["variant"], "width")
    widest = {name: groups[key][-1] for key, name in ntk_equivalence.NAMES.items()}
    rows = [Series(name, found.spec["times"], found.metrics["ridge"]) for name, found in widest.items()]
    width = next(iter(widest.values())).spec["width"]
    lines(axes, rows, f"networks of width {width}", "time $2 \\zeta \\mu k$", "distance to ridge")


if __name__ == "__main__":
    main()
