"""Fill the tables in README.md and docs/*.md from the files in results/.

    python docs/fill.py            # rewrite what stands between <!-- name --> and <!-- end -->
    python docs/fill.py --check    # exit 1 if a page is stale

A table whose results are not there yet stays empty.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import image_tables  # beside this file
import synthetic_tables
import theory_tables

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read(name: str) -> Any:
    """results/<name>.json, or None."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def digits() -> str:
    """The README's first table."""
    data = read("digits")
    cell = lambda v: f"{v['mean']:.4f} ({v['std']:.4f})"
    rows = [[kind, *(cell(row[key]) for key in ("accuracy", "ece", "brier"))] for kind, row in data["rows"].items()]
    return table(["", "accuracy", "ECE", "Brier score"], rows)


def train_images() -> str:
    """Steps of image networks, beside the plain loop."""
    rows, data = [], None
    for path in sorted((RESULTS / "benchmarks").glob("train_images_*.json"), reverse=True):
        data = json.loads(path.read_text())
        for row in data["rows"]:
            memory = f"{row['memory_gb']:.1f}" if "memory_gb" in row else ""
            rows.append(
                [data["network"], str(data["batch"]), row["engine"], str(row["replications"]),
                 f"{row['step']['median'] * 1e3:.2f}", f"{row['epoch_seconds']:.2f}", f"{row['ratio']:.1f}", memory]
            )  # fmt: skip
    head = ["network", "batch", "engine", "runs side by side", "ms a step and run", "s an epoch and run", "times faster", "GB"]
    return table(head, rows) + f"\n\n{_machine(data)}"


def loss_speed() -> str:
    """Forward and backward of the loss, beside cross-entropy."""
    rows = []
    for device in ("cpu", "cuda"):
        for row in (read(f"benchmarks/loss_{device}") or {"rows": []})["rows"]:
            mode = {"eager": "call by call", "graph": "captured"}[row.get("mode", "eager")]
            chip = "H200" if device == "cuda" else "2 cores"
            rows.append([chip, mode, str(row["classes"]), str(row["samples"]), f"{row['ratio']:.2f}"])
    return table(["on", "timed", "K", "N", "time of square loss / cross-entropy"], rows)


def train_stacked() -> str:
    """Stacks beside the plain loop."""
    rows = []
    for device in ("cuda", "cpu"):
        if data := read(f"benchmarks/train_stacked_{device}"):
            chip = data["machine"]["gpu"] if device == "cuda" else f"{data['machine']['cores']} cores"
            for row in data["rows"]:
                rows.append(
                    [chip, str(row["networks"]), str(row["steps"]), f"{row['stacked']['median']:.1f}",
                     f"{row['plain']['median']:.0f}", f"{row['ratio']['median']:.1f}"]
                )  # fmt: skip
    head = ["on", "networks 2-500-500-1", "steps", "stacked, s", "one after the other, s (scaled)", "times faster"]
    return table(head, rows)


def train_fast() -> str:
    """Accuracy and time of the fast recipe."""
    data = read("benchmarks/train_fast")
    if data is None:
        return ""
    rows = [
        [row["loss"], f"{row['accuracy']['mean']:.2f} ({row['accuracy']['std']:.2f})", f"{row['seconds']['mean']:.1f}",
         str(row["accuracy"]["n"])]
        for row in data["rows"]
    ]  # fmt: skip
    return table(["loss", "test accuracy, %", "s of training", "seeds"], rows) + f"\n\n{_machine(data)}"


def swap() -> str:
    """Losses at the learning rate that was tuned for cross-entropy."""
    return _swap(lambda row: _percent(row["accuracy"]), last="learning rate")


def swap_best() -> str:
    """Losses at the learning rate that is best for each, on validation data."""
    best = lambda by_rate: "{1:.1f} at {0}".format(*max(by_rate.items(), key=lambda item: item[1])) if by_rate else "diverged"
    return _swap(lambda row: best(row["validation_by_rate"]))


def _swap(cell: Callable[[Any], str], last: str = "") -> str:
    data = read("benchmarks/swap")
    if data is None:
        return ""
    tasks = list(dict.fromkeys(row["data"] for row in data["rows"]))
    found = {(row["loss"], row["data"]): row for row in data["rows"]}
    losses = dict.fromkeys(row["loss"] for row in data["rows"])
    rows = [[f"`{loss}`", *(cell(found[loss, task]) for task in tasks)] for loss in losses]
    if last:
        rows.append([last, *(f"{found['cross-entropy', task]['rate']:g}" for task in tasks)])
    head = ["", *("digits" if task == "digits" else f"K = {task}" for task in tasks)]
    return table(head, rows) + f"\n\n{_machine(data)}"


def _percent(found: Any) -> str:
    if found is None:
        return "diverged"
    return f"{found['mean']:.1f}" + (f" ({found['std']:.1f})" if found["n"] > 1 else "")


def estimator() -> str:
    """The scikit-learn estimator beside scikit-learn's."""
    data = read("benchmarks/estimator")
    if data is None:
        return ""
    rows = [
        [row["data"], " x ".join(map(str, row["hidden"])), row["contender"], f"{row['seconds']['median']:.2f}",
         f"{row['slower']['median']:.1f}", f"{100 * row['accuracy']['mean']:.2f}", f"{row['ece']['mean']:.4f}",
         f"{row['brier']['mean']:.4f}"]
        for row in data["rows"]
    ]  # fmt: skip
    head = ["data", "hidden", "", "s of fit", "times ours", "accuracy, %", "ECE", "Brier"]
    return table(head, rows) + f"\n\n{_machine(data)}, {data['threads']} threads"


def _machine(data: Any) -> str:
    machine = data["machine"]
    return f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, `{data['command']}`"


TABLES: dict[str, Callable[[], str]] = {
    "digits": digits,
    "loss-speed": loss_speed,
    "train-images": train_images,
    "train-stacked": train_stacked,
    "train-fast": train_fast,
    "swap": swap,
    "swap-best": swap_best,
    "estimator": estimator,
}


def filled(text: str) -> str:
    """A page with its tables made anew."""
    for name, make in (TABLES | synthetic_tables.TABLES | theory_tables.TABLES | image_tables.TABLES).items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if pattern.search(text):
            body = make()
            text = pattern.sub(lambda m, body=body: m[1] + (body + "\n" if body else "") + m[2], text)
    return text


def main() -> int:
    """Fill or check every page."""
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        if (new := filled(text)) != text:
            stale.append(page.relative_to(ROOT))
            if "--check" not in sys.argv:
                page.write_text(new)
    if stale:
        print(("stale: " if "--check" in sys.argv else "filled: ") + ", ".join(map(str, stale)))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    raise SystemExit(main())
