"""The tables that come from results/benchmarks; `fill.py` puts them into the pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markdown_tables import table  # beside this file

RESULTS = Path(__file__).resolve().parent.parent / "results" / "benchmarks"
PROBES = {"probe_digits": "digits, 1000 random ReLU features", "probe_cifar10": "CIFAR-10, 512 convolutional features"}


def read(name: str) -> Any:
    """results/benchmarks/<name>.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def source(*data: Any) -> str:
    """Where numbers come from: the machine, torch, and the commands."""
    machine = data[0]["machine"]
    commands = ", ".join(f"`{command}`" for command in dict.fromkeys(one["command"] for one in data))
    return f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, {commands}"


# --- training


def train_images() -> str:
    """Steps of image networks, beside the plain loop."""
    rows, found = [], []
    for path in sorted(RESULTS.glob("train_images_*.json"), reverse=True):
        data = json.loads(path.read_text())
        found.append(data)
        for row in data["rows"]:
            memory = f"{row['memory_gb']:.1f}" if "memory_gb" in row else ""
            rows.append(
                [data["network"], str(data["batch"]), row["engine"], str(row["replications"]),
                 f"{row['step']['median'] * 1e3:.2f}", f"{row['epoch_seconds']:.2f}", f"{row['ratio']:.1f}", memory]
            )  # fmt: skip
    head = ["network", "batch", "engine", "runs side by side", "ms a step and run", "s an epoch and run", "times faster", "GB"]
    return table(head, rows) + f"\n\n{source(*found)}"


def train_stacked() -> str:
    """Stacks beside the plain loop."""
    rows = []
    for device in ("cuda", "cpu"):
        data = read(f"train_stacked_{device}")
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
    data = read("train_fast")
    rows = [
        [row["loss"], f"{row['accuracy']['mean']:.2f} ({row['accuracy']['std']:.2f})", f"{row['seconds']['mean']:.1f}",
         str(row["accuracy"]["n"])]
        for row in data["rows"]
    ]  # fmt: skip
    return table(["loss", "test accuracy, %", "s of training", "seeds"], rows) + f"\n\n{source(data)}"


# --- losses


def loss_speed() -> str:
    """Forward and backward of the loss, beside cross-entropy."""
    rows = []
    for device in ("cpu", "cuda"):
        for row in read(f"loss_{device}")["rows"]:
            mode = {"eager": "call by call", "graph": "captured"}[row["mode"]]
            chip = "H200" if device == "cuda" else "2 cores"
            ratios = [f"{row[key]:.2f}" for key in ("ratio", "bare_ratio")]
            rows.append([chip, mode, str(row["classes"]), str(row["samples"]), *ratios])
    return table(["on", "timed", "K", "N", "square loss / cross-entropy", "bare function / cross-entropy"], rows)


def swap() -> str:
    """Losses at the learning rate that was tuned for cross-entropy."""
    return _swap(lambda row: _percent(row["accuracy"]), last="learning rate")


def swap_best() -> str:
    """Losses at the learning rate that is best for each, on validation data."""
    best = lambda by_rate: "{1:.1f} at {0}".format(*max(by_rate.items(), key=lambda item: item[1])) if by_rate else "diverged"
    return _swap(lambda row: best(row["validation_by_rate"]))


def swap_ece() -> str:
    """Calibration error as trained, with a temperature, and with `Asinh`."""
    keys = ("ece", "ece_with_temperature", "ece_with_asinh")
    return _swap(lambda row: ", ".join(f"{row[key]['mean']:.3f}" for key in keys) if row["accuracy"] else "diverged")


def _swap(cell: Callable[[Any], str], last: str = "") -> str:
    data = read("swap")
    tasks = list(dict.fromkeys(row["data"] for row in data["rows"]))
    found = {(row["loss"], row["data"]): row for row in data["rows"]}
    losses = dict.fromkeys(row["loss"] for row in data["rows"])
    rows = [[f"`{loss}`", *(cell(found[loss, task]) for task in tasks)] for loss in losses]
    if last:
        rows.append([last, *(f"{found['cross-entropy', task]['rate']:g}" for task in tasks)])
        rows.append(["seeds", *(str(found["cross-entropy", task]["seeds"]) for task in tasks)])
    head = ["", *("digits" if task == "digits" else f"K = {task}" for task in tasks)]
    return table(head, rows) + f"\n\n{source(data)}"


def _percent(found: Any) -> str:
    if found is None:
        return "diverged"
    return f"{found['mean']:.1f}" + (f" ({found['std']:.1f})" if found["n"] > 1 else "")


def linear() -> str:
    """Time and memory of the last layer."""
    parts = []
    for device in ("cpu", "cuda"):
        data = read(f"linear_{device}")
        rows = [
            [f"{n:,}, {d:,}, {k:,}", name,
             *(f"{x:,.1f}" for x in (entry["ms"]["median"], entry["times_as_fast"], entry["extra_mb"]))]
            for n, d, k, row in ((*row["size"], row) for row in data["rows"])
            for name, entry in row["rivals"].items()
        ]  # fmt: skip
        head = ["N, d, K", data["dtype"], "ms", "times as fast", "MB beyond the inputs"]
        parts.append(table(head, rows) + f"\n\n{source(data)}")
    return "\n\n".join(parts)


def accuracy() -> str:
    """Test accuracy of a linear layer with many classes."""
    data = read("huge_k")
    losses = list(dict.fromkeys(row["loss"] for row in data["rows"]))
    cells = {(row["classes"], row["norms"], row["loss"]): f"{100 * row['accuracy']:.1f}" for row in data["rows"]}
    settings = list(dict.fromkeys((row["classes"], row["norms"]) for row in data["rows"]))
    rows = [[loss, *(cells.get((*setting, loss), "") for setting in settings)] for loss in losses]
    return table(["", *(f"K = {k:,}, norms {norms}" for k, norms in settings)], rows) + f"\n\n{source(data)}"


# --- classifiers


def estimator() -> str:
    """The scikit-learn estimator beside scikit-learn's."""
    data = read("estimator")
    rows = [
        [row["data"], " x ".join(map(str, row["hidden"])), row["contender"], f"{row['seconds']['median']:.2f}",
         f"{row['slower']['median']:.1f}", f"{100 * row['accuracy']['mean']:.2f}", f"{row['ece']['mean']:.4f}",
         f"{row['brier']['mean']:.4f}"]
        for row in data["rows"]
    ]  # fmt: skip
    head = ["data", "hidden", "", "s of fit", "times ours", "accuracy, %", "ECE", "Brier"]
    return table(head, rows) + f"\n\n{source(data)}, {data['threads']} thread{'s' * (data['threads'] > 1)}"


def reading() -> str:
    """Brier scores of the estimator's networks in every reading of their scores, and calibration errors in two."""
    data = read("reading")
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for row in data["rows"]:
        cells.setdefault((row["loss"], row["data"]), {})[row["reading"]] = row
    ways = list(next(iter(cells.values())))
    rows = []
    for (loss, name), cell in cells.items():
        errors = ", ".join(f"{cell[way]['ece']['mean']:.4f}" for way in ("own", "estimator"))
        rows.append([loss, name, *(f"{cell[way]['brier']['mean']:.4f}" for way in ways), errors])
    head = ["loss", "data", *(f"Brier: {way}" for way in ways), "ECE: own, estimator"]
    return table(head, rows) + f"\n\n{source(data)}, {data['seeds']} seeds"


def probe() -> str:
    """Every rival of the probe on every set."""
    parts = []
    for name, title in PROBES.items():
        data = read(name)
        rows = [
            [rival, f"{row['seconds']:.2f}", f"{row['cpu_seconds']:.2f}", f"{100 * row['accuracy']:.2f}"]
            + [f"{row[key]:.4f}" if key in row else "" for key in ("ece", "brier", "nll")]
            for rival, row in data["rows"].items()
        ]
        head = [title, "s of fit and selection", "s of processor", "accuracy, %", "ECE", "Brier", "NLL"]
        parts.append(table(head, rows) + f"\n\n{source(data)}, {data['threads']} threads")
    data = read("probe_cuda")
    rows = [
        [rival, f"{row['seconds']['median']:.3f}", f"{100 * row['accuracy']:.2f}", f"{row['ece']:.4f}", f"{row['brier']:.4f}"]
        for rival, row in data["rows"].items()
    ]
    head = ["CIFAR-10 on a GPU", "s of fit and selection", "accuracy, %", "ECE", "Brier"]
    return "\n\n".join([*parts, table(head, rows) + f"\n\n{source(data)}"])


def ntk() -> str:
    """Kernel ridge on the CPU, beside NumPy and scikit-learn and beyond memory; then on a GPU."""
    return f"{_ntk_cpu(read('ntk_cpu'))}\n\n{_ntk_cuda(read('ntk_cuda'))}"


def _ntk_cpu(data: Any) -> str:
    rows = [
        [f"{what}, n = {part['n']:,}", name, f"{rival['seconds']['median']:.2f}", f"{rival['times_as_fast']:.1f}",
         f"{rival['peak_mb']:,.0f}"]
        for what, part in data["rows"].items() if what != "iterative"
        for name, rival in part["rivals"].items()
    ]  # fmt: skip
    head = ["", "by", "s", "times as fast", "MB beyond the inputs"]
    far = [
        [f"{row['n']:,}", f"{row['seconds']:.1f}", str(row["iterations"]), f"{row['residual']:.1e}", f"{row['peak_gb']:.2f}"]
        for row in data["rows"]["iterative"]
    ]
    beyond = table(["conjugate gradients, n", "s", "iterations", "relative residual", "GB of the process"], far)
    return f"{table(head, rows)}\n\n{beyond}\n\n{source(data)}, {data['threads']} threads"


def _ntk_cuda(data: Any) -> str:
    exact = [
        ("exact", row, sum(row[f"{part}_seconds"] for part in ("matrix", "factor", "solve"))) for row in data["rows"]["exact"]
    ]
    far = [("conjugate gradients", row, row["seconds"]) for row in data["rows"]["iterative"]]
    rows = [
        [f"{row['n']:,}", solver, f"{seconds:.2f}", f"{row['residual']:.1e}", f"{row['peak_gb']:.1f}"]
        for solver, row, seconds in [*exact, *far]
    ]
    return table(["on a GPU, n", "solver", "s of a fit", "relative residual", "GB"], rows) + f"\n\n{source(data)}"


# --- calibration, attacks


def speed() -> str:
    """Metrics beside torchmetrics and netcal."""
    data = read("calibration")
    tasks = {"bootstrap": "1,000 replicates, 10,000 x 100", "ece": "one ECE, 1,000,000 x 100"}
    rows = []
    for row in data["rows"]:
        clock = row["seconds"]
        measured = f"{clock['median']:.2f} ({clock['min']:.2f} to {clock['max']:.2f}), n = {clock['n']}"
        rows.append([tasks[row["task"]], row["name"], measured, f"{row['cpu_seconds']['median']:.2f}"])
    head = ["task", "", "clock, s: median (least to greatest)", "CPU, s"]
    return table(head, rows) + f"\n\n{source(data)}, {data['threads']} threads, load average {data['load_average']:.1f}"


def coverage() -> str:
    """How often intervals hold the truth."""
    data = read("calibration_coverage")
    factors = sorted({row["factor"] for row in data["rows"]})
    cells = {(row["metric"], row["factor"]): f"{row['ours']:.2f} ({row['plain']:.2f})" for row in data["rows"]}
    names = dict.fromkeys(row["metric"] for row in data["rows"])
    rows = [[f"`{name}`", *(cells[name, factor] for factor in factors)] for name in names]
    return table(["covered (plain quantiles)", *(f"factor {factor:g}" for factor in factors)], rows)


def attacks(device: str) -> str:
    """AutoAttack beside the published code: seconds, what is left, how many verdicts are the same; on a GPU, PGD-100 too."""
    data = read(f"attacks_{device}")
    seconds = {"published, s": "published_seconds", "ours, s": "seconds", "times as fast": "ratio"}
    shares = {
        "it leaves, %": "published_robust",
        "ours leaves, %": "robust",
        "same verdict, %": "same",
        "in parity mode, %": "same_in_parity_mode",
        "its own with another seed, %": "published_with_another_seed",
    }
    shares = {name: key for name, key in shares.items() if any(key in row for row in data["rows"])}
    rows = [
        [f"{row['network']}, {row['norm']} {row['eps']:g}" if "norm" in row else f"{row['network']}, {row['images']:,} images",
         row.get("attack", "autoattack"),
         *(f"{row[key]:.1f}" if key in row else "" for key in seconds.values()),
         *(f"{100 * row[key]:.1f}" if key in row else "" for key in shares.values())]
        for row in data["rows"]
    ]  # fmt: skip
    agreements = [read("attacks_parity_cuda")] if device == "cuda" else []
    for row in (row for one in agreements for row in one["rows"]):  # its seconds are of a busy chip
        left = [f"{100 * row[key]:.2f}" for key in shares.values()]
        rows.append([f"adversarial, {row['images']:,} images", "autoattack", *[""] * len(seconds), *left])
    return table(["network", "attack", *seconds, *shares], rows) + f"\n\n{source(data, *agreements)}"


def attack_losses() -> str:
    """What every attack leaves of networks trained with either loss."""
    data = read("attacks_losses_cuda")
    lefts: dict[str, dict[str, list[str]]] = {}
    for net in data["rows"]:
        for row in net["rows"]:
            lefts.setdefault(row["attack"], {})[net["network"]] = [f"{100 * left:.1f}" for left in row["robust"]]
    names = [net["network"] for net in data["rows"]]
    rows = [[attack, *("  ".join(by_net.get(name, [])) for name in names)] for attack, by_net in lefts.items()]
    radii = ", ".join(f"{255 * eps:.3g}" for eps in data["rows"][0]["eps"])
    rows.append(["passes of worst_case / autoattack", *("  ".join(_pass_ratios(net)) for net in data["rows"])])
    return f"What is left, in %, at {radii}/255:\n\n" + table(["attack", *names], rows) + f"\n\n{source(data)}"


def worst_case() -> str:
    """What `worst_case` leaves of a small network and spends, beside `autoattack` and single losses."""
    data = read("worst_case_cpu")
    radii = list(dict.fromkeys(row["eps"] for row in data["rows"]))
    by = {(row["attack"], row["eps"]): row for row in data["rows"]}
    lines = [
        [name, *(text for eps in radii for text in (f"{100 * by[name, eps]['robust']:.2f}", f"{by[name, eps]['passes']:,}"))]
        for name in dict.fromkeys(row["attack"] for row in data["rows"])
    ]
    head = [text for eps in radii for text in (f"left at {255 * eps:.3g}/255, %", "passes")]
    return table(["attack", *head], lines) + f"\n\n{source(data)}"


def _pass_ratios(net: dict[str, Any]) -> list[str]:
    """The forwards and backwards that `worst_case` spends over those of `autoattack`, at each radius."""
    rows = {row["attack"]: row for row in net["rows"]}
    worst, auto = (
        [f + b for f, b in zip(rows[name]["forwards"], rows[name]["backwards"], strict=True)]
        for name in ("worst_case", "autoattack")
    )
    return [f"{w / a:.2f}" for w, a in zip(worst, auto, strict=True)]


TABLES: dict[str, Callable[[], str]] = {
    "train-images": train_images,
    "train-stacked": train_stacked,
    "train-fast": train_fast,
    "loss-speed": loss_speed,
    "swap": swap,
    "swap-best": swap_best,
    "swap-ece": swap_ece,
    "linear": linear,
    "accuracy": accuracy,
    "estimator": estimator,
    "reading": reading,
    "probe": probe,
    "ntk": ntk,
    "speed": speed,
    "coverage": coverage,
    "attacks-cpu": lambda: attacks("cpu"),
    "attacks-cuda": lambda: attacks("cuda"),
    "attacks-losses": attack_losses,
    "worst-case-cpu": worst_case,
}
