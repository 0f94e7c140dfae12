"""What the paper reports of image networks, as it prints it: mean (std) in percent, of five replications.

Two marks: "0*" in the table of attacks is more than 0 and less than 0.1, without a number, and has none here; "*" beside an
accuracy in the table of codings says that the training accuracy shows no fit after 200 epochs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

REPLICATIONS = 5
LEVELS = (2, 4, 8)  # radii of attacks in 255ths
STDS = (0.1, 0.2, 0.3, 0.4)  # of noise

# clean accuracy, PGD-100 at 2, 4, 8/255, AutoAttack at 2, 4, 8/255
TABLE_1 = {
    "resnet18-cifar10-CE": "95.15 (0.11) | 8.81 (1.61) | 0.65 (0.24) | 0 | 2.74 (0.09) | 0 | 0",
    "resnet18-cifar10-SL": "95.04 (0.07) | 30.53 (0.92) | 6.64 (0.67) | 0.86 (0.24) | 4.10 (0.50) | 0* | 0",
    "wrn16_10-cifar10-CE": "93.94 (0.16) | 1.04 (0.10) | 0 | 0 | 0.33 (0.06) | 0 | 0",
    "wrn16_10-cifar10-SL": "95.02 (0.11) | 37.47 (0.61) | 23.16 (1.28) | 7.88 (0.72) | 5.37 (0.50) | 0* | 0",
    "resnet50-cifar100-CE": "79.82 (0.14) | 2.31 (0.07) | 0* | 0 | 0.99 (0.10) | 0* | 0",
    "resnet50-cifar100-SL": "78.91 (0.14) | 13.76 (1.30) | 4.63 (1.20) | 1.21 (0.80) | 3.67 (0.60) | 0.16 (0.05) | 0",
    "wrn16_10-cifar100-CE": "77.89 (0.21) | 0.83 (0.07) | 0* | 0 | 0.42 (0.07) | 0 | 0",
    "wrn16_10-cifar100-SL-b128": "79.65 (0.15) | 6.48 (0.40) | 0.42 (0.04) | 0* | 2.73 (0.20) | 0* | 0",
}
# accuracy under Gaussian noise of standard deviation .1, .2, .3, .4
NOISE = {
    "resnet18-cifar10-SL": "90.07 | 70.16 | 42.13 | 25.38",
    "resnet18-cifar10-CE": "90.03 | 69.71 | 41.08 | 24.66",
    "wrn16_10-cifar10-SL": "88.49 | 60.91 | 35.78 | 24.04",
    "wrn16_10-cifar10-CE": "84.78 | 56.63 | 33.70 | 22.41",
    "resnet50-cifar100-SL": "63.06 | 36.64 | 17.78 | 9.47",
    "resnet50-cifar100-CE": "62.72 | 34.42 | 16.69 | 9.11",
    "wrn16_10-cifar100-SL-b128": "62.01 | 30.69 | 15.11 | 8.88",
    "wrn16_10-cifar100-CE": "60.14 | 26.47 | 10.26 | 5.57",
}
# expected calibration error, not in percent
CALIBRATION = {
    "resnet18-cifar10-CE": "0.028 (0.002)",
    "resnet18-cifar10-SL": "0.0097 (0.001)",
    "resnet50-cifar100-CE": "0.094 (0.005)",
    "resnet50-cifar100-SL": "0.068 (0.005)",
}
# adversarial training, of an unknown number of runs: clean accuracy, AutoAttack at 8/255
ADVERSARIAL = {
    "resnet18-cifar10-CE-adv3": "86.87 | 37.08",
    "resnet18-cifar10-CE-adv7": "84.50 | 41.88",
    "resnet18-cifar10-SL-adv3": "87.31 | 40.46",
    "resnet18-cifar10-SL-adv7": "84.52 | 44.76",
}
# clean accuracy by coding; the last is from the text. For square loss, WRN-16-10 and CIFAR-100 at (.01, 32) the table has 78.06
# and the text 77.96
CODINGS = {
    "resnet18-cifar10-OH1": "94.95",
    "resnet18-cifar10-SL": "95.04",
    "resnet18-cifar10-OH1-b128": "10*",
    "resnet18-cifar10-SL-b128": "10*",
    "wrn16_10-cifar10-OH1": "89.75*",
    "wrn16_10-cifar10-SL": "95.02",
    "wrn16_10-cifar10-OH1-b128": "88.43*",
    "wrn16_10-cifar10-SL-b128": "95.03",
    "resnet50-cifar100-OH5": "79.06",
    "resnet50-cifar100-SL": "78.91",
    "resnet50-cifar100-OH5-b128": "1*",
    "resnet50-cifar100-SL-b128": "1*",
    "wrn16_10-cifar100-OH5": "78.42",
    "wrn16_10-cifar100-SL": "78.06",
    "wrn16_10-cifar100-OH5-b128": "78.39",
    "wrn16_10-cifar100-SL-b128": "79.65",
    "wrn16_10-cifar100-CE-b128": "76.83",
}
BESIDE_CODINGS = ("resnet50-cifar100-OHK", "resnet50-cifar100-squentropy")  # in the same table of ours, not in the paper's


class Value(NamedTuple):
    """A mean with its standard deviation and number of runs, as shares; None where the paper gives none; and its mark."""

    mean: float | None
    std: float | None = None
    runs: int | None = None
    mark: str = ""


def values() -> dict[str, dict[str, Value]]:
    """Everything, by the name of a line and the key of a measure."""
    found: dict[str, dict[str, Value]] = {}
    attacks = [f"{kind}_{level}" for kind in ("pgd", "autoattack") for level in LEVELS]
    for table, keys, unit, runs, marked in (
        (TABLE_1, ["accuracy", *attacks], 100, REPLICATIONS, False),
        (NOISE, [f"noise_{std}" for std in STDS], 100, REPLICATIONS, False),
        (ADVERSARIAL, ["accuracy", "autoattack_8"], 100, None, False),
        (CODINGS, ["accuracy"], 100, REPLICATIONS, True),
        (CALIBRATION, ["ece"], 1, REPLICATIONS, False),
    ):
        for name, text in table.items():
            row, parts = found.setdefault(name, {}), text.split(" | ")
            for key, part in zip(keys, parts, strict=True):
                row.setdefault(key, _value(part, unit, runs, marked))
    return found


def paper_cells() -> dict[str, dict[str, list[float | None]]]:
    """The same by the names of cells, for the header of a study."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for name, row in values().items():
        for key, value in row.items():
            kind = key.partition("_")[0]
            cell = f"{name}-{kind if kind in ('pgd', 'autoattack') else 'clean'}"
            if value.mean is not None:
                found.setdefault(cell, {})[key] = [value.mean, value.std, value.runs]
    return found


def _value(text: str, unit: float, runs: int | None, marked: bool) -> Value:
    """The value of "95.15 (0.11)", "0*" or "10*"; what is marked has a mean only if `marked`."""
    parts = re.fullmatch(r"([\d.]+)(\*?)(?: \(([\d.]+)\))?", text)
    assert parts is not None, text
    mean, mark, std = parts.groups()
    if mark and not marked:
        return Value(None, None, None, text)
    return Value(round(float(mean) / unit, 6), None if std is None else round(float(std) / unit, 6), runs, mark)
