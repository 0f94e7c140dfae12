"""An increasing function per class, by pooling adjacent violators, all classes at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from squareloss import simplex
from squareloss.calibrators._held_out import Shown, check_classes, fitted, read
from squareloss.calibrators.temperature import Temperature, best_temperature


class Isotonic(Shown):
    """One increasing function per class, from its probability under `Temperature` to a better one, then renormalised.

    Class k's function is the isotonic regression of [label = k] on softmax(scores / T)_k, T fitted first, so that neither
    the scale of the scores nor a shift of them matters; between the samples it is interpolated linearly, beyond them it is
    constant, as scikit-learn's. Where all K functions give 0, the probabilities under T stand. It bends more than the
    others and needs more data: thousands of samples, tens per class; it may change predictions, and may give exact zeros.

    Arguments:
        temperature, x, y: T, the knots (K, L) of the functions and their values there (K, L), if they are known; else `fit`
            finds them.
    """

    def __init__(self, temperature: float | None = None, x: Tensor | None = None, y: Tensor | None = None) -> None:
        self._temperature = Temperature(temperature)
        self.x_, self.y_ = x, y  # (K, L): the knots of each class; the last one is repeated to fill a row

    @property
    def temperature_(self) -> float | None:
        """T."""
        return self._temperature.temperature_

    def fit(self, scores: Tensor, labels: Tensor) -> Self:
        """Find T and the K functions for held-out scores (N, K) and labels (N,)."""
        scores, labels = read(scores, labels)
        self._temperature = Temperature(best_temperature(scores, labels))
        self.x_, self.y_ = _isotonic(self._temperature.transform(scores), labels)
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """Probabilities (N, K) in the dtype of the scores."""
        knots, values = fitted(self.x_), fitted(self.y_)
        check_classes(scores, len(knots))
        x, y = knots.to(scores.device), values.to(scores.device)
        base = self._temperature.transform(simplex.wide(scores).double())
        shaped = _interpolate(base.T.contiguous(), x, y).T  # (N, K)
        total = shaped.sum(1, keepdim=True)
        return torch.where(total > 0, shaped / total.where(total > 0, torch.ones_like(total)), base).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "isotonic", "temperature": T, "x": knots per class, "y": values at them}."""
        knots = {"x": fitted(self.x_).tolist(), "y": fitted(self.y_).tolist()}
        return {"kind": "isotonic", "temperature": self.temperature_, **knots}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        x, y = (torch.tensor(state[name], dtype=torch.float64) for name in ("x", "y"))
        return cls(state["temperature"], x, y)


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
