"""`attacks.worst_case` beside `attacks.autoattack` on networks trained with square loss: what each leaves and spends.

    python benchmarks/worst_case.py --data DIR                      two CPU cores; a quarter of an hour, most of it training
    python benchmarks/worst_case.py --data DIR --networks NET ... --images 10000 --suites worst_case   24 minutes a network

DIR holds cifar-10-batches-bin. Without networks, a ResNet-18 of width 16 is trained on 12,000 images brought to 16 x 16
pixels, towards codes of radius 10; the first 800 test images that it gets right are attacked. It misleads attacks as large
networks do: PGD on any one loss leaves many more than the suites. NET is a folder written by `Classifier.save`, of a network
for CIFAR-10; of the first --images of the test set those that it gets right are attacked at 2/255, with the search in
bfloat16. Bar: `worst_case` leaves no more than `autoattack` and spends a tenth of its passes. The evidence is in
results/benchmarks/worst_case*.json; results/images has the networks of the paper, by `reproduce`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _evidence import write
from torch import Tensor
from torch.nn.functional import avg_pool2d

from squareloss import Classifier, Simplex, SquareLoss, Standardize, attacks
from squareloss.attacks.results import AttackResult
from squareloss.lab.data import load
from squareloss.lab.training import loop
from squareloss.lab.training.loop import Run
from squareloss.lab.training.recipes import FAST
from squareloss.models import build

TRAIN, POINTS = 12_000, 800
RECIPE = replace(FAST, epochs=36, warmup=3.0, lr=0.2, batch_size=128, precision="float32")
EPS = (2 / 255, 3 / 255)
SUITES: dict[str, Callable[..., AttackResult]] = {
    "pgd-residual": lambda model, *args, **options: attacks.pgd(model, *args, loss="residual", coding=model.link, **options),
    "worst_case": lambda *args, **options: attacks.worst_case(*args, report=False, **options).result,
    "autoattack": attacks.autoattack,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--networks", nargs="+", metavar="NET")
    parser.add_argument("--images", type=int, default=160, help="for NET")
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=list(SUITES), help="for NET")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    if arguments.networks:
        return trained_networks(arguments.networks, arguments.data, arguments.images, arguments.suites)
    model, x, y = network(arguments.data)
    rows, more = [], {f"pgd-{loss}": partial(attacks.pgd, loss=loss) for loss in ("margin", "angle")}
    for eps in EPS:
        for name, run in {**more, **SUITES}.items():
            result = run(model, x, y, eps)
            rows.append({"eps": eps, "attack": name, "robust": result.robust_accuracy, "passes": result.passes})
            print(f"{255 * eps:g}/255 {name:>14} leaves {result.robust_accuracy:6.2%}, {result.passes} passes", flush=True)
            write("worst_case_cpu", rows, images=len(x))


def trained_networks(paths: list[str], data: str, images: int, suites: list[str]) -> None:
    """The suites on the images that each network gets right."""
    test = load("cifar10", root=data, validation=0).test
    x, y = test.x[:images].float() / 255, test.y[:images]
    rows: list[dict[str, Any]] = []
    for path in paths:
        model = Classifier.load(path).eval()
        right = model.predict(x) == y
        for name in suites:
            result = SUITES[name](model, x[right], y[right], 2 / 255, precision="bfloat16", progress=True)
            found = {
                "images": int(right.sum()),
                "robust": result.robust_accuracy,
                "passes": result.passes,
                "by": result.by_loss(),
            }
            rows.append({"network": Path(path).name, "eps": 2 / 255, "attack": name, **found})
            print(rows[-1], flush=True)
            write(f"worst_case_networks_cpu_{images}", rows)


def network(data: str) -> tuple[Classifier, Tensor, Tensor]:
    """The network, and the points that it gets right without an attack."""
    cifar = load("cifar10", root=data, validation=0)
    preprocess = Standardize(cifar.mean, cifar.std)
    torch.manual_seed(0)
    net = build({"name": "resnet18", "outputs": 10, "width": 16}).to(memory_format=torch.channels_last)
    loss, images = SquareLoss(Simplex(radius=10.0), scale=1.0), halved(cifar.train.x[:TRAIN])
    epoch = lambda e: print(f"epoch {e.epoch + 1} of {RECIPE.epochs}: {e.train_accuracy:.1%}, {e.seconds:.0f} s", flush=True)
    loop.train(Run(net, loss, RECIPE, 0, images, cifar.train.y[:TRAIN], preprocess, on_epoch=epoch), torch.device("cpu"))
    model = Classifier(net, loss.link, preprocess).eval()
    x, y = halved(cifar.test.x[: 2 * POINTS]).float() / 255, cifar.test.y[: 2 * POINTS]
    right = model.predict(x) == y
    print(f"accuracy {right.double().mean():.1%}", flush=True)
    return model, x[right][:POINTS], y[right][:POINTS]


def halved(images: Tensor) -> Tensor:
    """Bytes (N, C, H, W) to bytes (N, C, H / 2, W / 2)."""
    return avg_pool2d(images.float(), 2).round().to(torch.uint8)


if __name__ == "__main__":
    main()
