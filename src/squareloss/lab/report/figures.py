"""The figures of a report, from what the results hold for them: bins, noise, attacks, distances, curves."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from squareloss.lab.report.rows import Row, one_per_cell
from squareloss.lab.report.svg import Plot
from squareloss.lab.runs.store import Record

WORST = "worst case"  # over PGD with every loss and the adaptive suite
FEW = 10  # predictions: the accuracy of a bin with fewer says little


@dataclass(frozen=True)
class Panel:
    """One drawing with its heading, legend, (colour, name, heavy) each, and a note below the heading."""

    heading: str
    svg: str
    legend: Sequence[tuple[int, str, bool]] = ()
    note: str = ""


def legend(names: Iterable[str], heavy: str = "") -> list[tuple[int, str, bool]]:
    """Of lines that have the colours in turn; the one that is named is heavy."""
    return [(colour, name, name == heavy) for colour, name in enumerate(names)]


@dataclass(frozen=True)
class Figure:
    """Panels side by side, under one heading and one caption."""

    heading: str
    caption: str
    panels: Sequence[Panel]


NOTHING = Figure("", "", [])  # to draw; figures without panels are left out of the report


def figures(rows: Sequence[Row], records: Sequence[Record] = ()) -> list[Figure]:
    """All that the results have something for."""
    cells = one_per_cell(rows)
    colours = {row.cell: i for i, row in enumerate(cells)}
    found = [_reliability(rows), _robustness(cells, colours), _distances(cells, colours), _noise(cells, colours)]
    found += [_curves(cells, colours), _pictures(records)]
    return [figure for figure in found if figure.panels]


def _reliability(rows: Sequence[Row]) -> Figure:
    caption = (
        "Predictions by their confidence, all seeds together; calibrated ones would reach the diagonal. Orange: confidence "
        "beyond the accuracy of the bin (too confident). Green: accuracy beyond the confidence (not confident enough). Below, "
        f"the share of predictions in each bin; bins with fewer than {FEW} are faint."
    )
    panels = [_diagram(row) for row in rows if row.parts("reliability")]
    return Figure("Reliability", caption, panels)


def _diagram(row: Row) -> Panel:
    tables = row.parts("reliability")
    counts = np.array([t["count"] for t in tables], dtype=float)  # (seeds, bins)
    total = counts.sum(0)
    weight = counts / np.maximum(total, 1)
    confidence, accuracy = (sum(weight * np.array([t[key] for t in tables])) for key in ("confidence", "accuracy"))
    plot = Plot("confidence", "accuracy", (0, 1), (-0.3, 1), f"Reliability of {row.name}", 260, 300, floor=0)
    width = 1 / len(total)
    share = total / total.sum()
    for i in np.flatnonzero(total):
        left, right = i * width, (i + 1) * width
        told = f"confidence {confidence[i]:.3f}, accuracy {accuracy[i]:.3f}, {int(total[i])} predictions"
        low, high = sorted((float(accuracy[i]), float(confidence[i])))
        faint = " faint" if total[i] < FEW else ""
        plot.box(left, right, 0, low, f"bar{faint}", told)
        plot.box(left, right, low, high, f"{'over' if confidence[i] > accuracy[i] else 'under'}{faint}", told)
        plot.box(left, right, -0.3, -0.3 + 0.22 * float(share[i] / share.max()), "share", told)
    plot.rule((0, 0), (1, 1))
    plot.rule((0, 0), (1, 0), "axis")
    ece = row.summary("ece").mean
    return Panel(row.name, plot.svg(), note="" if ece is None else f"ECE {ece:.4f}")


def _noise(rows: Sequence[Row], colours: Mapping[str, int]) -> Figure:
    curves = {row.cell: _curve(row, "noise", "std", "accuracy", start="accuracy") for row in rows if row.parts("noise")}
    caption = (
        "Accuracy on the test set with Gaussian noise added in standardised space; lines are means, bands one std over seeds."
    )
    return Figure("Noise", caption, [_lines("standard deviation of the noise", "accuracy", curves, colours)] if curves else [])


def _robustness(rows: Sequence[Row], colours: Mapping[str, int]) -> Figure:
    rows = [row for row in rows if row.parts("attacks")]
    caption = (
        "Share of the attacked points that stand, by radius of the attack: under PGD with each loss alone, and in the worst "
        "case over all of them and the adaptive suite, point by point. A single loss flatters; the worst case is what counts."
    )
    worst = {row.cell: _attack(row, WORST) for row in rows}
    panels = [_lines("radius", "robust accuracy", worst, colours, "worst case")] if len(rows) > 1 else []
    for row in rows:
        names = [*(name for name in row.parts("attacks")[0]["robust"] if name != WORST), WORST]
        curves = {name: _attack(row, name) for name in names}
        places = {name: i + 1 for i, name in enumerate(names)} | {WORST: 0}
        means = {name: (x, y.mean(0, keepdims=True)) for name, (x, y) in curves.items()}
        panels.append(_lines("radius", "robust accuracy", means, places, f"{row.cell}, by attack loss", WORST))
    return Figure("Robustness", caption, panels)


def _attack(row: Row, name: str) -> tuple[Any, Any]:
    parts = [p for p in row.parts("attacks") if name in p["robust"]]
    values = [[p.get("clean", np.nan), *p["robust"][name]] for p in parts]
    return np.append(0.0, parts[0]["eps"]), np.array(values)


def _distances(rows: Sequence[Row], colours: Mapping[str, int]) -> Figure:
    rows = [row for row in rows if row.parts("distances")]
    if not rows:
        return NOTHING
    reach = {row.cell: [np.array(p["radius"], dtype=float) for p in row.parts("distances")] for row in rows}
    finite = np.concatenate([r[np.isfinite(r)] for parts in reach.values() for r in parts])
    grid = np.linspace(0, (float(np.quantile(finite, 0.95)) if len(finite) else 0.0) or 1.0, 30)
    curves = {cell: (grid, np.array([[np.mean(r > g) for g in grid] for r in parts])) for cell, parts in reach.items()}
    caption = "Share of the test points that keep their class, whatever the move of that l_2 length in standardised space."
    return Figure("Decision margin", caption, [_lines("l_2 radius", "share that stands", curves, colours, dots=False)])


def _curves(rows: Sequence[Row], colours: Mapping[str, int]) -> Figure:
    rows = [row for row in rows if row.parts("curve")]
    if not rows:
        return NOTHING
    curves = {row.cell: _curve(row, "curve", "epoch", "train_accuracy") for row in rows}
    errors = {cell: (x, 1 - y) for cell, (x, y) in curves.items()}
    caption = "Error on the training batches of each epoch, at the learning rate that was chosen; bands are one std over seeds."
    return Figure("Training", caption, [_lines("epoch", "training error", errors, colours, top=None, dots=False)])


def _pictures(records: Sequence[Record]) -> Figure:
    """Artefacts that are pictures, such as decision boundaries."""
    kinds = {".png": "image/png", ".svg": "image/svg+xml"}
    panels = []
    for record in records:
        for name in record.artefacts:
            kind = next((k for suffix, k in kinds.items() if name.endswith(suffix)), None)
            if kind and record.artefact(name).exists():
                content = base64.b64encode(record.artefact(name).read_bytes()).decode()
                title = f"{record.cell}, seed {record.seed}: {name.rpartition('.')[0].replace('_', ' ')}"
                image = f'<img class="plot" alt="{escape(title)}" src="data:{kind};base64,{content}">'
                panels.append(Panel(title, image))
    return Figure("Pictures", "Left by the runs themselves.", panels)


def _curve(row: Row, key: str, x: str, y: str, start: str = "") -> tuple[Any, Any]:
    """x (P,) and y (seeds, P) of a curve, which may `start` from a scalar at x = 0; seeds with other x are left out."""
    points = row.parts(key)[0][x]
    kept = [metrics for metrics in row.metrics.values() if metrics.get(key, {}).get(x) == points]
    values = [[*([metrics.get(start, np.nan)] if start else []), *metrics[key][y]] for metrics in kept]
    return np.array([0.0, *points] if start else points, dtype=float), np.array(values, dtype=float)


def _lines(
    x_label: str,
    y_label: str,
    curves: Mapping[str, tuple[Any, Any]],
    colours: Mapping[str, int],
    heading: str = "",
    heavy: str = "",
    *,
    top: float | None = 1.0,
    dots: bool = True,
) -> Panel:
    """Means over seeds as lines, one std as bands."""
    high = top or max(float(np.nanmax(y.mean(0) + y.std(0))) for _, y in curves.values()) or 1.0
    across = [float(edge) for edge in (min(x[0] for x, _ in curves.values()), max(x[-1] for x, _ in curves.values()))]
    plot = Plot(x_label, y_label, (across[0], across[1]), (0, min(high, 1.0)), heading, percent=True)
    for name, (x, y) in curves.items():
        mean, colour = y.mean(0), colours[name]
        if len(y) > 1:
            std = y.std(0, ddof=1)
            plot.band(list(zip(x, mean - std, strict=True)), list(zip(x, mean + std, strict=True)), colour)
        points = [(float(a), float(b)) for a, b in zip(x, mean, strict=True) if np.isfinite(b)]
        plot.line(points, colour, name, heavy=name == heavy, dots=dots)
    return Panel(heading, plot.svg(), [(colours[name], name, name == heavy) for name in curves])
