"""The figure of docs/probe.md: accuracy, ECE and time of the probe and its rivals, as benchmarks/probe.py measured them.

python docs/figures/probe.py       # seconds; writes probe.svg
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib import pyplot, rc_context

from squareloss.metrics import plots

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "results" / "benchmarks"
SETS = {"probe_digits": "digits, 1000 random ReLU features", "probe_cifar10": "CIFAR-10, 512 convolutional features"}


def draw() -> None:
    """Accuracy, ECE and time, a row for each set."""
    found = {title: json.loads((RESULTS / f"{name}.json").read_text()) for name, title in SETS.items()}
    with rc_context(plots.STYLE):
        figure, axes = pyplot.subplots(len(found), 3, figsize=(9, 2.1 * len(found)), squeeze=False, layout="constrained")
        for row, (title, data) in zip(axes, found.items(), strict=True):
            rivals = list(data["rows"])[::-1]
            for panel, (key, label) in zip(
                row, (("accuracy", "accuracy"), ("ece", "ECE"), ("seconds", "seconds")), strict=True
            ):
                values = [data["rows"][rival].get(key) for rival in rivals]
                colours = [plots.VERMILION if "logistic" in rival else plots.BLUE for rival in rivals]
                panel.barh(rivals, [value or 0 for value in values], color=colours, height=0.6)
                for place, value in enumerate(values):
                    told = "none" if value is None else f"{value:.3g}" if key == "seconds" else f"{value:.4f}"
                    panel.annotate(told, (value or panel.get_xlim()[0], place), (3, 0), textcoords="offset points", va="center")
                if key == "accuracy":
                    low = min(v for v in values if v)
                    panel.set_xlim(max(0, low - 0.3 * (1 - low)), None)
                if key == "seconds":
                    panel.set_xscale("log")
                panel.margins(x=0.25)
                panel.set_xlabel(label)
                panel.tick_params(labelleft=key == "accuracy", left=False)
            row[0].set_title(title, loc="left")
        plots.save(figure, HERE / "probe.svg")


if __name__ == "__main__":
    draw()
