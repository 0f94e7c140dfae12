"""Calibrators: maps from scores to probabilities, fitted on held-out scores and labels.

Each has `fit(scores, labels)` and `transform(scores)`, and goes to a plain dict and back with `state` and `from_state`. Scores
are the K numbers whose argmax is the class, as `link.scores` gives them: logits of cross-entropy, or simplex or one-hot
outputs of square loss, at any scale. All fits are done in float64; all but that of `Asinh` are convex.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor
from typing_extensions import Self

from squareloss import simplex
from squareloss.metrics import _inputs

Value = TypeVar("Value")

WIDTHS = (0.01, 0.1, 1.0, 10.0)  # of the spread: where the search for w begins
RANGE = 1e3  # temperatures are sought between spread / RANGE and spread * RANGE


class NotFitted(ValueError):
    """A calibrator was used before `fit`."""


class Temperature:
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
        scores, labels = _read(scores, labels)
        low, high = _slopes(scores)
        slope = _best_slope(scores, labels, low, high)
        if slope >= high:
            _warn("every held-out sample is classified right: no temperature is too small", "smallest")
        elif slope <= low:
            _warn("the held-out scores say nothing about the labels: no temperature is too large", "largest")
        self.temperature_ = 1 / slope
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """softmax(scores / T), (N, K), in the dtype of the scores; differentiable."""
        temperature = _fitted(self.temperature_)
        return torch.softmax(simplex.wide(scores) / temperature, 1).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "temperature", "temperature": T}."""
        return {"kind": "temperature", "temperature": _fitted(self.temperature_)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        return cls(state["temperature"])


class Affine:
    """softmax(a scores + b): one slope a > 0 for all classes and one bias b_k per class.

    It is temperature scaling that also corrects the class frequencies. a and b minimise the mean negative log likelihood plus
    |b|^2 / (2N), a standard normal prior on each bias, which keeps the bias of a class that is rare or missing in the
    held-out set finite; jointly convex, by Newton's method. The slope has the bounds of `Temperature`.
    """

    def __init__(self, slope: float | None = None, bias: Tensor | None = None) -> None:
        self.slope_ = slope
        self.bias_ = bias

    def fit(self, scores: Tensor, labels: Tensor) -> Self:
        """Find a and b for held-out scores (N, K) and labels (N,)."""
        scores, labels = _read(scores, labels)
        low, high = _slopes(scores)
        parameters = torch.zeros(scores.shape[1] + 1, dtype=torch.float64, device=scores.device)  # a, b
        parameters[0] = _best_slope(scores, labels, low, high)
        parameters = _newton(scores, labels, parameters, low, high)
        if not low < float(parameters[0]) < high:
            _warn("the held-out samples leave the slope without an optimum", "outermost")
        self.slope_, self.bias_ = float(parameters[0]), parameters[1:] - parameters[1:].mean()
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """softmax(a scores + b), (N, K), in the dtype of the scores; differentiable."""
        slope, bias = _fitted(self.slope_), _fitted(self.bias_)
        _check_classes(scores, len(bias))
        wide = simplex.wide(scores)
        return torch.softmax(wide * slope + bias.to(wide), 1).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "affine", "slope": a, "bias": [b_1, ..., b_K]}."""
        return {"kind": "affine", "slope": _fitted(self.slope_), "bias": _fitted(self.bias_).tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        return cls(state["slope"], torch.tensor(state["bias"], dtype=torch.float64))


class Asinh:
    """softmax(a asinh((scores - c) / w)): logarithmic in the scores, and linear where they are within w of c.

    Square loss estimates probabilities themselves, so their logarithms are what softmax takes; but an estimate near zero is
    noise, of either sign, and has none. With w far beyond the spread of the scores this is `Temperature`, T = w / a. Scores are
    centred, each sample by its mean, so that neither a shift nor the scale of them matters; a > 0 and w > 0, so no prediction
    changes. The three numbers minimise the mean negative log likelihood plus prior / N, log a ~ N(0, 3^2), c / spread ~ N(0, 1)
    and log(w / spread) ~ N(0, 3^2), which keeps them finite if every sample is classified right. By BFGS, from c = 0 and from
    where estimates are zero, each with the best of four widths.

    Arguments:
        slope, centre, width: a, c and w, if they are known; else `fit` finds them.
    """

    def __init__(self, slope: float | None = None, centre: float | None = None, width: float | None = None) -> None:
        for name, value in (("slope", slope), ("width", width)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"expected a {name} > 0, got {value}")
        self.slope_, self.centre_, self.width_ = slope, centre, width

    def fit(self, scores: Tensor, labels: Tensor) -> Self:
        """Find a, c and w for held-out scores (N, K) and labels (N,)."""
        scores, labels = _read(scores, labels)
        spread = 1 / (RANGE * _slopes(scores)[0])
        scaled = (scores - scores.mean(1, keepdim=True)) / spread
        zero = -1 / math.sqrt(scores.shape[1] - 1)  # of one-hot codes, centred and of spread 1
        best = min((_search(scaled, labels, centre) for centre in (0.0, zero)), key=lambda found: float(found.fun)).x
        self.slope_, self.centre_, self.width_ = math.exp(best[0]), spread * float(best[1]), spread * math.exp(best[2])
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """softmax(a asinh((scores - c) / w)), (N, K), in the dtype of the scores; differentiable."""
        slope, centre, width = _fitted(self.slope_), _fitted(self.centre_), _fitted(self.width_)
        wide = simplex.wide(scores)
        return torch.softmax(slope * torch.asinh((wide - wide.mean(1, keepdim=True) - centre) / width), 1).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "asinh", "slope": a, "centre": c, "width": w}."""
        values = {"slope": _fitted(self.slope_), "centre": _fitted(self.centre_), "width": _fitted(self.width_)}
        return {"kind": "asinh", **values}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        return cls(state["slope"], state["centre"], state["width"])


class Isotonic:
    """One increasing function per class, from its probability under `Temperature` to a better one, then renormalised.

    Class k's function is the isotonic regression of [label = k] on softmax(scores / T)_k, T fitted first, so that neither
    the scale of the scores nor a shift of them matters; between the samples it is interpolated linearly, beyond them it is
    constant, as scikit-learn's. Where all K functions give 0, the probabilities under T stand. It bends more than the
    others and needs more data: thousands of samples, tens per class; it may change predictions, and may give exact zeros.
    """

    def __init__(self, temperature: float | None = None, x: Tensor | None = None, y: Tensor | None = None) -> None:
        self._temperature = Temperature(temperature)
        self.x_, self.y_ = x, y  # (K, L): the knots of each class; the last one is repeated to fill a row

    def fit(self, scores: Tensor, labels: Tensor) -> Self:
        """Find T and the K functions for held-out scores (N, K) and labels (N,)."""
        scores, labels = _read(scores, labels)
        x = self._temperature.fit(scores, labels).transform(scores)
        self.x_, self.y_ = _isotonic(x, labels)
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """Probabilities (N, K) in the dtype of the scores."""
        x, y = (_fitted(knots).to(scores.device) for knots in (self.x_, self.y_))
        _check_classes(scores, len(x))
        base = self._temperature.transform(simplex.wide(scores).double())
        shaped = _interpolate(base.T.contiguous(), x, y).T  # (N, K)
        total = shaped.sum(1, keepdim=True)
        return torch.where(total > 0, shaped / total.where(total > 0, torch.ones_like(total)), base).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "isotonic", "temperature": T, "x": knots per class, "y": values at them}."""
        knots = {"x": _fitted(self.x_).tolist(), "y": _fitted(self.y_).tolist()}
        return {"kind": "isotonic", "temperature": self._temperature.temperature_, **knots}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        x, y = (torch.tensor(state[name], dtype=torch.float64) for name in ("x", "y"))
        return cls(state["temperature"], x, y)


Calibrator = Temperature | Affine | Asinh | Isotonic
CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": Temperature,
    "affine": Affine,
    "asinh": Asinh,
    "isotonic": Isotonic,
}


def from_state(state: dict[str, Any]) -> Calibrator:
    """The calibrator whose `state()` this is."""
    kind = state.get("kind")
    if kind not in CALIBRATORS:
        raise ValueError(f"Unknown calibrator {kind!r}. Available: {', '.join(CALIBRATORS)}")
    return CALIBRATORS[kind].from_state(state)


# ---- the slope 1/T


def _slopes(scores: Tensor) -> tuple[float, float]:
    """The range in which slopes are sought, from the spread of the scores."""
    centred = scores - scores.mean(1, keepdim=True)
    largest = float(centred.abs().max())
    if largest == 0:
        raise ValueError("expected scores that differ between classes, got only equal ones: there is nothing to calibrate")
    spread = largest * float((centred / largest).square().mean().sqrt())  # no square overflows
    return 1 / (RANGE * spread), RANGE / spread


def _best_slope(scores: Tensor, labels: Tensor, low: float, high: float) -> float:
    """argmin over slopes in [low, high] of the mean negative log likelihood of softmax(slope scores)."""
    if _slope_derivatives(scores, labels, low)[0] >= 0:
        return low
    if _slope_derivatives(scores, labels, high)[0] <= 0:
        return high
    left, right = math.log(low), math.log(high)
    where = min(max(0.0, left), right)  # slope one, if it can be
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


# ---- slope and biases


def _newton(scores: Tensor, labels: Tensor, parameters: Tensor, low: float, high: float) -> Tensor:
    """Newton's method with backtracking on (a, b), a kept in [low, high]."""
    value = _affine_loss(scores, labels, parameters)
    for _ in range(100):
        gradient, hessian = _affine_derivatives(scores, labels, parameters)
        slope, pull = float(parameters[0]), float(gradient[0])
        if (slope <= low and pull >= 0) or (slope >= high and pull <= 0):  # held at its bound
            gradient[0], hessian[0, 1:], hessian[1:, 0], hessian[0, 0] = 0.0, 0.0, 0.0, 1.0
        direction = torch.linalg.solve(hessian, gradient)
        decrement, size = float(gradient @ direction), 1.0
        while decrement > 1e-15 and size > 1e-8:
            trial = parameters - size * direction
            trial[0] = trial[0].clamp(low, high)
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


# ---- slope, centre and width


def _search(scores: Tensor, labels: Tensor, centre: float) -> OptimizeResult:
    """A minimum of the loss in (log a, c, log w), from a centre and the best width to begin with; scores have spread 1."""
    starts = []
    for width in WIDTHS:
        slope = _best_slope(torch.asinh((scores - centre) / width), labels, 1 / RANGE, RANGE)
        starts.append(np.array([math.log(slope), centre, math.log(width)]))
    start = min(starts, key=lambda at: _asinh_loss(at, scores, labels)[0])
    return minimize(_asinh_loss, start, (scores, labels), method="BFGS", jac=True, options={"gtol": 1e-6})


def _asinh_loss(at: np.ndarray, scores: Tensor, labels: Tensor) -> tuple[float, np.ndarray]:
    """Mean negative log likelihood plus prior / N, and its gradient, in (log a, c, log w); scores have spread 1."""
    slope, centre, width = math.exp(at[0]), at[1], math.exp(at[2])
    value, gradient = 0.0, np.zeros(3)
    rows = max(1, 2**18 // scores.shape[1])  # in runs that fit the cache
    for s, y in zip(torch.split(scores, rows), torch.split(labels, rows), strict=True):
        z = (s - centre) / width
        bent = torch.asinh(z)
        logits = torch.log_softmax(slope * bent, 1)
        value -= float(logits.gather(1, y[:, None]).sum())
        residual = logits.exp().scatter_add(1, y[:, None], -torch.ones_like(bent[:, :1]))
        steep = residual / (1 + z.square()).sqrt()
        gradient += slope * np.array([float(t.sum()) for t in (residual * bent, -steep / width, -steep * z)])
    weak = np.array([1 / 9, 1.0, 1 / 9])
    return (value + float(weak @ at**2) / 2) / len(scores), (gradient + weak * at) / len(scores)


# ---- isotonic regression


def _isotonic(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Isotonic regressions of [label = k] on x_k for all K classes at once: knots and values, (K, L) each.

    Blocks of equal x, in order; then, in rounds, every run of blocks whose means do not increase is pooled. It is the pool
    adjacent violators algorithm, whose result does not depend on the order of pooling.
    """
    samples, classes = x.shape
    order = x.T.argsort(1)  # (K, N)
    ordered = x.T.gather(1, order)
    hits = (labels[order] == torch.arange(classes, device=x.device)[:, None]).double()
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[:, 1:] = ordered[:, 1:] > ordered[:, :-1] + 1e-13  # rounding of a softmax parts no equals
    klass = torch.arange(classes, device=x.device).repeat_interleave(samples)
    ordered, fresh = ordered.flatten(), fresh.flatten()
    blocks = torch.stack([torch.ones_like(ordered), hits.flatten()])  # sizes and hits
    first = last = ordered
    while True:
        index = fresh.cumsum(0) - 1
        blocks = blocks.new_zeros(2, int(index[-1]) + 1).index_add_(1, index, blocks)
        ends = torch.cat([fresh[1:], fresh.new_ones(1)])
        first, last, klass = first[fresh], last[ends], klass[fresh]
        size, hit = blocks
        fresh = torch.ones_like(klass, dtype=torch.bool)  # counts are whole numbers, so products compare means exactly
        fresh[1:] = (klass[1:] != klass[:-1]) | (hit[:-1] * size[1:] < hit[1:] * size[:-1])
        if bool(fresh.all()):
            return _knots(first, last, hit / size, klass, classes)


def _knots(first: Tensor, last: Tensor, value: Tensor, klass: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Both ends of every block, or its one end, as rows of knots and values (K, L), padded with their last."""
    keep = torch.stack([torch.ones_like(first, dtype=torch.bool), last > first], 1).flatten()
    x, y = torch.stack([first, last], 1).flatten()[keep], value.repeat_interleave(2)[keep]
    count = torch.bincount(klass.repeat_interleave(2)[keep], minlength=classes)
    place = torch.arange(max(2, int(count.max())), device=x.device)
    index = (count.cumsum(0) - count)[:, None] + torch.minimum(place, count[:, None] - 1)
    return x[index], y[index]


def _interpolate(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Row k of `values` (K, N) through the points (x_k, y_k), constant beyond the ends."""
    right = torch.searchsorted(x, values, right=True).clamp(1, x.shape[1] - 1)
    x0, x1 = x.gather(1, right - 1), x.gather(1, right)
    share = ((values - x0) / (x1 - x0).clamp_min(1e-300)).clamp(0, 1)
    return torch.lerp(y.gather(1, right - 1), y.gather(1, right), share)


# ---- checks


def _read(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores = _inputs.floats(scores, "scores")
    if scores.ndim != 2 or scores.shape[0] == 0 or scores.shape[1] < 2:
        raise ValueError(
            f"expected scores of shape (N, K) with N >= 1 and K >= 2, got {tuple(scores.shape)}; "
            "pass link.scores(outputs), which has one column per class"
        )
    _inputs.finite_range(scores, "scores")
    return scores.double(), _inputs.classes(labels, scores)


def _check_classes(scores: Tensor, classes: int) -> None:
    if scores.ndim != 2 or scores.shape[1] != classes:
        raise ValueError(f"expected scores of shape (N, {classes}), as fitted, got {tuple(scores.shape)}")


def _fitted(value: Value | None) -> Value:
    if value is None:
        raise NotFitted("expected a fitted calibrator; call fit(scores, labels) with held-out scores first")
    return value


def _warn(why: str, which: str) -> None:
    warnings.warn(f"{why}; it is set to the {which} one considered. Hold out more data, or look at it", stacklevel=3)
