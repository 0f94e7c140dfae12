"""Metrics that are means over samples (accuracy, Brier score, log likelihood), and the largest error against a known eta."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from squareloss.metrics import _inputs
from squareloss.metrics._inputs import Predictions
from squareloss.metrics._results import Metric
from squareloss.metrics._single import single

FLOOR = 1e-12
Z = 1.959963984540054  # the 97.5% quantile of the normal distribution


def accuracy(probabilities: Tensor, labels: Tensor, *, bootstrap: int = 0, seed: int = 0) -> Metric:
    """The share of samples whose largest value is at the label; `low` and `high` are Wilson's 95% interval.

    With `bootstrap`, the bootstrap interval is in `details`, as `bootstrap_low` and `bootstrap_high`. Arguments as in `ece`.
    """
    predictions = _inputs.read(probabilities, labels)
    resampled = single("accuracy", Means(predictions), predictions, bootstrap, seed)
    return with_wilson(resampled, len(labels))


def brier(probabilities: Tensor, labels: Tensor, *, bootstrap: int = 0, seed: int = 0) -> Metric:
    """The Brier score, summed over classes: 1/N sum_i sum_k (p_ik - 1[k = y_i])^2, between 0 and 2 for probabilities.

    Raw eta is taken as it is, not clamped: the score is proper for any vector, and projecting eta onto the simplex never
    worsens it. scikit-learn's `brier_score_loss` of two classes is half of it. Arguments as in `ece`.
    """
    predictions = _inputs.read(probabilities, labels)
    return single("brier", Means(predictions), predictions, bootstrap, seed)


def nll(probabilities: Tensor, labels: Tensor, *, floor: float = FLOOR, bootstrap: int = 0, seed: int = 0) -> Metric:
    """Negative log likelihood, -1/N sum_i log(min(max(p_i, floor), 1)), with p_i the value of the true class.

    A projection onto the simplex gives exact zeros, and the floor then decides the number: `details` has the `floor`,
    `floored`, the share of samples below it, and `zero`, the share at zero or less. Where that is not small, fit a calibrator
    first (`calibrators.Asinh` for square loss).

    Arguments:
        floor: what smaller values are raised to.
        the others: as in `ece`.
    """
    predictions = _inputs.read(probabilities, labels)
    return single("nll", Means(predictions, floor), predictions, bootstrap, seed, floor_details(predictions, floor))


def linf_calibration_error(estimate: Tensor, eta: Tensor, *, bootstrap: int = 0, seed: int = 0) -> Metric:
    """max |estimate - eta| against known class probabilities: the L_inf calibration error over the samples given.

    On a grid of the domain it approximates the supremum; over test points it is a lower bound of it, and so is each
    replicate, which sees fewer points: the interval starts at the estimate, and is a hint at best, as the bootstrap fails for
    maxima.

    Arguments:
        estimate: the estimated probabilities, one or K per sample: (N,), (N, K), or any shape with N first. Values outside
            [0, 1] are taken as they are.
        eta: the true ones, same shape, in [0, 1].
        bootstrap, seed: as in `ece`.
    """
    family = Largest(estimate, eta)
    return single("linf_calibration_error", family, family, bootstrap, seed)


def wilson(share: float, samples: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share of so many samples."""
    if not (0 <= share <= 1 and samples >= 1):
        raise ValueError(f"expected a share in [0, 1] of one sample or more, got {share} of {samples}; pass right / samples")
    scale = 1 + Z**2 / samples
    centre = (share + Z**2 / (2 * samples)) / scale
    half = Z / scale * sqrt(share * (1 - share) / samples + Z**2 / (4 * samples**2))
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def with_wilson(resampled: Metric, samples: int) -> Metric:
    """An accuracy with Wilson's interval, and that of the bootstrap, if it has one, among the details."""
    ends = {} if resampled.low is None or resampled.high is None else {"low": resampled.low, "high": min(1.0, resampled.high)}
    details = {f"bootstrap_{end}": value for end, value in ends.items()}
    interval = wilson(float(resampled), samples)
    return Metric(float(resampled), name="accuracy", outside=resampled.outside, interval=interval, details=details)


def floor_details(predictions: Predictions, floor: float) -> dict[str, float]:
    """The floor of the likelihood, and how many samples it concerns."""
    if not 0 < floor < 1:
        raise ValueError(f"expected a floor in (0, 1), got {floor}; {FLOOR} is the default")
    truth = predictions.true_class
    return {"floor": floor, "floored": float((truth < floor).double().mean()), "zero": float((truth <= 0).double().mean())}


class Means:
    """counts -> accuracy, brier, nll."""

    def __init__(self, predictions: Predictions, floor: float = FLOOR) -> None:
        truth = predictions.true_class
        squares = torch.cat([rows.double().square().sum(1) for rows in predictions.blocks()])
        distance = (squares - 2 * truth + 1).clamp_min(0)  # rounding may leave -1e-16
        likelihood = -truth.clamp(floor, 1).log()
        self.columns = torch.stack([predictions.correct, distance, likelihood], 1)  # (N, 3)

    def __call__(self, counts: Tensor) -> dict[str, Tensor]:
        accuracy, distance, likelihood = (counts @ self.columns / counts.shape[1]).unbind(1)
        return {"accuracy": accuracy, "brier": distance, "nll": likelihood}


class Largest:
    """counts -> linf_calibration_error: the error of the worst sample that was drawn."""

    def __init__(self, estimate: Tensor, eta: Tensor) -> None:
        estimate, eta = _check_known(estimate, eta)
        slack = 4 * torch.finfo(estimate.dtype).eps
        self.samples, self.device = len(estimate), estimate.device
        self.outside = float(((estimate < -slack) | (estimate > 1 + slack)).double().mean())
        error = (estimate.double() - eta.double()).abs().view(self.samples, -1).amax(1)
        self.ordered, self.order = error.sort(descending=True)

    def __call__(self, counts: Tensor) -> dict[str, Tensor]:
        drawn = counts.index_select(1, self.order) > 0
        return {"linf_calibration_error": self.ordered[drawn.to(torch.uint8).argmax(1)]}  # the first one drawn


def _check_known(estimate: Tensor, eta: Tensor) -> tuple[Tensor, Tensor]:
    estimate, eta = _inputs.floats(estimate, "estimates of eta"), _inputs.floats(eta, "values of eta")
    if estimate.shape != eta.shape or estimate.ndim == 0 or estimate.numel() == 0:
        raise ValueError(
            f"expected estimate and eta of one shape, samples first, got {tuple(estimate.shape)} and {tuple(eta.shape)}"
        )
    _inputs.finite_range(estimate, "estimates of eta")
    low, high = _inputs.finite_range(eta, "values of eta")
    if low < -1e-6 or high > 1 + 1e-6:
        raise ValueError(
            f"expected the true eta in [0, 1], got values from {low:.4g} to {high:.4g}; are the arguments swapped?"
        )
    return estimate, eta.to(estimate.device)
