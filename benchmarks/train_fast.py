"""The `fast` recipe: ResNet-18 on CIFAR-10 to 94%, with square loss and with cross-entropy.

    python benchmarks/train_fast.py --data DIR [--seeds 3]

DIR holds cifar-10-batches-bin. Each network is trained alone; seconds are of training, compilation and capture apart.
"""

from __future__ import annotations

import argparse
import time

import torch
from _evidence import spread, write

from squareloss import CrossEntropy, SquareLoss
from squareloss.classifier import Standardize
from squareloss.lab.data import load
from squareloss.lab.training import captured, loop
from squareloss.lab.training.loop import Run
from squareloss.lab.training.recipes import FAST
from squareloss.models import build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    data = load("cifar10", root=arguments.data, validation=0)
    preprocess = Standardize(data.mean, data.std)
    rows = []
    for name, loss in (("SL", SquareLoss()), ("CE", CrossEntropy())):
        accuracy, seconds, totals = [], [], []
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            run = Run(build({"name": "resnet18", "outputs": 10}), loss, FAST, seed, data.train.x, data.train.y, preprocess)
            start = time.perf_counter()
            (curve,) = captured.train([run], "cuda")
            totals.append(time.perf_counter() - start)
            outputs = loop.outputs_of(run.network, data.test.x, preprocess=preprocess)
            accuracy.append((loss.link.predict(outputs).cpu() == data.test.y).double().mean().item() * 100)
            seconds.append(curve[-1].seconds)
            print(name, seed, f"{accuracy[-1]:.2f}% in {seconds[-1]:.1f} s ({totals[-1]:.1f} with set-up)", flush=True)
        rows.append({"loss": name, "accuracy": spread(accuracy), "seconds": spread(seconds), "with_setup": totals})
    print(write("train_fast", rows, recipe=str(FAST)))


if __name__ == "__main__":
    main()
