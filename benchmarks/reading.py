"""How `SquareLossClassifier` should read its scores: what `calibrators.Asinh` with a floor does for its probabilities.

    python benchmarks/reading.py             one thread of the CPU; about a minute and a half
    python benchmarks/reading.py --seeds 1   a quick look

On every data set one network of 100 hidden units per seed, as the estimator trains it, a tenth held out; its scores are read in
the loss's own way, by a temperature, by `Asinh` without and with a floor, all fitted on the tenth, and as the estimator
chooses between the first and the last. Where labels are "wrong" a share of them, in training and testing alike, is drawn
anew among all classes. "sine" and "overlapping" are data whose classes overlap, which square loss estimates well as it is.
The evidence, with mean and spread over seeds, is in results/benchmarks/reading.json.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import _evidence
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.model_selection import train_test_split

from squareloss import SquareLossClassifier, metrics
from squareloss.calibrators import Asinh, Temperature

Data = tuple[np.ndarray, np.ndarray]


def synthetic(samples: int, classes: int, seed: int) -> Data:
    options = {"n_informative": 20, "n_clusters_per_class": 1 if classes > 50 else 2, "class_sep": 2, "flip_y": 0}
    X, y = make_classification(samples, 40, n_classes=classes, random_state=seed, **options)
    return X, y


def sine(samples: int, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (samples, 1))
    return x, (rng.random(samples) < 0.2 * (1 + np.sin(3 * x[:, 0]))).astype(int)


def overlapping(samples: int, classes: int, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    centres, y = 1.2 * rng.normal(size=(classes, 4)), rng.integers(classes, size=samples)
    return centres[y] + rng.normal(size=(samples, 4)), y


DATA: dict[str, tuple[Callable[[int], Data], float]] = {  # how to draw it, and the share of labels that are wrong
    "digits": (lambda seed: load_digits(return_X_y=True), 0.0),
    "digits, 20% wrong": (lambda seed: load_digits(return_X_y=True), 0.2),
    "breast cancer": (lambda seed: load_breast_cancer(return_X_y=True), 0.0),
    "synthetic, 2 classes": (lambda seed: synthetic(8000, 2, seed), 0.0),
    "synthetic, 2 classes, 20% wrong": (lambda seed: synthetic(8000, 2, seed), 0.2),
    "synthetic, 10 classes": (lambda seed: synthetic(8000, 10, seed), 0.0),
    "synthetic, 10 classes, 20% wrong": (lambda seed: synthetic(8000, 10, seed), 0.2),
    "synthetic, 100 classes": (lambda seed: synthetic(14000, 100, seed), 0.0),
    "synthetic, 100 classes, 20% wrong": (lambda seed: synthetic(14000, 100, seed), 0.2),
    "sine, 2 classes": (lambda seed: sine(8000, seed), 0.0),
    "overlapping, 3 classes": (lambda seed: overlapping(8000, 3, seed), 0.0),
    "overlapping, 10 classes": (lambda seed: overlapping(8000, 10, seed), 0.0),
}


def readings(name: str, loss: str, seed: int) -> dict[str, dict[str, float]]:
    """Brier score, likelihood and calibration error of one network's test probabilities, in every reading."""
    draw, wrong = DATA[name]
    X, y = draw(seed)
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(len(y)) < wrong, rng.integers(y.max() + 1, size=len(y)), y)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
    model = SquareLossClassifier((100,), loss, early_stopping=True, random_state=seed, device="cpu").fit(X, y)
    held_out = model._split(y)[1]
    link, outputs, test = model.loss_.link, model._forward(X[held_out]), model._forward(X_test)
    scores, labels = link.scores(outputs), torch.from_numpy(y[held_out])
    fits = {
        "Temperature": Temperature().fit(scores, labels),
        "Asinh": Asinh().fit(scores, labels),
        "Asinh, floor": Asinh().fit(scores, labels, floor=True),
    }
    found = {"own": model.loss_.probabilities(test), **{key: one.transform(link.scores(test)) for key, one in fits.items()}}
    found["estimator"] = torch.from_numpy(model.predict_proba(X_test))
    kinds = {"brier": metrics.brier, "nll": metrics.nll, "ece": metrics.ece}
    return {key: {kind: float(f(p, torch.from_numpy(y_test))) for kind, f in kinds.items()} for key, p in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="every held-out sample is classified right")
    rows: list[dict[str, Any]] = []
    cells = [(loss, name) for loss in ("simplex", "cross_entropy") for name in DATA]
    start = time.monotonic()
    for done, (loss, name) in enumerate(cells, 1):
        runs = [readings(name, loss, seed) for seed in range(seeds)]
        for key, first in runs[0].items():
            spreads = {kind: _evidence.spread([run[key][kind] for run in runs]) for kind in first}
            rows.append({"data": name, "loss": loss, "reading": key, **spreads})
            print(f"{loss:14}{name:36}{key:14}" + "".join(f"{kind} {spreads[kind]['mean']:.4f}  " for kind in spreads))
        print(f"{done} of {len(cells)}, {(time.monotonic() - start) / done * (len(cells) - done):.0f} s left", flush=True)
        path = _evidence.write("reading", rows, seeds=seeds)
    print(path)


if __name__ == "__main__":
    main()
