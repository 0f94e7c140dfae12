"""The figures of the sine: surfaces, error bars against mu, spreads, pointwise errors, where they lie, slopes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from squareloss.lab.data.synthetic import sine_eta
from squareloss.lab.report.fields import Array, png, shade, unpack
from squareloss.lab.report.figures import NOTHING, Figure, Panel, legend
from squareloss.lab.report.statistics import summarise
from squareloss.lab.report.svg import Plot
from squareloss.lab.report.views._replicated import NAMES, PAIR, Cells, by_mu

COARSE = 41  # lattice points of a stored field in each direction
BINS, WIDEST = 80, 0.4  # of the stored histogram
AT = "At the chosen mu, and at the mu best for L_inf where that is another."


def figures(cells: Cells) -> list[Figure]:
    """All; those there is nothing for have no panels."""
    return [surfaces(cells), against_mu(cells), spreads(cells), pointwise(cells), places(cells), falling(cells)]


Side = tuple[str, float]  # a loss and its mu


def sides(cells: Cells) -> list[Side]:
    """The paper's two losses at their chosen mu, and at the mu best for L_inf where that is another."""
    keys = ("validation_error", "linf_grid")
    return list(dict.fromkeys((loss, cells.best(loss, key=key) or 0.0) for key in keys for loss in PAIR))


def told(side: Side) -> str:
    """As "CE + l2, mu = 0.01"."""
    return f"{NAMES[side[0]]}, mu = {side[1]:g}"


def stored(cells: Cells, name: str) -> dict[Side, Any]:
    """What the paper's two losses keep for a figure: a text to unpack, or the counts of a histogram."""
    found = {}
    for side in sides(cells):
        records = cells.records(*side)
        if records and "figures" in records[0].metrics:
            found[side] = records[0].metrics["figures"][name]
    return found


def lattice() -> tuple[Array, Array]:
    """Where the values of a stored field lie: x and y, (41, 41) each, the first row at y = -1."""
    line = np.linspace(-1, 1, COARSE)
    x, y = np.meshgrid(line, line)
    return x, y


def heat(field: Array, title: str, top: float = 1.0) -> str:
    """A field on [-1, 1]^2, dark at 0 and light at `top`."""
    edge = [(-1.0, "-1"), (0.0, "0"), (1.0, "1")]
    plot = Plot("", "", (-1, 1), (-1, 1), title, 308, 288, x_ticks=edge, y_ticks=edge)
    fine = np.kron(field[::-1] / top, np.ones((4, 4)))  # larger, so that browsers need not smooth it away
    plot.image(png(shade(fine)))
    return plot.svg()


def surfaces(cells: Cells) -> Figure:
    """The true eta and what each loss makes of it, first replication."""
    import torch

    found = stored(cells, "surface")
    if not found:
        return NOTHING
    reading = cells.records("SL", cells.best("SL") or 0.0)[0].spec["reading"]
    truth = sine_eta(torch.tensor(np.stack(lattice(), axis=-1)), reading).numpy()
    panels = [Panel("the true eta", heat(truth, "the true eta"))]
    panels += [Panel(told(side), heat(unpack(text, COARSE), f"eta by {told(side)}")) for side, text in found.items()]
    caption = f"P(y = 1 | x) on the square, first replication: dark is 0, light is 1. {AT}"
    return Figure("eta and its estimates", caption, panels)


def against_mu(cells: Cells) -> Figure:
    """Error bars of test error and calibration errors against mu."""
    labels = {
        "validation_error": "Validation error",
        "linf_grid": "L_inf calibration error",
        "l1_grid": "L_1 calibration error",
    }
    panels = [by_mu(cells, key, label, label, from_zero=key != "validation_error") for key, label in labels.items()]
    return Figure("Against mu", "Means and one standard deviation over replications.", panels)


def spreads(cells: Cells) -> Figure:
    """All replications at the chosen mu, with mean and standard deviation: the paper's error bar plot."""
    rows = {"SL": ("SL", ""), "CE": ("CE", ""), "CE, T": ("CE", "also.temperature."), "squentropy": ("squentropy", "")}
    rows |= {"smoothed": ("smoothed", ""), "undone": ("smoothed", "also.undone.")}
    panels = []
    for key, label in {"linf_grid": "L_inf calibration error", "l1_grid": "L_1 calibration error"}.items():
        values = {name: cells.side(loss, inside + key) for name, (loss, inside) in rows.items()}
        values = {name: mine for name, mine in values.items() if mine}
        ticks = [(float(i), name) for i, name in enumerate(values)]
        high = 1.05 * max(max(mine) for mine in values.values())
        plot = Plot("", label, (-0.5, len(values) - 0.5), (0, high), label, 460, x_ticks=ticks)
        for i, mine in enumerate(values.values()):
            plot.dots([(i - 0.18, v) for v in mine], i, 4)
            found = summarise(mine)
            if found.mean is not None and found.std is not None:
                plot.bar(i + 0.1, found.mean - found.std, found.mean + found.std, i)
                plot.dots([(i + 0.1, found.mean)], i, 7)
        panels.append(Panel(label, plot.svg()))
    caption = "At the chosen mu: every replication (small dots), mean and one standard deviation (bars). T: with a temperature."
    return Figure("Calibration errors over replications", caption, panels)


def pointwise(cells: Cells) -> Figure:
    """Histogram and density of p - eta at the test points of the first replication."""
    found = stored(cells, "histogram")
    if not found:
        return NOTHING
    width = 2 * WIDEST / BINS
    middles: Array = -WIDEST + width * (np.arange(BINS, dtype=np.float64) + 0.5)
    densities = {side: np.array(counts, dtype=float) / (sum(counts) * width) for side, counts in found.items()}
    high = 1.05 * max(d.max() for d in densities.values())
    plot = Plot("p - eta", "density", (-WIDEST, WIDEST), (0, float(high)), "density of pointwise errors", 460)
    for i, density in enumerate(densities.values()):
        steps = [(m + s * width / 2, v) for m, v in zip(middles, density, strict=True) for s in (-1, 1)]
        plot.band([(x, 0.0) for x, _ in steps], steps, i)
        plot.trace(list(zip(middles, smoothed(density, middles), strict=True)), f"line c{i}", 2)
    plot.rule((0, 0), (0, float(high)))
    caption = "p - eta at the test points of the first replication: histogram (shaded) and its smoothing by a Gaussian kernel. "
    heavy = [(i, told(side), True) for i, side in enumerate(found)]
    return Figure("Pointwise errors", caption + AT, [Panel("", plot.svg(), heavy)])


def smoothed(density: Array, middles: Array) -> Array:
    """A density smoothed by a Gaussian kernel of standard deviation 0.012."""
    kernel = np.exp(-0.5 * ((middles[:, None] - middles) / 0.012) ** 2)
    found: Array = kernel @ density / kernel.sum(1)
    return found


def places(cells: Cells) -> Figure:
    """Where each loss errs: the mean of |p - eta| over replications on the square, and by the distance from the middle."""
    found = {side: unpack(text, COARSE) for side, text in stored(cells, "error").items()}
    if not found:
        return NOTHING
    top = max(float(np.quantile(field, 0.99)) for field in found.values()) or 1.0
    panels = [Panel(told(side), heat(field, f"error of {told(side)}", top)) for side, field in found.items()]
    radius = np.hypot(*lattice())
    edges = np.linspace(0, math.sqrt(2), 19)
    curves = {side: profile(field, radius, edges) for side, field in found.items()}
    high = 1.05 * max(v for points in curves.values() for _, v in points)
    plot = Plot("|x|", "mean |p - eta|", (0, math.sqrt(2)), (0, high), "error by distance from the middle")
    for i, (side, points) in enumerate(curves.items()):
        plot.line(points, i, told(side))
    panels.append(Panel("by |x|", plot.svg(), legend(map(told, curves))))
    caption = f"Mean of |p - eta| over replications: dark is 0, light is {top:.2f} or more; and averaged over rings. {AT}"
    return Figure("Where each loss errs", caption, panels)


def profile(field: Array, radius: Array, edges: Array) -> list[tuple[float, float]]:
    """Means of a field over rings."""
    rings = [(a, b, (radius >= a) & (radius < b)) for a, b in pairwise(edges.tolist())]
    return [((a + b) / 2, float(field[ring].mean())) for a, b, ring in rings if ring.any()]


def falling(cells: Cells) -> Figure:
    """L_inf error against n and against the width, on logarithmic axes."""
    panels = []
    for what, label in (("n", "points n"), ("width", "width of both layers")):
        curves = {loss: cells.curve(loss, what, "linf_grid") for loss in PAIR}
        curves = {loss: points for loss, points in curves.items() if len(points) > 1}
        if curves:
            panels.append(Panel(f"by {what}", slope_plot(curves, label), legend(NAMES[loss] for loss in curves)))
    caption = "L_inf calibration error, means and one standard deviation over replications; both axes logarithmic."
    return Figure("More points, wider networks", caption, panels)


def slope_plot(curves: dict[str, dict[float, list[float]]], label: str) -> str:
    """Error against size, both as logarithms."""
    sizes = sorted({size for points in curves.values() for size in points})
    means = {loss: {size: summarise(values) for size, values in points.items()} for loss, points in curves.items()}
    flat = [(s.mean or 0.0, s.std or 0.0) for points in means.values() for s in points.values()]
    y = (min(max(m - s, m / 2) for m, s in flat) / 1.12, max(m + s for m, s in flat) * 1.12)
    x = (sizes[0] / 1.2, sizes[-1] * 1.2)
    ticks = [(size, f"{size / 1000:g}k" if size >= 1000 else f"{size:g}") for size in sizes]
    plot = Plot(label, "L_inf calibration error", x, y, f"L_inf against {label}", log="xy", x_ticks=ticks)
    for i, (loss, points) in enumerate(means.items()):
        for size, s in points.items():
            mean, std = s.mean or 0.0, s.std or 0.0
            plot.bar(size, max(mean - std, mean / 2), mean + std, i)
        plot.line([(size, s.mean or 1.0) for size, s in points.items()], i, NAMES[loss])
    return plot.svg()
