"""`RidgeProbe` against logistic regression and `RidgeClassifierCV`: time of fit and model selection, accuracy, calibration.

    python benchmarks/probe.py                                   digits, 1000 random ReLU features; minutes
    python benchmarks/probe.py --data DIR                        CIFAR-10 in DIR, random convolutional features; an hour
    python benchmarks/probe.py --embeddings FILE.npz             any arrays train_x, train_y, test_x, test_y
    python benchmarks/probe.py --data DIR --device cuda          the CIFAR-10 fit, path and leave-one-out on a GPU

Every rival gets the same features, standardised, and two cores. Logistic regression is `LogisticRegressionCV`: lbfgs, its 10
values of C, 5 folds, at most 500 iterations, a process per core; its probabilities are taken as they come. `RidgeClassifierCV`
and `RidgeProbe` choose among 28 values of lambda by leave-one-out. On embeddings there is also `RidgeProbe` on 1024 and on 2048
random ReLU features of them, whose time counts. Digits: 5 folds of the 1797, float64; times are means, the rest is of all
held-out predictions together. CIFAR-10: its own split, float32, 128 whitened patches as filters, pooled 2 x 2: 50,000 x 512.
ECE has 15 bins; `ece_if_calibrated` is its mean when labels are drawn from the probabilities themselves, the noise of a perfect
classifier. Beside the wall time there is the processor time of all threads and processes, which busy neighbours change less.
Bars against logistic regression: a tenth of the time, accuracy within half a point, ECE and Brier score no larger; on an H200
under 1 s. The evidence is in results/benchmarks/probe_digits.json, probe_cifar10.json and so on.
"""

from __future__ import annotations

import argparse
import functools
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from _evidence import spread, write
from joblib.externals.loky import get_reusable_executor
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV, RidgeClassifierCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from torch import Tensor

from squareloss import metrics
from squareloss.probe import RandomFeatures, RidgeProbe

Arrays = tuple[Any, Any, Any, Any]  # train_x, train_y, test_x, test_y
ARRAYS = ("train_x", "train_y", "test_x", "test_y")
PATCH, FILTERS = 6, 128
LOGISTIC, PROBE = "logistic regression, CV", "RidgeProbe"
WIDE = {f"RidgeProbe on {width} random features": width for width in (1024, 2048)}


class Run(NamedTuple):
    """One rival on one split: labels are 0, ..., K - 1."""

    seconds: float
    cpu_seconds: float
    predicted: Any
    probabilities: Any
    truth: Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with cifar-10-batches-bin")
    parser.add_argument("--embeddings", type=Path, help="an .npz file with train_x, train_y, test_x, test_y")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="where the convolutional features are kept")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.device == "cuda":
        on_gpu(cifar(args.data, args.cache, "cuda"))
        return
    if args.data is None and args.embeddings is None:
        digits(args.threads)
    if args.data is not None:
        finish("cifar10", [race(rivals(args.threads, wide=True), cifar(args.data, args.cache, "cpu"))], args.threads)
    if args.embeddings is not None:
        content = np.load(args.embeddings)
        finish(
            args.embeddings.stem, [race(rivals(args.threads, wide=True), tuple(content[name] for name in ARRAYS))], args.threads
        )


def digits(threads: int) -> None:
    """Five folds of the digits, each with random features of its own."""
    x, y = load_digits(return_X_y=True)
    runs = []
    for seed, (train, test) in enumerate(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y)):
        features = RandomFeatures(1000, keep=False, random_state=seed).fit(x[train])
        runs.append(
            race(rivals(threads, wide=False), (features.transform(x[train]), y[train], features.transform(x[test]), y[test]))
        )
    finish("digits", runs, threads)


def finish(name: str, runs: list[dict[str, Run]], threads: int) -> None:
    """Put the held-out predictions of all runs together, judge them, and write the evidence."""
    rows: dict[str, dict[str, Any]] = {}
    for rival in runs[0]:
        seconds = [run[rival].seconds for run in runs]
        predicted, truth = (np.concatenate([getattr(run[rival], part) for run in runs]) for part in ("predicted", "truth"))
        rows[rival] = {
            "seconds": statistics.fmean(seconds),
            "cpu_seconds": statistics.fmean(run[rival].cpu_seconds for run in runs),
            "runs": spread(seconds),
            "accuracy": float(np.mean(predicted == truth)),
        }
        if runs[0][rival].probabilities is not None:
            rows[rival].update(scores(np.concatenate([run[rival].probabilities for run in runs]), truth))
        told = {key: round(value, 4) for key, value in rows[rival].items() if key != "runs"}
        print(f"  {rival:38} {told}")
    verdicts = {other: verdict(rows[LOGISTIC], row) for other, row in rows.items() if "brier" in row and other != LOGISTIC}
    for other, said in verdicts.items():
        print(f"  {other}: {said}")
    print(f"wrote {write(f'probe_{name}', rows, threads=threads, against_logistic_regression=verdicts)}")


def verdict(reference: dict[str, float], row: dict[str, float]) -> dict[str, Any]:
    faster, gain = reference["seconds"] / row["seconds"], 100 * (row["accuracy"] - reference["accuracy"])
    bars = {
        "time": faster >= 10,
        "accuracy": gain >= -0.5,
        "ece": row["ece"] <= reference["ece"],
        "ece, up to noise": row["ece"] <= max(reference["ece"], row["ece_if_calibrated"]),
        "brier": row["brier"] <= reference["brier"],
    }
    cpu = reference["cpu_seconds"] / row["cpu_seconds"]
    return {"times_as_fast": round(faster, 1), "by_processor_time": round(cpu, 1), "points": round(gain, 2), "met": bars}


def rivals(threads: int, *, wide: bool) -> dict[str, Callable[[], Any]]:
    """What is compared: functions that make an unfitted model."""
    known: dict[str, Callable[[], Any]] = {
        PROBE: RidgeProbe,
        "RidgeProbe, temperature only": lambda: RidgeProbe(calibration="temperature"),
    }
    if wide:
        known |= {name: functools.partial(widened, width) for name, width in WIDE.items()}
    known["RidgeClassifierCV"] = lambda: RidgeClassifierCV(alphas=np.logspace(-6, 3, 28) * 1000)
    known[LOGISTIC] = lambda: LogisticRegressionCV(cv=5, max_iter=500, n_jobs=threads, scoring="accuracy", **quiet())
    return known


def widened(width: int) -> Any:
    return make_pipeline(RandomFeatures(width), RidgeProbe())


def quiet() -> dict[str, Any]:
    """Options that keep new releases of scikit-learn from warning about their own changes."""
    return {"l1_ratios": (0.0,), "use_legacy_attributes": False} if "use_legacy_attributes" in _parameters() else {}


def _parameters() -> set[str]:
    return set(LogisticRegressionCV().get_params())


def race(known: dict[str, Callable[[], Any]], data: Arrays) -> dict[str, Run]:
    """Each rival fitted on standardised features, and what it says of the test set."""
    train_x, train_y, test_x, test_y = data
    mean, scale = train_x.mean(0), train_x.std(0) + 1e-12
    train_x, test_x = ((x - mean) / scale for x in (train_x, test_x))
    runs = {}
    for name, make in known.items():
        print(f"\r  fitting {name:40}", end="", file=sys.stderr, flush=True)
        model = make()
        begin, cpu = time.perf_counter(), processor_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(train_x, train_y)
        seconds = time.perf_counter() - begin
        get_reusable_executor().shutdown(wait=True)  # so that the time of the workers is known
        p = model.predict_proba(test_x) if hasattr(model, "predict_proba") else None
        runs[name] = Run(seconds, processor_time() - cpu, model.predict(test_x), p, test_y)
        print(f" {seconds:.2f} s   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return runs


def processor_time() -> float:
    """Seconds of the processor used by this process and by those it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def scores(probabilities: Any, labels: Any) -> dict[str, float]:
    p, y = torch.from_numpy(np.asarray(probabilities, dtype=np.float64)), torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(0)
    drawn = [float(metrics.ece(p, torch.multinomial(p, 1, generator=generator)[:, 0])) for _ in range(200)]
    return {
        "ece": float(metrics.ece(p, y)),
        "ece_if_calibrated": statistics.fmean(drawn),
        "brier": float(metrics.brier(p, y)),
        "nll": float(metrics.nll(p, y)),
    }


def cifar(folder: Path, cache: Path | None, device: str) -> Arrays:
    """Random convolutional features of CIFAR-10, (50000, 512) and (10000, 512)."""
    if cache is not None and cache.exists():
        content = np.load(cache)
        return tuple(content[name] for name in ARRAYS)
    from squareloss.lab.data import load

    dataset = load("cifar10", root=folder, validation=0.0)
    images, test_images = dataset.train.x, dataset.test.x
    filters = patches_as_filters(images)
    train_x, test_x = (convolved(part, *filters, device) for part in (images, test_images))
    data = train_x, dataset.train.y.numpy(), test_x, dataset.test.y.numpy()
    if cache is not None:
        np.savez(cache, **dict(zip(ARRAYS, data, strict=True)))
    return data


def patches_as_filters(images: Tensor) -> tuple[Tensor, Tensor]:
    """Filters (F, p) and their biases (F,): random patches, normalised and whitened, as Coates and Ng (2012) have them."""
    generator = torch.Generator().manual_seed(0)
    count, side = 100_000, images.shape[-1] - PATCH + 1
    which = torch.randint(len(images), (count,), generator=generator)
    row, column = (torch.randint(side, (count,), generator=generator) for _ in range(2))
    offset = torch.arange(PATCH)
    cut = images[which[:, None, None], :, row[:, None, None] + offset[:, None], column[:, None, None] + offset]  # (n, 6, 6, 3)
    patches = normalised(cut.permute(0, 3, 1, 2).reshape(count, -1).float().T).T
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh((patches - mean).T @ (patches - mean) / count)
    whiten = vectors / (values + 0.1).sqrt() @ vectors.T
    chosen = (patches[:FILTERS] - mean) @ whiten
    filters = chosen / chosen.norm(dim=1, keepdim=True) @ whiten
    return filters, -(filters @ mean) - 0.5


def normalised(patches: Tensor) -> Tensor:
    """Patches in columns (..., p, n) with brightness and contrast removed."""
    patches = patches - patches.mean(-2, keepdim=True)
    return patches / (patches.var(-2, keepdim=True) + 10).sqrt()


def convolved(images: Tensor, filters: Tensor, bias: Tensor, device: str) -> Any:
    """relu of the filtered patches, averaged over each quarter of the image, (n, 4 F)."""
    filters, bias, parts, begin = filters.to(device), bias.to(device), [], time.perf_counter()
    side = images.shape[-1] - PATCH + 1
    for i in range(0, len(images), 200):
        patches = normalised(F.unfold(images[i : i + 200].to(device).float(), PATCH))
        maps = torch.matmul(filters, patches).add_(bias[:, None]).relu_().view(len(patches), -1, side, side)
        parts.append(F.adaptive_avg_pool2d(maps, 2).flatten(1).cpu())
        left = (time.perf_counter() - begin) / (i + 200) * (len(images) - i - 200)
        print(f"\rfeatures: {i + 200} of {len(images)} images, {left:.0f} s left   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return torch.cat(parts).numpy()


def on_gpu(data: Arrays) -> None:
    """Fit, path and leave-one-out of tensors on a GPU, five times after one to warm up."""
    tensors = [torch.from_numpy(np.asarray(part)).cuda() for part in data]
    rows = {}
    for name, make in {PROBE: RidgeProbe, **{name: functools.partial(widened, width) for name, width in WIDE.items()}}.items():
        seconds = []
        for i in range(6):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model = make().fit(tensors[0], tensors[1])
            torch.cuda.synchronize()
            if i:
                seconds.append(time.perf_counter() - begin)
        hit = (model.predict(tensors[2]) == tensors[3]).double().mean()
        p = model.predict_proba(tensors[2]).cpu().numpy()
        rows[name] = {"seconds": spread(seconds), "accuracy": float(hit), **scores(p, tensors[3].cpu().numpy())}
        print(f"  {name:38} {rows[name]}")
    print(f"wrote {write('probe_cuda', rows, bar_seconds=1.0)}")


if __name__ == "__main__":
    main()
