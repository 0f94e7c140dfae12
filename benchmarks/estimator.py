"""`SquareLossClassifier` beside scikit-learn's `MLPClassifier`: seconds to fit, accuracy, calibration.

    python benchmarks/estimator.py             two threads of the CPU; about five minutes
    python benchmarks/estimator.py --rounds 3  a quick look

Digits (1797 x 64, 100 epochs) and two `make_classification(20_000, 100, n_informative=20)`, of 2 and of 10 classes (20 epochs).
The same for both: standardised inputs, one hidden layer of 100 and two of 500, batches of 200, Adam at 0.001, all epochs
run. A quarter is for testing (30% of digits); every round draws another split and another seed.

`SquareLossClassifier` as it comes holds a tenth of the training data back, keeps the best epoch and calibrates on it; so it is
shown beside `MLPClassifier` as it comes, which trains on everything, beside the one that holds a tenth back as well
(`early_stopping=True`), and beside the one given float32. "eta as it is" is square loss without any of that: it trains on
everything and reads the linear estimate, which is underconfident on such data. `HistGradientBoostingClassifier` is there for
reference, one round.

Bar: at least twice as fast as `MLPClassifier`, at equal or better accuracy and lower ECE (15 bins).
Every contender lives in a process of its own, warmed up, since threads that one library leaves waiting slow the other; rounds
are interleaved, in changing order. Speed is the median over rounds of the ratio within a round. The evidence, with mean and
spread, chip and versions, is in results/benchmarks/estimator.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import _evidence
import numpy as np
import sklearn
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

DATA: dict[str, tuple[Callable[[], Any], int, float]] = {  # how to load it, epochs, share for testing
    "digits": (lambda: load_digits(return_X_y=True), 100, 0.3),
    "synthetic, 2 classes": (lambda: make_classification(20_000, 100, n_informative=20, random_state=0), 20, 0.25),
    "synthetic, 10 classes": (
        lambda: make_classification(20_000, 100, n_informative=20, n_classes=10, random_state=0),
        20,
        0.25,
    ),
}
OURS, ETA = "SquareLossClassifier", "SquareLossClassifier, eta as it is"
THEIRS, HELD_OUT, SINGLE = "MLPClassifier", "MLPClassifier, a tenth held out", "MLPClassifier, float32"
TREES = "HistGradientBoostingClassifier"
CONTENDERS = (OURS, ETA, THEIRS, HELD_OUT, SINGLE, TREES)


def build(contender: str, hidden: tuple[int, ...], epochs: int, seed: int) -> Any:
    from squareloss import SquareLossClassifier

    if contender == TREES:
        return HistGradientBoostingClassifier(random_state=seed)
    if contender in (OURS, ETA):
        options = {
            "early_stopping": contender == OURS,
            "patience": epochs,
            "calibrate": contender == OURS,
            "random_state": seed,
        }
        return SquareLossClassifier(hidden, batch_size=200, learning_rate=1e-3, max_epochs=epochs, **options)
    options = {"early_stopping": contender == HELD_OUT, "tol": 0.0, "n_iter_no_change": epochs, "random_state": seed}
    return MLPClassifier(hidden, batch_size=200, learning_rate_init=1e-3, max_iter=epochs, **options)


def fit(contender: str, name: str, hidden: tuple[int, ...], seed: int) -> dict[str, float]:
    """One fit, timed, and how good its probabilities are. Runs in the contender's process."""
    import torch

    from squareloss import metrics

    warnings.filterwarnings("ignore", category=sklearn.exceptions.ConvergenceWarning)  # all epochs are run on purpose
    load, epochs, share = DATA[name]
    X, y = load()
    X, X_test, y, y_test = train_test_split(X, y, test_size=share, random_state=seed, stratify=y)
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    if contender == SINGLE:
        X, X_test = X.astype(np.float32), X_test.astype(np.float32)
    model = build(contender, hidden, epochs, seed)
    start, cpu = time.perf_counter(), time.process_time()
    model.fit(X, y)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    p, labels = torch.from_numpy(model.predict_proba(X_test)).double(), torch.from_numpy(y_test)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "accuracy": float(model.score(X_test, y_test)),
        "ece": float(metrics.ece(p, labels, bins=15)),
        "brier": float(metrics.brier(p, labels)),
    }


def compare(name: str, hidden: tuple[int, ...], rounds: int, pools: dict[str, ProcessPoolExecutor]) -> list[dict[str, Any]]:
    """All contenders, `rounds` times, one after the other; one row each."""
    runs: dict[str, list[dict[str, float]]] = {contender: [] for contender in CONTENDERS}
    for contender in (c for c in CONTENDERS if c != TREES):
        pools[contender].submit(fit, contender, name, hidden, 0).result()
    start = time.monotonic()
    for seed in range(rounds):
        for shift in range(len(CONTENDERS)):
            contender = CONTENDERS[(seed + shift) % len(CONTENDERS)]
            if contender == TREES and seed:
                continue  # for reference: once is enough
            runs[contender].append(pools[contender].submit(fit, contender, name, hidden, seed).result())
        left = (time.monotonic() - start) / (seed + 1) * (rounds - seed - 1)
        print(f"\r{name}, {hidden}: round {seed + 1} of {rounds}, {left:.0f} s left ", end="", flush=True)
    print()
    rows = []
    for contender, results in runs.items():
        ratios = [theirs["seconds"] / ours["seconds"] for theirs, ours in zip(results, runs[OURS], strict=False)]
        columns = {key: _evidence.spread([run[key] for run in results]) for key in results[0]}
        rows.append({"data": name, "hidden": hidden, "contender": contender, "slower": _evidence.spread(ratios), **columns})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'':36}{'seconds':>9}{'cpu':>8}{'x ours':>8}{'accuracy':>18}{'ece':>18}{'brier':>9}")
    for row in rows:
        accuracy, ece = row["accuracy"], row["ece"]
        print(
            f"{row['contender']:36}{row['seconds']['median']:9.3f}{row['cpu_seconds']['median']:8.3f}{row['slower']['median']:8.2f}"
            f"{100 * accuracy['mean']:11.2f} ({100 * accuracy['std']:.2f}){ece['mean']:10.4f} ({ece['std']:.4f})"
            f"{row['brier']['mean']:9.4f}"
        )


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether the bar is met on one data set."""
    by_name = {row["contender"]: row for row in rows}
    ours, theirs = by_name[OURS], by_name[THEIRS]
    return {
        "data": ours["data"],
        "hidden": ours["hidden"],
        "times_as_fast": round(theirs["slower"]["median"], 2),
        "twice_as_fast": theirs["slower"]["median"] >= 2,
        "accuracy_no_worse": ours["accuracy"]["mean"] >= theirs["accuracy"]["mean"],
        "ece_lower": ours["ece"]["mean"] < theirs["ece"]["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    rounds, threads = vars(parser.parse_args()).values()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)  # the contenders' processes inherit it
    pools = {contender: ProcessPoolExecutor(1, mp_context=get_context("spawn")) for contender in CONTENDERS}
    rows, verdicts = [], []
    versions = {"scikit-learn": sklearn.__version__, "numpy": np.__version__}
    for hidden, times in (((100,), rounds), ((500, 500), max(1, rounds // 2))):
        for name in DATA:
            rows += (some := compare(name, hidden, times, pools))
            verdicts.append(verdict(some))
            show(some)
            print(verdicts[-1])
            load = statistics.fmean(os.getloadavg()[1:])  # written every time: nothing is lost if it is stopped
            path = _evidence.write("estimator", rows, threads=threads, load_average=load, versions=versions, bar=verdicts)
    print(path)
    for pool in pools.values():
        pool.shutdown()


if __name__ == "__main__":
    main()
