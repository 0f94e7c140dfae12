"""Every metric with 1,000 bootstrap replicates, beside a loop over torchmetrics; one ECE, beside torchmetrics and netcal.

    python benchmarks/calibration.py              two threads of the CPU; two to five minutes, 2 GB of memory
    python benchmarks/calibration.py --coverage   how often 95% intervals hold the truth; five minutes on one thread

Bootstrap: `metrics.evaluate(p, y, bootstrap=1000)` of 10,000 x 100 float32 probabilities: all eight metrics. torchmetrics has
two of them, the calibration error and the accuracy; its loop draws the samples, indexes them and computes these two. It is
timed for 20 replicates a round and scaled to 1,000. Bar: under 2 s on two cores.
ECE: one call on 1,000,000 x 100 float32 probabilities each. Bar: no slower than torchmetrics and netcal.
Rounds are interleaved. CPU seconds are shown beside the clock's, which suffer when other work shares the cores; there, set
OMP_WAIT_POLICY=PASSIVE, so that threads that wait do not spin.
The evidence is in results/benchmarks/calibration.json, and by `docs/fill.py` in docs/calibration.md.

Coverage: ten classes whose probabilities are known, made too sharp by a factor; 200 sets of 2,000 samples each, 300 replicates.
The truth is the metric of 2,000,000 samples, and 0 for the calibration errors of the factor 1. The table is in
results/benchmarks/calibration_coverage.json, with what plain quantiles of the replicates would cover.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from importlib.metadata import version

import torch
from _evidence import spread, write
from netcal.metrics import ECE
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from squareloss import metrics

CLASSES, REPLICATES, LOOPED = 100, 1000, 20


def predictions(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities a little too sharp for their labels, (samples, 100)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(samples, CLASSES, generator=generator).mul_(2)
    p = logits.softmax(1)
    labels = torch.multinomial(p, 1, generator=generator).squeeze(1)
    return logits.mul_(1.2).softmax(1), labels


def loop_of_torchmetrics(p: torch.Tensor, y: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(LOOPED):
        index = torch.randint(len(y), (len(y),), generator=generator)
        q, t = p[index], y[index]
        multiclass_calibration_error(q, t, num_classes=CLASSES, n_bins=15)
        multiclass_accuracy(q, t, num_classes=CLASSES, average="micro")


def race(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds on the clock and of the CPU, of every call in every round, one after the other, after a round to warm up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            clock, cpu = time.perf_counter(), time.process_time()
            call()
            if turn:
                times[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    return times


def row(task: str, name: str, times: list[tuple[float, float]], factor: float = 1.0) -> dict[str, object]:
    clock, cpu = (spread([factor * t for t in column]) for column in zip(*times, strict=True))
    between = f"{clock['min']:.3f} to {clock['max']:.3f}, n = {clock['n']}"
    print(f"{task:<10} {name:<34} median {clock['median']:8.3f} s   {between}   CPU {cpu['median']:.3f} s")
    return {"task": task, "name": name, "seconds": clock, "cpu_seconds": cpu}


def known(samples: int, factor: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of ten classes, `factor` times too sharp, and labels from the right ones."""
    logits = torch.randn(samples, 10, generator=generator, dtype=torch.float64) * 2.5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (factor * logits).softmax(1), labels


def coverage(factor: float, sets: int = 200) -> list[dict[str, object]]:
    """Per metric: the truth, the mean estimate, and the share of the sets whose interval holds the truth."""
    generator = torch.Generator().manual_seed(1)
    truth = {name: float(m) for name, m in metrics.evaluate(*known(2_000_000, factor, generator), bootstrap=0).items()}
    if factor == 1:
        truth = {name: 0.0 if "ece" in name else value for name, value in truth.items()}
    drawn = [metrics.evaluate(*known(2000, factor, generator), bootstrap=300, seed=i) for i in range(sets)]
    rows: list[dict[str, object]] = []
    for name, value in truth.items():
        held = sum(e[name].low <= value <= e[name].high for e in drawn)  # type: ignore[operator]
        ends = [torch.quantile(e.replicates[name], torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist() for e in drawn]
        plain = sum(low <= value <= high for low, high in ends)
        mean = sum(float(e[name]) for e in drawn) / sets
        rows.append(
            {"factor": factor, "metric": name, "truth": value, "mean": mean, "ours": held / sets, "plain": plain / sets}
        )
        print(f"{factor:<5} {name:<15} truth {value:.4f}  mean {mean:.4f}  covered {held / sets:.2f}  plain {plain / sets:.2f}")
    return rows


def speed(rounds: int, threads: int) -> None:
    rows = []

    p, y = predictions(10_000)
    calls = {
        "squareloss, all eight metrics": lambda: metrics.evaluate(p, y, bootstrap=REPLICATES),
        "torchmetrics, two of them, scaled": lambda: loop_of_torchmetrics(p, y),
    }
    for name, values in race(calls, rounds).items():
        rows.append(row("bootstrap", name, values, REPLICATES / LOOPED if "scaled" in name else 1.0))

    big, labels = predictions(1_000_000)
    big_np, labels_np = big.numpy(), labels.numpy()
    calls = {
        "squareloss": lambda: metrics.ece(big, labels),
        "torchmetrics": lambda: multiclass_calibration_error(big, labels, num_classes=CLASSES, n_bins=15),
        "torchmetrics, no validation": lambda: multiclass_calibration_error(
            big, labels, num_classes=CLASSES, n_bins=15, validate_args=False
        ),
        "netcal": lambda: ECE(15).measure(big_np, labels_np),
    }
    rows += [row("ece", name, values) for name, values in race(calls, rounds).items()]

    path = write(
        "calibration",
        rows,
        threads=threads,
        load_average=os.getloadavg()[0],
        versions={name: version(name) for name in ("torchmetrics", "netcal", "numpy")},
        sizes={"bootstrap": [10_000, CLASSES, REPLICATES], "ece": [1_000_000, CLASSES]},
        looped_replicates=LOOPED,
    )
    print(f"wrote {os.path.relpath(path)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--coverage", action="store_true")
    options = parser.parse_args()
    if options.coverage:
        torch.set_num_threads(1)
        write("calibration_coverage", [entry for factor in (1.0, 1.15, 1.5) for entry in coverage(factor)])
        return
    torch.set_num_threads(options.threads)
    speed(options.rounds, options.threads)


if __name__ == "__main__":
    main()
