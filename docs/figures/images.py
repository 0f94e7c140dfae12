"""The figures of docs/results.md: reliability diagrams and robustness by radius, from results/images.

    python docs/figures/images.py [FOLDER]      # writes images-reliability.svg and images-robustness.svg; trains nothing

Networks under the paper's recipe are drawn, or, while there are none, those of the shortest one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt

from squareloss.lab.report.views.image_rows import Net, label, nets
from squareloss.lab.runs import Store

HERE = Path(__file__).resolve().parent
ATTACKS = {"pgd": ("PGD-100", ":"), "autoattack": ("AutoAttack", "--"), "least": ("least over all", "-")}
COLOURS = {"CE": "#d55e00", "SL": "#0072b2"}  # told apart by everyone
LEVELS = (2, 4, 8)


def chosen(found: list[Net]) -> list[Net]:
    """Cross-entropy and square loss, of the paper's recipe if it is there."""
    plain = [net for net in found if net.loss in COLOURS and "adv" not in net.line and net.metrics]
    full = [net for net in plain if net.full]
    return full or [net for net in plain if net.recipe == plain[0].recipe]


def reliability(found: list[Net]) -> Any:
    """A column per network: as trained above, after a temperature below."""
    readings = {"": "as trained", "+temperature": "after a temperature"}
    figure, axes = plt.subplots(2, len(found), figsize=(2.6 * len(found), 5.2), squeeze=False, sharex=True, sharey=True)
    for column, net in enumerate(found):
        for row, (reading, name) in enumerate(readings.items()):
            axis = axes[row, column]
            tables = [m["readings"][reading]["reliability"] for m in net.metrics.values() if "readings" in m]
            count = np.array([t["count"] for t in tables], float)
            accuracy = (count * np.array([t["accuracy"] for t in tables])).sum(0) / np.maximum(count.sum(0), 1)
            kept, width = count.sum(0) > 0, 1 / count.shape[1]
            left = np.arange(count.shape[1]) * width
            axis.bar(left[kept], accuracy[kept], width, align="edge", color=COLOURS[net.loss], alpha=0.7, edgecolor="white")
            axis.plot([0, 1], [0, 1], color="grey", lw=1)
            axis.set_title(f"{' '.join(label(net.line))}\n{name}, ECE {net.summary('ece' + reading).mean:.4f}", fontsize=8)
            axis.set(xlim=(0, 1), ylim=(0, 1))
    figure.supxlabel("confidence", fontsize=9)
    figure.supylabel("accuracy", fontsize=9)
    return figure


def robustness(found: list[Net]) -> Any:
    """A panel per network and data, both losses in it: the gap between the lines of a loss is what weak attacks hide."""
    panels = list(dict.fromkeys(label(net.line)[:2] for net in found))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.2), squeeze=False, sharey=True)
    for axis, where in zip(axes[0], panels, strict=True):
        for net in (net for net in found if label(net.line)[:2] == where):
            for key, (name, style) in ATTACKS.items():
                means = [net.summary("accuracy").mean, *(net.summary(f"{key}_{level}").mean for level in LEVELS)]
                points = [(x, 100 * y) for x, y in zip((0, *LEVELS), means, strict=True) if y is not None]
                if len(points) > 1:
                    axis.plot(
                        *zip(*points, strict=True), style, color=COLOURS[net.loss], label=f"{net.loss}, {name}", marker="."
                    )
        axis.set(title=" ".join(where), xlabel="radius in 255ths", ylim=(0, 100))
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)
    axes[0, 0].set_ylabel("images that stand, %")
    return figure


def main() -> None:
    """Draw what there is."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "results" / "images"
    found = nets(Store(folder, create=False).records()) if folder.is_dir() else []
    if not any(net.metrics for net in found):
        sys.exit(f"no results in {folder}: run squareloss reproduce table1 first")
    plt.rcParams |= {"svg.hashsalt": "squareloss", "svg.fonttype": "none"}  # the same file every time, with text as text
    for name, draw in {"reliability": reliability, "robustness": robustness}.items():
        figure = draw(chosen(found))
        figure.tight_layout()
        out = HERE if len(sys.argv) == 1 else folder
        figure.savefig(out / f"images-{name}.svg", metadata={"Date": None})
        print(out / f"images-{name}.svg")


if __name__ == "__main__":
    main()
