"""The figures of docs/synthetic.md, from results/synthetic, at the paper's scale.

    python docs/figures/synthetic.py       # seconds; writes spirals_*.svg and sine_*.svg

The numbers are measured by `squareloss reproduce spirals` and `squareloss reproduce sine`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import NullFormatter

from squareloss.lab.data.replications import spirals_split
from squareloss.lab.data.synthetic import sine_eta
from squareloss.lab.report import fields, gather
from squareloss.lab.report.views import _sine_figures as sine
from squareloss.lab.report.views import spirals
from squareloss.lab.report.views._replicated import NAMES, PAIR, Cells
from squareloss.metrics import plots

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "results" / "synthetic"
# Okabe and Ito's palette; lines differ by their marks too
LOOK = {"SL": (plots.BLUE, "o"), "CE": (plots.VERMILION, "s"), "squentropy": ("#009E73", "^"), "smoothed": ("#CC79A7", "D")}
DARK = "#3b4148"  # drawn on a panel of its own, which is light on dark pages too
PANEL = "#fbfbfa"
SIDES = ((plots.BLUE, "o", "-"), (plots.VERMILION, "s", (0, (4, 1.5))), ("#009E73", "^", (0, (1, 1))), ("#CC79A7", "D", "-."))
LIGHT_TO_DARK = ListedColormap(fields.shade(np.linspace(0, 1, 64)) / 255)


def main() -> None:
    """Draw and write."""
    for study, figures in FIGURES.items():
        cells = Cells.of(gather(RESULTS / f"{study}-paper")[0].records)
        for name, draw in figures.items():
            with rc_context(plots.STYLE):
                plots.save(draw(cells), HERE / f"{study}_{name}.svg")
            print(f"{study}_{name}.svg")


def by_mu(axes: Any, cells: Cells, key: str, label: str, *, log: bool = False, all_mu: bool = True) -> None:
    """Means and one standard deviation against mu; the axis may leave out what the largest mu does."""
    losses, mus = cells.losses(), cells.mus()
    ends: list[float] = []
    for place, loss in enumerate(losses):
        values = [cells.values(loss, mu, key) for mu in mus]
        mean, std = (np.array([f(v) for v in values]) for f in (np.mean, np.std))
        colour, mark = LOOK[loss]
        at = np.arange(len(mus)) + 0.12 * (place - (len(losses) - 1) / 2)
        axes.errorbar(at, mean, std, color=colour, marker=mark, markersize=4, linewidth=1, capsize=2.5, label=NAMES[loss])
        shown = slice(None) if all_mu else slice(0, -1)
        ends += [*(mean / 2 if log else mean - std)[shown], *(mean + std)[shown]]
    axes.set(xticks=range(len(mus)), xticklabels=[f"{mu:g}" for mu in mus], xlabel="$\\mu$", ylabel=label)
    low, high = np.nanmin(ends), np.nanmax(ends)
    if log:
        axes.set(yscale="log", ylim=(low, 1.2 * high))
        plain_ticks(axes)
    else:
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))


def plain_ticks(axes: Any) -> None:
    """Round numbers on a logarithmic axis of y, written as such; powers of ten where there are many."""
    low, high = axes.get_ylim()
    if np.log10(high / low) > 3.5:
        return
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        marks = [m * 10.0**e for e in range(-6, 2) for m in digits]
        axes.set_yticks([m for m in marks if low <= m <= high])
        if len(axes.get_yticks()) > 2:
            break
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def strip(axes: Any, values: dict[str, list[float]], colours: list[str], label: str) -> None:
    """Every replication, with mean and one standard deviation beside it."""
    for i, (mine, colour) in enumerate(zip(values.values(), colours, strict=True)):
        axes.plot(np.full(len(mine), i - 0.12), mine, ".", color=colour, markersize=4, alpha=0.6)
        axes.errorbar(i + 0.14, np.mean(mine), np.std(mine), color=colour, marker="o", markersize=4.5, capsize=3)
    axes.set(xticks=range(len(values)), ylabel=label)
    axes.set_xticklabels(list(values), rotation=30, ha="right")


# spirals


def spirals_mu(cells: Cells) -> Figure:
    """Validation error and margin against mu."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    by_mu(left, cells, "validation_error", "validation error", log=True)
    by_mu(middle, cells, "margin_support", "mean distance of the support", all_mu=False)
    by_mu(right, cells, "margin_train", "least distance, training points", all_mu=False)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return figure


def spirals_boundaries(cells: Cells) -> Figure:
    """Six replications, three networks each."""
    sides = spirals._three(cells)
    first = cells.records(*sides["SL + l2"])[0]
    count = len(first.metrics["boundaries"])
    data = spirals_split(range(count), first.spec["n"], 2, first.seed).train
    figure = Figure(figsize=(2.05 * count, 6.9), layout="constrained")
    for row, (name, side) in zip(figure.subplots(3, count, squeeze=False), sides.items(), strict=True):
        metrics = cells.records(*side)[0].metrics
        for r, axes in enumerate(row):
            boundary_panel(
                axes, data.x[r].numpy(), data.y[r].numpy(), fields.unpack_lines(metrics["boundaries"][r], spirals.REACH)
            )
            axes.set_title(f"test error {100 * metrics['test_error'][r]:.2f}%", fontsize=8)
        row[0].set_ylabel(f"{name}, $\\mu$ = {side[1]:g}")
    return figure


def boundary_panel(axes: Any, x: Any, y: Any, lines: Any) -> None:
    """Training points, the boundary, the widest gap."""
    for klass, colour, mark in ((0, plots.BLUE, "o"), (1, plots.VERMILION, "^")):
        axes.plot(*x[y == klass].T, mark, color=colour, markersize=2.2, markeredgewidth=0)
    for line in lines:
        axes.plot(*np.array(line).T, color=DARK, linewidth=1)
    middle, gap = spirals.widest_gap(x, y)
    axes.add_patch(Circle(middle, gap / 2, fill=False, color="#b2182b", linewidth=1.2))
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal", xticks=[], yticks=[], facecolor=PANEL)


def spirals_training(cells: Cells) -> Figure:
    """Training loss of the first replication."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    colours = (plots.BLUE, plots.VERMILION, "#009E73")
    for axes, (name, side), colour in zip(figure.subplots(1, 3), spirals._three(cells).items(), colours, strict=True):
        curve = cells.records(*side)[0].metrics["curve_of_first"]
        axes.semilogy(curve["step"], curve["loss"], color=colour, linewidth=0.9)
        plain_ticks(axes)
        axes.set(title=f"{name}, $\\mu$ = {side[1]:g}", xlabel="iteration", ylabel="training loss")
    return figure


# sine


def sine_surfaces(cells: Cells) -> Figure:
    """eta as a surface, and what each loss makes of it."""
    x, y = sine.lattice()
    reading = cells.records("SL", cells.best("SL") or 0.0)[0].spec["reading"]
    truth = sine_eta(torch.tensor(np.stack([x, y], axis=-1)), reading).numpy()
    panels = {"the true $\\eta$": truth}
    panels |= {told(side): fields.unpack(text, sine.COARSE) for side, text in sine.stored(cells, "surface").items()}
    count = 1 + len(panels)
    figure = Figure(figsize=(2.6 * count, 2.7), layout="constrained")
    solid = figure.add_subplot(1, count, 1, projection="3d")
    solid.plot_surface(x[::2, ::2], y[::2, ::2], truth[::2, ::2], cmap=LIGHT_TO_DARK, linewidth=0.1, rcount=21, ccount=21)
    solid.set(
        xlabel="$x_1$", ylabel="$x_2$", title="the true $\\eta$", xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[0, 0.5, 1]
    )
    for i, (name, field) in enumerate(panels.items()):
        axes = figure.add_subplot(1, count, i + 2)
        drawn = heat(axes, field, name, np.linspace(0, 1, 11))
    figure.colorbar(drawn, ax=axes, label="P(y = 1 | x)", ticks=[0, 0.5, 1])
    return figure


def told(side: sine.Side) -> str:
    """As "CE + l2, mu = 0.01", with the letter."""
    return sine.told(side).replace("mu", "$\\mu$")


def heat(axes: Any, field: Any, title: str, levels: Any) -> Any:
    """A field on the square, as filled contours."""
    drawn = axes.contourf(
        *sine.lattice(), field, levels=levels, cmap=LIGHT_TO_DARK, extend="max" if levels[-1] < 1 else "neither"
    )
    axes.set(title=title, aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    return drawn


def sine_mu(cells: Cells) -> Figure:
    """Validation error and calibration errors against mu."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    labels = {
        "validation_error": "validation error",
        "linf_grid": "$L_\\infty$ calibration error",
        "l1_grid": "$L_1$ calibration error",
    }
    for axes, (key, label) in zip(figure.subplots(1, 3), labels.items(), strict=True):
        by_mu(axes, cells, key, label)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return figure


def sine_errors(cells: Cells) -> Figure:
    """Calibration errors of all replications, and the pointwise errors of one."""
    rows = {
        f"{loss}, $\\mu$ = {mu:g}": (loss, mu, "") for loss, mu in sorted(sine.sides(cells), key=lambda s: PAIR.index(s[0]))
    }
    others = {"CE, temperature": ("CE", "also.temperature."), "squentropy": ("squentropy", "")}
    others |= {"smoothed": ("smoothed", ""), "smoothed, undone": ("smoothed", "also.undone.")}
    rows |= {name: (loss, cells.best(loss) or 0.0, inside) for name, (loss, inside) in others.items()}
    figure = Figure(figsize=(10.5, 3.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    colours = [LOOK[loss][0] for loss, _, _ in rows.values()]
    for axes, key, label in ((left, "linf_grid", "$L_\\infty$"), (middle, "l1_grid", "$L_1$")):
        values = {name: cells.values(loss, mu, inside + key) for name, (loss, mu, inside) in rows.items()}
        strip(axes, values, colours, f"{label} calibration error")
    width = 2 * sine.WIDEST / sine.BINS
    at = -sine.WIDEST + width * (np.arange(sine.BINS) + 0.5)
    for (side, counts), (colour, _, line) in zip(sine.stored(cells, "histogram").items(), SIDES, strict=False):
        density = np.array(counts, dtype=float) / (sum(counts) * width)
        right.bar(at, density, width, color=colour, alpha=0.25)
        right.plot(at, sine.smoothed(density, at), color=colour, linestyle=line, label=told(side))
    right.set(xlim=(-0.25, 0.25), xlabel="$\\hat p - \\eta$ at the test points of one instance", ylabel="density")
    right.legend(frameon=False, fontsize=7, loc="upper left", borderpad=0)
    return figure


def sine_where(cells: Cells) -> Figure:
    """Where each loss errs."""
    found = {side: fields.unpack(text, sine.COARSE) for side, text in sine.stored(cells, "error").items()}
    top = max(float(np.quantile(field, 0.99)) for field in found.values())
    count = len(found)
    figure = Figure(figsize=(2.8 * (count + 1), 2.7), layout="constrained")
    axes = figure.subplots(1, count + 1)
    for here, (side, field) in zip(axes, found.items(), strict=False):
        drawn = heat(here, field, told(side), np.linspace(0, top, 11))
    figure.colorbar(drawn, ax=axes[count - 1], label="mean $|\\hat p - \\eta|$", format="%.2f")
    radius = np.hypot(*sine.lattice())
    for (side, field), (colour, mark, line) in zip(found.items(), SIDES, strict=False):
        points = sine.profile(field, radius, np.linspace(0, 2**0.5, 19))
        axes[-1].plot(*np.array(points).T, color=colour, marker=mark, linestyle=line, markersize=3.5, label=told(side))
    axes[-1].set(xlabel="$|x|$", ylabel="mean $|\\hat p - \\eta|$", ylim=(0, None))
    axes[-1].legend(frameon=False)
    return figure


def sine_slopes(cells: Cells) -> Figure:
    """L_inf error against n and width."""
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    for axes, (what, label) in zip(
        figure.subplots(1, 2), {"n": "points n", "width": "width of both layers"}.items(), strict=True
    ):
        for loss in PAIR:
            points = cells.curve(loss, what, "linf_grid")
            mean, std = (np.array([f(v) for v in points.values()]) for f in (np.mean, np.std))
            colour, mark = LOOK[loss]
            axes.errorbar(
                list(points), mean, std, color=colour, marker=mark, markersize=4, linewidth=1, capsize=2.5, label=NAMES[loss]
            )
        if what == "n":
            sizes = np.array(list(points))
            axes.plot(
                sizes, 0.45 * (sizes / sizes[0]) ** -0.1, color=plots.GREY, linestyle=":", label="slope $-1/10$ of Theorem 4"
            )
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="$L_\\infty$ calibration error")
        axes.set_xticks(list(points), [f"{size:g}" for size in points])
        axes.minorticks_off()
        plain_ticks(axes)
        axes.legend(frameon=False)
    return figure


FIGURES: dict[str, dict[str, Callable[[Cells], Figure]]] = {
    "spirals": {"mu": spirals_mu, "boundaries": spirals_boundaries, "training": spirals_training},
    "sine": {"surfaces": sine_surfaces, "mu": sine_mu, "errors": sine_errors, "where": sine_where, "slopes": sine_slopes},
}


if __name__ == "__main__":
    main()
