"""A slope and a bias per class, by Newton's method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from squareloss import simplex
from squareloss.calibrators._held_out import Shown, check_classes, fitted, read, warn_of_bound
from squareloss.calibrators.temperature import RANGE, best_slope, spread


class Affine(Shown):
    """softmax(a scores + b): one slope a > 0 for all classes and one bias b_k per class.

    It is temperature scaling that also corrects the class frequencies. a and b minimise the mean negative log likelihood plus
    |b|^2 / (2N), a standard normal prior on each bias, which keeps the bias of a class that is rare or missing in the
    held-out set finite; jointly convex, by Newton's method. The slope has the bounds of `Temperature`.

    Arguments:
        slope, bias: a and b (K,), if they are known; else `fit` finds them.
    """

    def __init__(self, slope: float | None = None, bias: Tensor | None = None) -> None:
        self.slope_ = slope
        self.bias_ = bias

    def fit(self, scores: Tensor, labels: Tensor) -> Self:
        """Find a and b for held-out scores (N, K) and labels (N,)."""
        scores, labels = read(scores, labels)
        size = spread(scores)
        scores = scores / size
        parameters = torch.zeros(scores.shape[1] + 1, dtype=torch.float64, device=scores.device)  # a size, b
        parameters[0] = best_slope(scores, labels)
        parameters = _newton(scores, labels, parameters)
        if not 1 / RANGE < float(parameters[0]) < RANGE:
            warn_of_bound("the held-out samples leave the slope without an optimum", "outermost")
        self.slope_, self.bias_ = float(parameters[0]) / size, parameters[1:] - parameters[1:].mean()
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """softmax(a scores + b), (N, K), in the dtype of the scores; differentiable."""
        slope, bias = fitted(self.slope_), fitted(self.bias_)
        check_classes(scores, len(bias))
        wide = simplex.wide(scores)
        return torch.softmax(wide * slope + bias.to(wide), 1).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "affine", "slope": a, "bias": [b_1, ..., b_K]}."""
        return {"kind": "affine", "slope": fitted(self.slope_), "bias": fitted(self.bias_).tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        return cls(state["slope"], torch.tensor(state["bias"], dtype=torch.float64))


def _newton(scores: Tensor, labels: Tensor, parameters: Tensor) -> Tensor:
    """Newton's method with backtracking on (a, b), a kept in [1 / RANGE, RANGE]."""
    value = _affine_loss(scores, labels, parameters)
    for _ in range(100):
        gradient, hessian = _affine_derivatives(scores, labels, parameters)
        slope, pull = float(parameters[0]), float(gradient[0])
        if (slope <= 1 / RANGE and pull >= 0) or (slope >= RANGE and pull <= 0):  # held at its bound
            gradient[0], hessian[0, 1:], hessian[1:, 0], hessian[0, 0] = 0.0, 0.0, 0.0, 1.0
        direction = torch.linalg.solve(hessian, gradient)
        decrement, size = float(gradient @ direction), 1.0
        while decrement > 1e-15 and size > 1e-8:
            trial = parameters - size * direction
            trial[0] = trial[0].clamp(1 / RANGE, RANGE)
            trial_value = _affine_loss(scores, labels, trial)
            if trial_value <= value - 1e-4 * size * decrement:
                break
            size /= 2
        else:
            return parameters
        parameters, value = trial, trial_value
    return parameters


def _affine_loss(scores: Tensor, labels: Tensor, parameters: Tensor) -> float:
    likelihood = torch.nn.functional.cross_entropy(parameters[0] * scores + parameters[1:], labels)
    return float(likelihood + parameters[1:].square().sum() / (2 * len(scores)))


def _affine_derivatives(scores: Tensor, labels: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (K + 1,) and Hessian (K + 1, K + 1) of the loss in (a, b)."""
    samples, classes = scores.shape
    p = torch.softmax(parameters[0] * scores + parameters[1:], 1)
    mean = (p * scores).sum(1, keepdim=True)
    frequency = torch.bincount(labels, minlength=classes).double() / samples
    pull = (mean - scores.gather(1, labels[:, None])).mean()
    gradient = torch.cat([pull[None], p.mean(0) - frequency + parameters[1:] / samples])
    centred = p * (scores - mean)
    hessian = p.new_zeros(classes + 1, classes + 1)
    hessian[0, 0] = (centred * (scores - mean)).sum() / samples
    hessian[0, 1:] = hessian[1:, 0] = centred.mean(0)
    hessian[1:, 1:] = torch.diag(p.mean(0) + 1 / samples) - p.T @ p / samples
    return gradient, hessian
