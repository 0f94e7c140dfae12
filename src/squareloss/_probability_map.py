"""The map from scores of a ridge classifier to probabilities, by maximum likelihood on left-out scores.

Scores are the K outputs of ridge on the codes K e_y - 1 (`Simplex()`), zero-sum. With u = scores / K, which is eta - 1/K, a
probability is softmax(a v - b v^2), v = u + shift: a is an inverse temperature, b bends the map, and the shift, along the
logarithms of the class frequencies, moves the thresholds between frequent and rare classes. If the scores of the right class
and of a wrong one were Gaussian, the log odds would be of this form. The fit is convex in a, b and a times the shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss._progress import Line

CALIBRATION = 2**24  # scores that the map is fitted on, at most: it has three numbers
BLOCK = 2**17  # of them at a time on a CPU, which stay in its cache
PASSES = {True: 20, False: 8}  # over the scores, that the full map and a temperature alone usually take
FURTHEST = 16.0  # that a step of its fit moves logits of a sample against each other; beyond, all is sure and flat
FLATTEST = 1e-3  # slope of the map; what is flatter says nothing


@dataclass(frozen=True)
class Curve:
    """The probability map softmax(a u - b u^2 + offset) of u = scores / K + shift, kept increasing.

    Attributes:
        slope: a > 0, or NaN if there were no leave-one-out scores to fit it on. bend: b. shift: (K,), zero-sum.
        offset: (K,), or None: minus the logarithm of the class weights, which undoes them.
    """

    slope: float
    bend: float
    shift: Tensor
    offset: Tensor | None

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities (n, K) of scores (n, K)."""
        if math.isnan(self.slope):
            raise ValueError(
                "expected samples to fit probabilities on, but their leave-one-out scores are lost in rounding, or all samples "
                "that were kept have been forgotten; raise lambda, or add samples"
            )
        u = scores / scores.shape[1] + self.shift
        logits = self.slope * u
        if self.bend:
            # the parabola rises up to (or from) its vertex; past nine tenths of the way go on straight, so that order is kept
            turn = 0.9 * self.slope / (2 * self.bend)
            inside = u.clamp_max(turn) if turn > 0 else u.clamp_min(turn)
            logits = self.slope * inside - self.bend * inside.square() + 0.1 * self.slope * (u - inside)
        return torch.softmax(logits if self.offset is None else logits + self.offset, 1)


def fit_curve(
    scores: Tensor,
    labels: Tensor,
    weight: Tensor,
    frequency: Tensor | None,
    offset: Tensor | None = None,
    *,
    progress: bool = False,
) -> Curve:
    """The most likely probability map of scores (n, K) with labels (n,) and weights (n,), all positive.

    Three fits: of slope, bend and shift; of slope and bend at that shift, for their ratio, within bounds; of the slope alone.
    As Platt did, one sample's worth of probability is spread over the K classes, so that perfect scores do not make it
    infinitely sure. The bounds keep the map increasing for eta in [0, 1]. Without frequencies (K,) there is the last fit alone.
    Its `progress` is an estimate: by the passes that such fits usually take.
    """
    k = scores.shape[1]
    u = (scores - scores.mean(1, keepdim=True)) / k  # zero-sum to the last digit: of two classes rounding alone bends the map
    count = len(scores)
    spread = 1 / (count + 1)
    target = torch.full_like(u, spread / k)
    target.scatter_add_(1, labels.unsqueeze(1), torch.full_like(u[:, :1], 1 - spread))
    share = weight / weight.sum()
    slope, shift, ratio = 0.0, torch.zeros_like(u[0]), 0.0
    passes = _Passes(PASSES[frequency is not None], progress)
    if frequency is not None:
        level = frequency.clamp_min(0.5 / count).log()
        level = level - level.mean()
        slope, bend, pull = _newton([u, -u.square(), level.expand_as(u)], target, share, offset, [0.0, 0.0, 0.0], passes)
        if slope > FLATTEST:  # else it is rounding, as where all labels are one class, and the shift would be without bound
            shift = level * (pull / slope)
            u = u + shift
            if float(shift.abs().max()) < 1:  # else scores say next to nothing, and a bend would be one of the shift
                slope, bend = _newton([u, -u.square()], target, share, offset, [slope, bend], passes)
                ratio = min(max(bend / slope, -k / 2), k / (2 * (k - 1))) if slope > 0 else 0.0
    start = max(slope, 0.0)  # from far below, as of left-out scores that point away, the steps would not come back
    (slope,) = _newton([u - ratio * u.square()], target, share, offset, [start], passes)
    passes.line.close()
    slope = max(slope, FLATTEST)  # scores that say nothing: nearly uniform, or the inverse class weights
    return Curve(slope, ratio * slope, shift, offset)


class _Passes:
    """Counts passes over the scores, of which there are usually so many, for a line that says how far the fit is."""

    def __init__(self, usual: int, show: bool) -> None:
        self.usual, self.done, self.line = usual, 0, Line("probability map", show)

    def __call__(self) -> None:
        self.done += 1
        self.line(self.done / max(self.usual, self.done + 1))


def _newton(
    features: Sequence[Tensor],
    target: Tensor,
    share: Tensor,
    offset: Tensor | None,
    start: Sequence[float],
    passed: Callable[[], None],
) -> list[float]:
    """argmin over theta (P,) of the cross-entropy of softmax(sum_p theta_p features_p + offset), P features (n, K)."""
    theta, scale = target.new_tensor(start), _scale(features, share)
    loss, gradient, second = _derivatives(theta, features, target, share, offset)
    passed()
    for _ in range(100):
        damped = second / torch.outer(scale, scale)
        damped.diagonal().mul_(1 + 1e-10).add_(1e-12)
        step = torch.linalg.solve(damped, gradient / scale) / scale
        decrease, moved = float(gradient @ step), _moved(step, features)
        if decrease < 1e-9 and moved < 1:  # so near that the step is right to the last digits, which the loss no longer shows
            theta = theta - step
            break
        size = whole = min(1.0, FURTHEST / moved)
        while size > 1e-6 * whole:  # halve until the loss falls enough
            new = _derivatives(theta - size * step, features, target, share, offset)
            passed()
            if new[0] <= loss - 1e-4 * size * decrease:
                break
            size /= 2
        else:
            break
        theta, (loss, gradient, second) = theta - size * step, new
    return [float(t) for t in theta]


def _scale(features: Sequence[Tensor], share: Tensor) -> Tensor:
    """The spread (P,) of each feature about its sample's mean; 1 where it is rounding, as of classes of equal frequency."""
    squares = share.new_zeros(len(features))
    for part in _parts(features[0]):
        for p, feature in enumerate(features):
            x = feature[part]
            squares[p] += (x - x.mean(1, keepdim=True)).square().mean(1) @ share[part]
    return torch.where(squares > 1e-26, squares.sqrt(), 1.0)


def _moved(step: Tensor, features: Sequence[Tensor]) -> float:
    """By how much a step moves the logits of one sample against each other, at most."""
    most = 0.0
    for part in _parts(features[0]):
        logits = torch.tensordot(step, torch.stack([feature[part] for feature in features]), 1)
        most = max(most, float((logits.amax(1) - logits.amin(1)).max()))
    return most


def _parts(x: Tensor) -> list[slice]:
    """Rows of x (n, K) in runs that fit the cache, on a CPU."""
    rows = max(1, (BLOCK if x.device.type == "cpu" else CALIBRATION) // x.shape[1])
    return [slice(first, first + rows) for first in range(0, len(x), rows)]


def _derivatives(
    theta: Tensor, features: Sequence[Tensor], target: Tensor, share: Tensor, offset: Tensor | None
) -> tuple[float, Tensor, Tensor]:
    """The cross-entropy, its gradient (P,) and its Hessian (P, P), block by block."""
    loss, gradient, second = target.new_zeros(()), torch.zeros_like(theta), target.new_zeros(len(theta), len(theta))
    for part in _parts(target):
        x, t, s = torch.stack([feature[part] for feature in features]), target[part], share[part]  # (P, m, K), (m, K), (m,)
        logits = torch.tensordot(theta, x, 1)
        log_p = torch.log_softmax(logits if offset is None else logits + offset, 1)
        p = log_p.exp()
        mean = (p * x).sum(2)  # (P, m)
        loss -= (t * log_p).sum(1) @ s
        gradient += ((p - t) * x).sum(2) @ s
        second += (x * (p * s.unsqueeze(1))).flatten(1) @ x.flatten(1).T - (mean * s) @ mean.T
    return float(loss), gradient, second
