"""Temperature: one number for all scores, by Newton's method; its slope 1/T is what other fits begin with."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from squareloss import simplex
from squareloss.calibrators._held_out import Shown, fitted, read, warn_of_bound

RANGE = 1e3  # temperatures are sought between spread / RANGE and spread * RANGE


class Temperature(Shown):
    """softmax(scores / T): one number, which changes no prediction (Guo et al. 2017).

    T minimises the mean negative log likelihood, which is convex in 1/T, by Newton's method on log T, safeguarded by a
    bracket. T is sought within a factor of 1000 of the spread of the scores, the root mean square about their sample's mean,
    so the scale of the scores is no matter. If every sample is classified right, no temperature is small enough, and if
    the scores tell nothing, none is large enough: then T is at that bound, with a warning.

    Arguments:
        temperature: T, if it is known; else `fit` finds it.
    """

    def __init__(self, temperature: float | None = None) -> None:
        if temperature is not None and not 0 < temperature < math.inf:
            raise ValueError(f"expected a temperature > 0, got {temperature}")
        self.temperature_ = temperature

    def fit(self, scores: Tensor, labels: Tensor) -> Self:
        """Find T for held-out scores (N, K) and labels (N,)."""
        self.temperature_ = best_temperature(*read(scores, labels))
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """softmax(scores / T), (N, K), in the dtype of the scores; differentiable."""
        temperature, dim = fitted(self.temperature_), simplex.class_dim(scores)
        return torch.softmax(simplex.wide(scores) / temperature, dim).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "temperature", "temperature": T}."""
        return {"kind": "temperature", "temperature": fitted(self.temperature_)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        return cls(state["temperature"])


def best_temperature(scores: Tensor, labels: Tensor) -> float:
    """T for scores and labels that were read."""
    size = spread(scores)
    slope = best_slope(scores / size, labels)
    if slope >= RANGE:
        warn_of_bound("every held-out sample is classified right: no temperature is too small", "smallest")
    elif slope <= 1 / RANGE:
        warn_of_bound("the held-out scores say nothing about the labels: no temperature is too large", "largest")
    return size / slope


def spread(scores: Tensor) -> float:
    """The root mean square of scores (N, K) about their sample's mean."""
    centred = scores - scores.mean(1, keepdim=True)
    largest = float(centred.abs().max())
    if largest == 0:
        raise ValueError("expected scores that differ between classes, got only equal ones: there is nothing to calibrate")
    return largest * float((centred / largest).square().mean().sqrt())  # no square overflows


def best_slope(scores: Tensor, labels: Tensor) -> float:
    """argmin over slopes in [1 / RANGE, RANGE] of the mean negative log likelihood of softmax(slope scores)."""
    if _slope_derivatives(scores, labels, 1 / RANGE)[0] >= 0:
        return 1 / RANGE
    if _slope_derivatives(scores, labels, RANGE)[0] <= 0:
        return RANGE
    left, right, where = -math.log(RANGE), math.log(RANGE), 0.0
    for _ in range(100):
        first, second = _slope_derivatives(scores, labels, math.exp(where))
        left, right = (where, right) if first < 0 else (left, where)
        step = first / (second * math.exp(where)) if second > 0 else math.inf
        if abs(step) < 1e-12 or right - left < 1e-12:
            break
        where = where - step if left < where - step < right else (left + right) / 2
    return math.exp(where)


def _slope_derivatives(scores: Tensor, labels: Tensor, slope: float) -> tuple[float, float]:
    """First and second derivative of the mean negative log likelihood in the slope: E_p s - s_y and Var_p s, averaged."""
    rows = max(1, 2**18 // scores.shape[1])  # in runs that fit the cache
    first = second = 0.0
    for s, y in zip(torch.split(scores, rows), torch.split(labels, rows), strict=True):
        p = torch.softmax(slope * s, 1)
        mean = (p * s).sum(1, keepdim=True)
        first += float((mean - s.gather(1, y[:, None])).sum())
        second += float((p * (s - mean).square()).sum())
    return first / len(scores), second / len(scores)
