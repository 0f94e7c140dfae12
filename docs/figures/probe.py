"""The figure of docs/probe.md, and the tables of docs/probe.md and docs/huge_k.md, from results/benchmarks.

    python docs/figures/probe.py       # seconds; writes probe.svg and fills the pages

The numbers are measured by benchmarks/probe.py, linear.py and huge_k.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from matplotlib import pyplot, rc_context

from squareloss.metrics import plots

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "results" / "benchmarks"
SETS = {"probe_digits": "digits, 1000 random ReLU features", "probe_cifar10": "CIFAR-10, 512 convolutional features"}


def main() -> None:
    """Draw, and fill the tables."""
    draw()
    fill(HERE.parent / "probe.md", {"probe": probe_table()})
    fill(HERE.parent / "huge_k.md", {"linear": linear_table(), "accuracy": accuracy_table()})


def read(name: str) -> Any:
    """results/benchmarks/<name>.json, or None."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def fill(page: Path, tables: dict[str, str]) -> None:
    """Put each table between its marks."""
    text = page.read_text()
    for mark, table in tables.items():
        text = re.sub(
            f"<!-- {mark} -->.*?<!-- end -->", lambda _, m=mark, t=table: f"<!-- {m} -->\n{t}\n<!-- end -->", text, flags=re.S
        )
    page.write_text(text)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def probe_table() -> str:
    """Every rival on every set."""
    parts = []
    for name, title in SETS.items():
        if not (data := read(name)):
            continue
        rows = [
            [rival, f"{row['seconds']:.2f}", f"{row['cpu_seconds']:.2f}", f"{100 * row['accuracy']:.2f}"]
            + [f"{row[key]:.4f}" if key in row else "" for key in ("ece", "brier", "nll")]
            for rival, row in data["rows"].items()
        ]
        head = [title, "s of fit and selection", "s of processor", "accuracy, %", "ECE", "Brier", "NLL"]
        parts.append(table(head, rows) + f"\n\n{source(data)}, {data['threads']} threads")
    if data := read("probe_cuda"):
        rows = [
            [
                rival,
                f"{row['seconds']['median']:.3f}",
                f"{100 * row['accuracy']:.2f}",
                f"{row['ece']:.4f}",
                f"{row['brier']:.4f}",
            ]
            for rival, row in data["rows"].items()
        ]
        head = ["CIFAR-10 on a GPU", "s of fit and selection", "accuracy, %", "ECE", "Brier"]
        parts.append(table(head, rows) + f"\n\n{source(data)}")
    return "\n\n".join(parts)


def linear_table() -> str:
    """Time and memory of the last layer."""
    parts = []
    for device in ("cpu", "cuda"):
        if not (data := read(f"linear_{device}")):
            continue
        rows = [
            [
                f"{n:,}, {d:,}, {k:,}",
                name,
                *(f"{x:,.1f}" for x in (entry["ms"]["median"], entry["times_as_fast"], entry["extra_mb"])),
            ]
            for n, d, k, row in ((*row["size"], row) for row in data["rows"])
            for name, entry in row["rivals"].items()
        ]
        head = ["N, d, K", data["dtype"], "ms", "times as fast", "MB beyond the inputs"]
        parts.append(table(head, rows) + f"\n\n{source(data)}")
    return "\n\n".join(parts)


def accuracy_table() -> str:
    """Test accuracy of a linear layer with many classes."""
    if not (data := read("huge_k")):
        return ""
    losses = list(dict.fromkeys(row["loss"] for row in data["rows"]))
    cells = {(row["classes"], row["norms"], row["loss"]): f"{100 * row['accuracy']:.1f}" for row in data["rows"]}
    settings = list(dict.fromkeys((row["classes"], row["norms"]) for row in data["rows"]))
    rows = [[loss, *(cells.get((*setting, loss), "") for setting in settings)] for loss in losses]
    return table(["", *(f"K = {k:,}, norms {norms}" for k, norms in settings)], rows) + f"\n\n{source(data)}"


def source(data: Any) -> str:
    """Where numbers come from."""
    machine = data["machine"]
    return f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, `{data['command']}`"


def draw() -> None:
    """Accuracy, ECE and time, a row for each set."""
    found = {title: data for name, title in SETS.items() if (data := read(name))}
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
    main()
