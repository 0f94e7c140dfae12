"""The figures of docs/results.md: reliability diagrams and robustness by attack, from results/images.

    python docs/figures/images.py [FOLDER]      # writes images-reliability-*.svg and images-robustness-*.svg; trains nothing

One of each kind per network that both losses have trained alike: under the paper's recipe or, while no such pair has what it
shows, under another. Counts and accuracies of bins are means over seeds, so intervals are those of one test set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from squareloss.lab.report.views.image_rows import Net, label, nets, pairs
from squareloss.lab.report.views.paper_images import LEVELS
from squareloss.lab.runs import Store
from squareloss.metrics import Reliability, plots

Draw = Callable[[tuple[Net, Net]], Figure | None]
HERE = Path(__file__).resolve().parent
# from the weakest to the least over all; the first and the last are drawn by radius
ATTACKS = {
    "pgd": "PGD-100, as the paper attacks",
    "pgd_least": "PGD-100, least over its losses",
    "worst": "worst case",
    "autoattack": "AutoAttack",
    "least": "least over all",
}
READINGS = {"": "as trained", "+renormalised": "clipped, renormalised", "+asinh": "by Asinh"}
LOOK = {"CE": (plots.VERMILION, "s"), "SL": (plots.BLUE, "o")}


def drawn(found: list[Net], draw: Draw) -> dict[str, Figure]:
    """A figure by network, of both losses: of the first pair that has what it shows, the paper's recipe first."""
    figures: dict[str, Figure] = {}
    for pair in pairs(found):
        name = "-".join(pair[0].line.split("-")[:2])
        if "-adv" not in pair[0].line and name not in figures and all(net.metrics for net in pair):
            with rc_context(plots.STYLE):
                figure = draw(pair)
            figures |= {name: figure} if figure is not None else {}
    return figures


def title(pair: tuple[Net, Net]) -> str:
    """Which network it is, on which data, and for how long it was trained if not as in the paper."""
    data, network, _ = label(pair[1].line)
    return f"{network}, {data}" + ("" if pair[1].full else f", {pair[1].epochs}")


def reliability(pair: tuple[Net, Net]) -> Figure | None:
    """A column per loss and reading."""
    tables = []
    for net in pair:
        for reading, name in READINGS.items():
            if net.by_seed(f"ece{reading}"):
                ece, accuracy = net.summary(f"ece{reading}").mean, net.summary("accuracy").mean
                tables.append((f"{net.loss}, {name}\nECE {ece:.4f}, accuracy {accuracy:.4f}", bins(net, reading)))
    if not tables:
        return None
    figure = plots.diagram_of(tables)
    figure.suptitle(title(pair), fontsize=9)
    return figure


def bins(net: Net, reading: str) -> Reliability:
    """Means over seeds: of the counts, and of confidence and accuracy by what lies in the bin."""
    kept = [m["readings"][reading]["reliability"] for m in net.metrics.values() if reading in m.get("readings", {})]
    count, confidence, accuracy = (
        torch.tensor([table[key] for table in kept], dtype=torch.float64) for key in ("count", "confidence", "accuracy")
    )  # (S, B)
    total = count.sum(0).clamp(min=1)
    edges = torch.linspace(0, 1, count.shape[1] + 1, dtype=torch.float64)
    # at least one where there is something, for the interval
    return Reliability(edges, count.mean(0).ceil(), (count * confidence).sum(0) / total, (count * accuracy).sum(0) / total)


def robustness(pair: tuple[Net, Net]) -> Figure | None:
    """What stands by radius, under the weakest attack and the least over all; and under each attack at the first radius."""
    levels = [level for level in LEVELS if all(net.by_seed(f"pgd_{level}") for net in pair)]
    if not levels or not all(net.by_seed("accuracy") for net in pair):
        return None
    figure = Figure(figsize=(9.2, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _by_radius(left, pair)
    _by_attack(right, pair, levels[0])
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _by_radius(axes: Axes, pair: tuple[Net, Net]) -> None:
    for net in pair:
        colour, mark = LOOK[net.loss]
        for key, style in {"pgd": (0, (3, 2)), "least": "solid"}.items():
            means = [net.summary("accuracy").mean, *(net.summary(f"{key}_{level}").mean for level in LEVELS)]
            known = [(x, 100 * y) for x, y in zip((0, *LEVELS), means, strict=True) if y is not None]
            name = f"{net.loss}, {ATTACKS[key].partition(',')[0]}"
            axes.plot(*zip(*known, strict=True), linestyle=style, color=colour, marker=mark, markersize=4, label=name)
    axes.set(xlabel="radius in 255ths", ylabel="test images that stand, %", ylim=(-2, 100), xticks=(0, *LEVELS))
    axes.set_title(f"{title(pair)}: by radius", fontsize=9)


def _by_attack(axes: Axes, pair: tuple[Net, Net], level: int) -> None:
    known = [key for key in ATTACKS if any(net.by_seed(f"{key}_{level}") for net in pair)]
    places = range(len(known) - 1, -1, -1)
    for net, side in zip(pair, (6, -14), strict=True):  # numbers of one loss above its marks, of the other below
        colour, mark = LOOK[net.loss]
        for place, key in zip(places, known, strict=True):
            mean = net.summary(f"{key}_{level}").mean
            if mean is not None:
                axes.plot(100 * mean, place, linestyle="none", color=colour, marker=mark, markersize=6)
                axes.annotate(
                    f"{100 * mean:.1f}", (100 * mean, place), (0, side), textcoords="offset points", ha="center", color=colour
                )
    axes.set(xlabel="test images that stand, %", ylim=(-0.6, len(known) - 0.4))
    axes.set_xlim(left=-0.04 * axes.get_xlim()[1])
    axes.set_yticks(list(places), [ATTACKS[key] for key in known])
    axes.grid(axis="y", color=plots.GREY, alpha=0.25)
    axes.set_title(f"by attack, at {level}/255", fontsize=9)


def main() -> None:
    """Draw what there is."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "results" / "images"
    out = HERE if len(sys.argv) == 1 else folder
    found = nets(Store(folder, create=False).records()) if folder.is_dir() else []
    if not pairs(found):
        sys.exit(f"no pairs of networks in {folder}: run squareloss reproduce table1 first")
    kinds: dict[str, Draw] = {"reliability": reliability, "robustness": robustness}
    for kind, draw in kinds.items():
        for name, figure in drawn(found, draw).items():
            path = out / f"images-{kind}-{name}.svg"
            plots.save(figure, path)
            print(path)


if __name__ == "__main__":
    main()
