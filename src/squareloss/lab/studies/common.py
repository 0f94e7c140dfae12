"""What studies of every kind note: numbers of a few digits, curves of training, calibration as figures need it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch.nn.functional as F
from torch import Tensor

from squareloss import metrics
from squareloss.calibrators import Temperature
from squareloss.calibrators.temperature import spread
from squareloss.codings import Coding
from squareloss.losses import Loss

Json = dict[str, Any]


@overload
def rounded(values: float, digits: int = 6) -> float: ...


@overload
def rounded(values: Tensor | Sequence[Any], digits: int = 6) -> list[Any]: ...


def rounded(values: Any, digits: int = 6) -> Any:
    """A number, or a list or tensor of them as (nested) lists, with so many significant digits."""
    found = values.tolist() if isinstance(values, Tensor) else values
    return [rounded(value, digits) for value in found] if isinstance(found, (list, tuple)) else float(f"{found:.{digits}g}")


def thinned(curve: Sequence[Mapping[str, Any]], most: int, digits: int) -> Json:
    """The curve of a training, a row per epoch, for a figure: at most so many epochs of it, the last among them."""
    every = math.ceil(len(curve) / most)
    kept = [row for i, row in enumerate(curve) if (len(curve) - 1 - i) % every == 0]
    return {
        "epoch": [row["epoch"] + 1 for row in kept],
        "loss": [rounded(row["loss"], digits) for row in kept],
        "train_accuracy": [rounded(row["train_accuracy"], digits) for row in kept],
    }


def bins(probabilities: Tensor, labels: Tensor) -> Json:
    """What a reliability diagram needs."""
    table = metrics.reliability(probabilities, labels)
    return {
        "count": [int(n) for n in table.count.tolist()],
        "confidence": rounded(table.confidence),
        "accuracy": rounded(table.accuracy),
    }


def raw_eta(loss: Loss, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Of square losses: the ECE of raw eta clipped to [0, 1], and the share of eta outside; nothing of others."""
    if not isinstance(loss.link, Coding):
        return {}
    clipped = metrics.ece(loss.link.eta(outputs), labels)
    return {"ece_clipped": float(clipped), "outside": clipped.outside}


def fit_temperature(loss: Loss, outputs: Tensor, labels: Tensor) -> tuple[Temperature, bool]:
    """A temperature for the scores of held-out outputs (N, width), and whether the samples alone determine it.

    Where every held-out sample is right, or the scores say nothing, none is best: then a weak prior helps, that of `Asinh` on
    its slope. The scale of the scores does not matter, so that losses remain comparable.
    """
    scores = loss.link.scores(outputs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = Temperature().fit(scores, labels)
    return (_with_prior(scores, labels), False) if caught else (fitted, True)


def _with_prior(scores: Tensor, labels: Tensor) -> Temperature:
    """The T of the least mean negative log likelihood plus prior / N, log(spread / T) ~ N(0, 3^2)."""
    from scipy.optimize import minimize_scalar

    size, wide = spread(scores), scores.double()

    def cost(log_slope: float) -> float:
        likelihood = -F.cross_entropy(wide * (math.exp(log_slope) / size), labels)
        return log_slope**2 / (2 * 3.0**2 * len(labels)) - float(likelihood)

    return Temperature(size / math.exp(minimize_scalar(cost, bounds=(-10.0, 10.0), method="bounded").x))
