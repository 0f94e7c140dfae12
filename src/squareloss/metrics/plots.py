"""Reliability diagrams, as vector graphics that read on white paper and on a dark page alike.

The background is transparent, text and axes are the grey that has the same contrast to black as to white, and the colours are
blue and vermilion of Okabe and Ito's palette, which colour-blind readers tell apart; gaps are hatched besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from squareloss.metrics import _inputs
from squareloss.metrics._binned import Reliability, reliability
from squareloss.metrics._pointwise import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#767676"

STYLE: Any = {
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": GREY,
    "figure.facecolor": "none",
    "font.size": 9,
    "hatch.linewidth": 0.8,
    "pdf.fonttype": 42,
    "svg.hashsalt": "squareloss",  # the same diagram is the same file
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}

GAPS = {"too confident": "////", "not confident enough": "\\\\\\\\"}
BAR: Any = {"facecolor": f"{BLUE}66", "edgecolor": BLUE, "linewidth": 0.8}
GAP: Any = {"facecolor": "none", "edgecolor": VERMILION, "linewidth": 0.8}
ACCURACY: Any = {"color": BLUE, "linestyle": "solid", "linewidth": 1.6}
CONFIDENCE: Any = {"color": VERMILION, "linestyle": (0, (3, 2)), "linewidth": 1.6}


def reliability_diagram(predictions: Tensor | Mapping[str, Tensor], labels: Tensor, *, bins: int = 15) -> Figure:
    """Accuracy against confidence in the bins of `ece`, and how many samples each bin holds; one column per classifier.

    Bars are the accuracy of each bin, with its Wilson interval; hatched bars are the gap to its mean confidence, leaning
    one way where the classifier is too confident and the other way where it is not confident enough. Below are the shares of
    the samples, with the overall accuracy and the overall mean confidence as lines.

    Arguments:
        predictions: probabilities or raw eta (N, K) of one classifier, or of several by name, for the same samples.
        labels: classes (N,).
        bins: how many bins.

    Returns a matplotlib `Figure`; write it with `save`.
    """
    named = {"": predictions} if isinstance(predictions, Tensor) else dict(predictions)
    tables = {name: reliability(values, labels, bins=bins) for name, values in named.items()}
    outside = {name: _inputs.read(values, labels).outside for name, values in named.items()}
    return diagram_of([(_title(name, table, outside[name]), table) for name, table in tables.items()])


def diagram_of(tables: Sequence[tuple[str, Reliability]]) -> Figure:
    """The same from what was kept of the bins: a title and a table of `metrics.reliability` for each column."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if not tables:
        raise ValueError("expected the predictions of one classifier or more, got none")
    with rc_context(STYLE):
        figure = Figure(figsize=(2.7 * len(tables) + 0.8, 4.6), layout="constrained")
        rows = figure.subplots(2, len(tables), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
        for (title, table), upper, lower in zip(tables, *rows, strict=True):
            _bars(upper, table)
            _histogram(lower, table)
            upper.set_title(title, fontsize=9, linespacing=1.4)
            lower.set_xlabel("confidence")
        rows[0, 0].set_ylabel("accuracy")
        rows[1, 0].set_ylabel("share")
        _legend(figure, len(tables))
    return figure


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure, with a transparent background; the suffix chooses the format, .svg or .pdf for vectors."""
    from matplotlib import rc_context

    suffix = Path(path).suffix
    dates: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context(STYLE):
        figure.savefig(path, transparent=True, metadata=dates.get(suffix), dpi=200)


def _bars(axes: Axes, table: Reliability) -> None:
    filled, width = table.count > 0, 1 / len(table.count)
    columns = (table.edges[:-1], table.count, table.accuracy, table.confidence)
    left, count, accuracy, confidence = (column[filled].numpy() for column in columns)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.bar(left, accuracy, width, align="edge", **BAR)
    for here, hatch in zip((confidence > accuracy, confidence <= accuracy), GAPS.values(), strict=True):
        axes.bar(left[here], (confidence - accuracy)[here], width, accuracy[here], align="edge", hatch=hatch, **GAP)
    ends = [wilson(float(share), int(n)) for share, n in zip(accuracy, count, strict=True)]
    axes.vlines(left + width / 2, *zip(*ends, strict=True), color=GREY, linewidth=1.2)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set(xticklabels=["0", "0.5", "1"], yticklabels=["0", "0.5", "1"])


def _histogram(axes: Axes, table: Reliability) -> None:
    left, share = table.edges[:-1].numpy(), (table.count / table.count.sum()).numpy()
    axes.bar(left, share, 1 / len(share), align="edge", color=GREY, linewidth=0, alpha=0.5)
    axes.axvline(_mean(table, table.accuracy), **ACCURACY)
    axes.axvline(_mean(table, table.confidence), **CONFIDENCE)


def _title(name: str, table: Reliability, outside: float) -> str:
    lines = [name] if name else []
    lines.append(f"ECE {table.ece:.4f}, accuracy {_mean(table, table.accuracy):.4f}")
    return "\n".join(lines + [f"{outside:.1%} of the outputs outside [0, 1]"] * (outside > 0))


def _mean(table: Reliability, values: Tensor) -> float:
    return float((table.count * values).sum() / table.count.sum())


def _legend(figure: Figure, columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: dict[str, Any] = {"accuracy of the bin": Patch(**BAR)}
    entries |= {f"gap: {name}": Patch(hatch=hatch, **GAP) for name, hatch in GAPS.items()}
    entries["95% interval"] = Line2D([], [], color=GREY, linewidth=1.2)
    entries |= {"overall accuracy": Line2D([], [], **ACCURACY), "overall confidence": Line2D([], [], **CONFIDENCE)}
    handles, names = list(entries.values()), list(entries)
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, columns + 1), frameon=False, fontsize=8)
