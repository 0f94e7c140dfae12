"""Is the swap safe? Square loss where cross-entropy stood, at the learning rate that was tuned for cross-entropy.

    python benchmarks/swap.py                two threads of the CPU; about half an hour on quiet cores
    python benchmarks/swap.py --classes 10   one task; the others in the file stay

An MLP of two hidden layers of 500, SGD with momentum 0.9 and weight decay 5e-4, batches of 128, the learning rate falling to
zero along a cosine. Data: scikit-learn's digits, and K = 10, 100, 200, 1000 Gaussian classes around random centres in 64
dimensions, bent by a random layer, noisy enough to leave cross-entropy 20 to 30% of errors. The learning rate is that of .01,
.03, .1 with which cross-entropy does best on validation data (seed 0); then all losses train with it, two or three seeds, and
are tested on other data: accuracy, and ECE as trained, with a temperature and with `Asinh`, fitted on validation data. What
each loss reaches at every learning rate (seed 0, validation data) is in the file too.

Bar: at K <= 200 `SquareLoss()` within one point of cross-entropy, or better. The table and its reading are in
docs/many_classes.md; the evidence in results/benchmarks/swap.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import _evidence
import torch
from torch import Tensor

from squareloss import CrossEntropy, OneHot, SquareLoss, Squentropy, metrics
from squareloss.calibrators import CALIBRATORS
from squareloss.losses import Loss
from squareloss.models import MLP

RATES = (0.01, 0.03, 0.1)
WEIGHT_DECAY = 5e-4
CALIBRATED = ("temperature", "asinh")
LOSSES: dict[str, Callable[[int], Loss]] = {  # of the number of classes
    "cross-entropy": lambda K: CrossEntropy(),
    "SquareLoss()": lambda K: SquareLoss(),
    "Squentropy()": lambda K: Squentropy(),
    "SquareLoss(OneHot(k=K/20, M=15), scale=1)": lambda K: SquareLoss(OneHot(k=K / 20, M=15), scale=1.0),
    "SquareLoss(OneHot(k=K/5, M=5))": lambda K: SquareLoss(OneHot(k=K / 5, M=5)),
}


class Task(NamedTuple):
    """Classes, training samples per class, noise of the Gaussians (None: digits), epochs, seeds."""

    classes: int
    per_class: int
    noise: float | None
    epochs: int
    seeds: int


TASKS = {
    "digits": Task(10, 0, None, 60, 3),
    "10": Task(10, 500, 3.0, 20, 3),
    "100": Task(100, 200, 2.0, 20, 2),
    "200": Task(200, 200, 2.0, 20, 3),
    "1000": Task(1000, 50, 1.5, 6, 2),
}


class Data(NamedTuple):
    """Inputs (N, d) and class indices (N,), standardised, for training, validation and testing."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load(task: Task) -> Data:
    if task.noise is None:
        return _digits()
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(task.classes, 64, generator=generator)
    layer = torch.randn(64, 64, generator=generator) / 8

    def draw(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(task.classes, (n,), generator=generator)
        z = centres[y] + task.noise * torch.randn(n, 64, generator=generator)
        return torch.tanh(z @ layer) + z / 2, y

    return _standardised(draw(task.classes * task.per_class), draw(5000), draw(10_000))


def _digits() -> Data:
    from sklearn.datasets import load_digits

    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    parts = [(x[i].float(), y[i].long()) for i in order.split([997, 300, 500])]
    return _standardised(*parts)


def _standardised(train: tuple[Tensor, Tensor], *others: tuple[Tensor, Tensor]) -> Data:
    mean, std = train[0].mean(0), train[0].std(0).clamp_min(1e-6)
    return Data(*(((x - mean) / std, y) for x, y in (train, *others)))


def train(data: Data, loss: Loss, rate: float, task: Task, seed: int) -> MLP | None:
    """The trained network, or None if it diverged."""
    x, y = data.train
    generator = torch.Generator().manual_seed(seed)
    network = MLP(x.shape[1], (500, 500), task.classes, generator=generator)
    optimiser = torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=WEIGHT_DECAY)
    steps = task.epochs * math.ceil(len(y) / 128)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(task.epochs):
        for index in torch.randperm(len(y), generator=generator).split(128):
            value = loss(network(x[index]), y[index])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()
        if not torch.isfinite(value.detach()):
            return None
    return network


@torch.no_grad()
def accuracy(network: MLP, loss: Loss, part: tuple[Tensor, Tensor]) -> float:
    """In percent."""
    return 100 * float((loss.link.predict(network(part[0])) == part[1]).double().mean())


@torch.no_grad()
def tested(network: MLP, loss: Loss, data: Data) -> dict[str, float]:
    """Accuracy in percent, ECE of the loss's own probabilities, and ECE with calibrators fitted on validation data."""
    outputs, y = network(data.test[0]), data.test[1]
    found = {"accuracy": accuracy(network, loss, data.test), "ece": float(metrics.ece(loss.probabilities(outputs), y))}
    held = loss.link.scores(network(data.validation[0]))
    for name in CALIBRATED:
        calibrator = CALIBRATORS[name]().fit(held, data.validation[1])
        found[f"ece_with_{name}"] = float(metrics.ece(calibrator.transform(loss.link.scores(outputs)), y))
    return found


def run(name: str, task: Task) -> list[dict[str, Any]]:
    """One row per loss."""
    data, losses = load(task), {label: make(task.classes) for label, make in LOSSES.items()}
    networks: dict[tuple[str, float, int], MLP | None] = {}  # by loss, rate and seed

    def train_all(runs: list[tuple[str, float, int]], what: str) -> None:
        start = time.monotonic()
        for done, (label, rate, seed) in enumerate(runs, 1):
            networks[label, rate, seed] = train(data, losses[label], rate, task, seed)
            left = (time.monotonic() - start) / done * (len(runs) - done)
            print(f"\r{name}, {what}: run {done} of {len(runs)}, {left:.0f} s left   ", end="", flush=True)
        print()

    train_all([(label, rate, 0) for label in LOSSES for rate in RATES], "tuning")
    by_rate: dict[str, dict[float, float]] = {label: {} for label in LOSSES}  # without those that diverged
    for label, rate, _ in networks:
        if (network := networks[label, rate, 0]) is not None:
            by_rate[label][rate] = accuracy(network, losses[label], data.validation)
    tuned = max(by_rate["cross-entropy"], key=by_rate["cross-entropy"].__getitem__)
    train_all([(label, tuned, seed) for label in LOSSES for seed in range(1, task.seeds)], "other seeds")
    rows = []
    for label, loss in losses.items():
        good = [tested(n, loss, data) for seed in range(task.seeds) if (n := networks[label, tuned, seed]) is not None]
        row = {"data": name, **task._asdict(), "loss": label, "rate": tuned, "diverged": task.seeds - len(good)}
        for key in ("accuracy", "ece", *(f"ece_with_{name}" for name in CALIBRATED)):
            row[key] = _evidence.spread([found[key] for found in good]) if good else None
        rows.append(row | {"validation_by_rate": by_rate[label]})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        rates = ", ".join(f"{accuracy:.2f} at {rate}" for rate, accuracy in row["validation_by_rate"].items())
        result = "diverged"
        if row["accuracy"]:
            mended = ", ".join(f"with {name} {row[f'ece_with_{name}']['mean']:.4f}" for name in CALIBRATED)
            ece = f"ece {row['ece']['mean']:.4f}, {mended}"
            result = f"{row['accuracy']['mean']:.2f} ({row['accuracy']['std']:.2f}), {ece}"
        print(f"{row['loss']:42}{result} at {row['rate']}; by rate {rates}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", nargs="*", default=list(TASKS), choices=list(TASKS), help="which rows; default all")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = _evidence.RESULTS / "swap.json"
    for name in options.classes:
        rows = run(name, TASKS[name])
        show(rows)
        kept = json.loads(path.read_text())["rows"] if path.exists() else []
        kept = [row for row in kept if row["data"] != name] + rows
        print(_evidence.write("swap", sorted(kept, key=lambda row: list(TASKS).index(row["data"]))))


if __name__ == "__main__":
    main()
