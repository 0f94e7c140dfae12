"""The networks that benchmarks/attacks.py attacks: ResNet-18 on CIFAR-10, trained side by side and saved as classifiers.

    python benchmarks/attack_networks.py --data DIR --out NETS

DIR holds cifar-10-batches-bin. NETS/ce, NETS/sl (radius K) and NETS/sl_radius1 are trained by the recipe `fast`,
NETS/adversarial by ten epochs of it on PGD-3 examples at 8/255, enough to be worth attacking. Those that are there are kept.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from squareloss import Classifier, CrossEntropy, Simplex, SquareLoss
from squareloss.classifier import Standardize
from squareloss.lab.data import Dataset, load
from squareloss.lab.training import captured, loop
from squareloss.lab.training.loop import Diverged, Run
from squareloss.lab.training.recipes import FAST, Adversary, Recipe
from squareloss.losses import Loss
from squareloss.models import build

ADVERSARIAL = replace(FAST, epochs=10, warmup=1.0, lr=0.2, adversary=Adversary(3, step_size=4 / 255))
NORMAL: dict[str, Loss] = {
    "ce": CrossEntropy(),
    "sl": SquareLoss(Simplex(radius=10.0), scale=1.0),
    "sl_radius1": SquareLoss(Simplex(radius=1.0), scale=1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--epochs", type=int, default=FAST.epochs, help="at most so many, with as much less warm-up")
    arguments = parser.parse_args()
    data = load("cifar10", root=arguments.data, validation=0)
    for losses, recipe in ((NORMAL, FAST), ({"adversarial": CrossEntropy()}, ADVERSARIAL)):
        epochs = min(recipe.epochs, arguments.epochs)
        shorter = replace(recipe, epochs=epochs, warmup=recipe.warmup * epochs / recipe.epochs)
        missing = {name: loss for name, loss in losses.items() if not (arguments.out / name).exists()}
        if missing:
            make(missing, shorter, data, arguments.network, arguments.out)


def make(losses: dict[str, Loss], recipe: Recipe, data: Dataset, network: str, out: Path) -> None:
    """Train networks side by side, say how they did, and save them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    preprocess, start = Standardize(data.mean, data.std), time.perf_counter()
    runs = {}
    for name, loss in losses.items():
        torch.manual_seed(0)
        spec = {"name": network, "outputs": 10}
        runs[name] = Run(build(spec), loss, recipe, 0, data.train.x, data.train.y, preprocess)
    curves = captured.train(list(runs.values()), device)
    print(f"{', '.join(runs)}: {time.perf_counter() - start:.1f} s", flush=True)
    for (name, run), curve in zip(runs.items(), curves, strict=True):
        outputs = loop.outputs_of(run.network, data.test.x, preprocess=preprocess)
        accuracy = (run.loss.link.predict(outputs).cpu() == data.test.y).double().mean().item()
        diverged = " (diverged)" if isinstance(curve, Diverged) else ""
        Classifier(run.network, run.loss.link, preprocess).save(out / name)
        print(f"{name}: test accuracy {accuracy:.2%}{diverged}, saved in {out / name}", flush=True)


if __name__ == "__main__":
    main()
