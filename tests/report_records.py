"""Results like those of `compare`, in a folder, for the tests of the report."""

import numpy as np

from squareloss.lab.report import gather
from squareloss.lab.report.header import Column, Header
from squareloss.lab.runs import Cell, Job, Result, Store


def metrics(level, seed, reading_gain):
    """A result like those of compare; `level` moves the accuracy, `reading_gain` the ECE that a temperature saves."""
    rng = np.random.default_rng(100 * seed + 7)
    wobble = float(rng.normal(0, 0.002))
    level *= 1 + 1e-5 * seed  # differences that are equal for all seeds would have no interval
    accuracy, ece = level + wobble, 0.06 - (level - 0.9) + wobble / 2
    bins = {"count": [0] * 10 + [5, 10, 20, 40, 125], "confidence": [0.0] * 10 + [0.7, 0.75, 0.83, 0.9, 0.97]}
    bins["accuracy"] = [0.0] * 10 + [0.6, 0.8, 0.8, 0.95, 0.99]
    return {
        "accuracy": accuracy, "nll_temperature": 0.3 - level / 10, "temperature": 1.2, "temperature_fitted": True, "lr": 0.1,
        "grid": [{"lr": lr, "accuracy": accuracy - abs(lr - 0.1), "nll": 0.2} for lr in (0.03, 0.1, 0.3)],
        "robust_0.1": level - 0.4 + wobble,
        "readings": {
            "": {"ece": ece, "brier": 0.1 - level / 20, "reliability": bins},
            "+temperature": {"ece": ece - reading_gain * (1 + 1e-7 * seed), "brier": 0.09 - 1e-7 * seed - level / 20,
                             "reliability": bins},
        },
        "noise": {"std": [0.1, 0.2], "accuracy": [accuracy - 0.05, accuracy - 0.2]},
        "attacks": {"norm": "linf", "eps": [0.05, 0.1], "points": 50, "clean": accuracy,
                    "robust": {"ce": [0.8, 0.6], "margin": [0.82, 0.61], "worst case": [0.78, level - 0.4]}},
        "curve": {"epoch": [1, 2, 3], "loss": [1.0, 0.5, 0.3], "train_accuracy": [0.6, 0.8, 0.95]},
    }  # fmt: skip


COLUMNS = [
    Column("accuracy", "accuracy", "higher", percent=True),
    Column("ece", "ECE", "lower", shared=False),
    Column("brier", "Brier score", "lower", shared=False),
    Column("outside", "eta outside [0, 1]", percent=True, shared=False),
    Column("robust_0.1", "robust accuracy at 0.1", "higher", percent=True),
]


def fill(folder, seeds=(0, 1, 2), title="Which loss for digits?", **options):
    store = Store(folder)
    cells = {name: Cell(name, {"task": "test", "loss": name}) for name in ("ce", "simplex")}
    for name, level, gain in (("ce", 0.93, 0.0), ("simplex", 0.95, 0.02)):
        for seed in seeds:
            store.write("compare", Result(Job(cells[name], seed), metrics(level, seed, gain), seconds=1.5 + seed))
    rows, hashes = ["ce", "ce+temperature", "simplex", "simplex+temperature"], {name: c.hash() for name, c in cells.items()}
    options |= {"facts": [("data", "digits")], "cut": ["3 of 5 seeds"]}
    command = "squareloss compare digits --quick"
    header = Header("compare", title, command, list(seeds), rows, hashes, COLUMNS, "ce", **options)
    header.write(store)
    return store, header


def gather_with(store, header):
    """The report of a store under this header."""
    header.write(store)
    return gather(store.folder)[0]
