"""What accuracy a linear layer reaches with many classes: square loss against cross-entropy, each at its best learning rate.

    python benchmarks/huge_k.py                  1000 and 10,000 classes, the CPU; about an hour on two cores
    python benchmarks/huge_k.py --classes 1000   minutes; the rows of the others stay

The tasks: h = centre + noise in R^128, with class centres in uniform directions, all of norm 1 ("equal") or of norms uniform
between 0.5 and 1.5 ("unequal"); 50 (K = 1000) or 20 (K = 10,000) samples a class to train, 20,000 to test. The best any
classifier can do is the nearest true centre: `bayes`. Each loss trains the layer from zero by SGD with momentum 0.9, batches of
1000, 5 epochs, a rate that falls linearly to 0, tried at factors of sqrt(10) until the best one has a worse one on both sides.
`closed form` is the exact minimum of square loss plus lambda |W|^2, lambda by leave-one-out accuracy. "normalised" divides
each h by its norm first.
The evidence is in results/benchmarks/huge_k.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from _evidence import RESULTS, write
from torch import Tensor

from squareloss import OneHot, Simplex
from squareloss.codings import Coding
from squareloss.linear import linear_square_loss
from squareloss.ridge import FeaturePath, left_out

D, BATCH, EPOCHS, TEST = 128, 1000, 5, 20_000
TASKS = {1000: (50, 0.2), 10_000: (20, 0.17)}  # classes: samples of each, noise
NORMS = {"equal": (1.0, 1.0), "unequal": (0.5, 1.5)}
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Data = tuple[Tensor, Tensor, Tensor, Tensor]  # h, labels, test h, test labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = RESULTS / "huge_k.json"
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    rows: list[dict[str, Any]] = [row for row in kept if row["classes"] not in args.classes]

    def add(**row: Any) -> None:
        rows.append(row)
        write("huge_k", sorted(rows, key=lambda row: row["classes"]), d=D, batch=BATCH, epochs=EPOCHS, tasks=TASKS)
        print({key: value for key, value in row.items() if key != "tried"}, flush=True)

    for k, norms in itertools.product(args.classes, NORMS):
        centres, data = task(k, *NORMS[norms])
        add(classes=k, norms=norms, loss="bayes", accuracy=accuracy(data, centres, -0.5 * centres.square().sum(1)))
        add(classes=k, norms=norms, loss="closed form", **closed_form(k, data))
        for name, (loss, first) in losses(k).items():
            add(classes=k, norms=norms, loss=name, **tuned(k, data, loss, first, name))
        if norms == "unequal":
            unit = F.normalize(data[0]), data[1], F.normalize(data[2]), data[3]
            add(classes=k, norms=norms, loss="closed form, normalised", **closed_form(k, unit))


def losses(k: int) -> dict[str, tuple[Loss, float]]:
    """Each loss and the rate to begin with."""

    def square(coding: Coding) -> Loss:
        return lambda h, w, b, y: linear_square_loss(h, w, b, y, coding)

    return {
        "cross-entropy": (lambda h, w, b, y: F.cross_entropy(F.linear(h, w, b), y), 10.0),
        "Simplex()": (square(Simplex()), 0.1 * k),
        "OneHot(k=15, M=30)": (square(OneHot(15, 30)), 0.1 * k),
        "OneHot(k=K/5, M=5)": (square(OneHot(k / 5, 5)), 10.0),
    }


def task(k: int, low: float, high: float) -> tuple[Tensor, Data]:
    """The centres (K, d), of norms from low to high, and training and test samples."""
    each, noise = TASKS[k]
    generator = torch.Generator().manual_seed(k)
    centres = F.normalize(torch.randn(k, D, generator=generator))
    centres = centres * (low + (high - low) * torch.rand(k, 1, generator=generator))
    labels = torch.arange(k).repeat(each), torch.randint(k, (TEST,), generator=generator)
    h = [centres[y] + noise * torch.randn(len(y), D, generator=generator) for y in labels]
    return centres, (h[0], labels[0], h[1], labels[1])


def accuracy(data: Data, weight: Tensor, bias: Tensor) -> float:
    hits = [F.linear(h, weight, bias).argmax(1) == y for h, y in zip(data[2].split(BATCH), data[3].split(BATCH), strict=True)]
    return float(torch.cat(hits).float().mean())


def tuned(k: int, data: Data, loss: Loss, rate: float, name: str) -> dict[str, Any]:
    """The accuracy at the best rate: climb by factors of sqrt(10) until both neighbours are worse."""
    tried: dict[int, float] = {}

    def at(step: int) -> float:
        if step not in tried:
            tried[step] = train(k, data, loss, rate * 10 ** (step / 2), f"{k} classes, {name}")
        return tried[step]

    best = 0
    while True:
        better = max((best - 1, best, best + 1), key=at)
        if better == best:
            break
        best = better
    return {
        "accuracy": tried[best],
        "rate": rate * 10 ** (best / 2),
        "tried": {rate * 10 ** (s / 2): a for s, a in sorted(tried.items())},
    }


def train(k: int, data: Data, loss: Loss, rate: float, what: str) -> float:
    """Test accuracy after training; 0 if the loss is no longer finite."""
    weight, bias = torch.zeros(k, D, requires_grad=True), torch.zeros(k, requires_grad=True)
    optimiser = torch.optim.SGD([weight, bias], rate, momentum=0.9)
    generator, steps, begin = torch.Generator().manual_seed(0), EPOCHS * len(data[0]) // BATCH, time.perf_counter()
    step = 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(data[0]), generator=generator).split(BATCH):
            optimiser.param_groups[0]["lr"] = rate * (1 - step / steps)
            optimiser.zero_grad()
            value = loss(data[0][rows], weight, bias, data[1][rows])
            value.backward()
            optimiser.step()
            step += 1
            if step % 20 == 0:
                left = (time.perf_counter() - begin) / step * (steps - step)
                print(f"\r{what}, rate {rate:.3g}: {left:.0f} s left    ", end="", file=sys.stderr, flush=True)
                if not torch.isfinite(value):
                    return 0.0
    return accuracy(data, weight.detach(), bias.detach()) if torch.isfinite(weight).all() else 0.0


def closed_form(k: int, data: Data) -> dict[str, Any]:
    """Ridge on the codes; its leave-one-out accuracy needs the N x K outputs, so a sample of 5000 stands for all."""
    h, y = data[0].double(), data[1]
    codes = Simplex()
    levels = codes.levels(k)
    sums = torch.zeros(k, D, dtype=torch.float64).index_add_(0, y, h)
    counts = torch.bincount(y, minlength=k).double()
    mean, share = h.mean(0), counts / len(y)
    cross = (levels.on - levels.off) * (sums - counts.unsqueeze(1) * mean).T
    path = FeaturePath.from_scatter(
        (h - mean).T @ (h - mean), cross, mean, levels.off + (levels.on - levels.off) * share, len(y)
    )
    some = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:5000]
    projected, target = path.project(h[some]), codes.encode(y[some], k).double()
    ones = torch.ones(len(some), dtype=torch.float64)
    found = []
    for lam in path.grid():
        loo = left_out(target, path.fitted(projected, [lam])[0], path.slack(projected, ones, [lam])[0])
        found.append((float((loo.argmax(1) == y[some]).float().mean()), lam))
    lam = max(found)[1]
    coefficients, intercept = path.solve(lam)
    return {"accuracy": accuracy(data, coefficients.T.float(), intercept.float()), "lambda": lam}


if __name__ == "__main__":
    main()
