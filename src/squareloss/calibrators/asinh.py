"""Scores bent by asinh, as square loss needs it: a slope, a centre, a width and perhaps a floor, by BFGS."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor
from typing_extensions import Self

from squareloss import simplex
from squareloss.calibrators._held_out import Shown, fitted, read, read_weight
from squareloss.calibrators.temperature import best_slope, spread
from squareloss.metrics._inputs import tensor

WIDTHS = (0.01, 0.1, 1.0, 10.0)  # of the spread: where the search for w begins


class Asinh(Shown):
    """softmax(a asinh((scores - c) / w)): logarithmic in the scores, and linear where they are within w of c.

    Square loss estimates probabilities themselves, so their logarithms are what softmax takes; but an estimate near zero is
    noise, of either sign, and has none. With w far beyond the spread of the scores this is `Temperature`, T = w / a. Scores are
    centred, each sample by its mean, so that neither a shift nor the scale of them matters; a > 0 and w > 0, so no prediction
    changes. The three numbers minimise the mean negative log likelihood plus prior / N, log a ~ N(0, 3^2), c / spread ~ N(0, 1)
    and log(w / spread) ~ N(0, 3^2), which keeps them finite if every sample is classified right. By BFGS, from c = 0 and from
    where estimates are zero, each with the best of four widths.

    Where labels may be wrong at random, or held-out samples are few, `fit(..., floor=True)` also finds a floor e, for
    (1 - e) softmax(...) + e / K, under a firmer prior: log a ~ N(1, 1), c / spread ~ N(0, 1/2^2), log(w / spread) ~ N(1/2, 1)
    and logit e ~ N(-4, 2^2). `SquareLossClassifier` reads its probabilities so.

    Arguments:
        slope, centre, width: a, c and w, if they are known; else `fit` finds them.
        floor: e, if it is known.
        class_weight: (K,), the weights that the network was trained with, to be undone: their logarithms are subtracted from
            what softmax takes. This moves predictions.
    """

    def __init__(
        self,
        slope: float | None = None,
        centre: float | None = None,
        width: float | None = None,
        floor: float = 0.0,
        class_weight: Tensor | None = None,
    ) -> None:
        for name, value in (("slope", slope), ("width", width)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"expected a {name} > 0, got {value}")
        if not 0 <= floor < 1:
            raise ValueError(f"expected a floor in [0, 1), got {floor}")
        if class_weight is not None:
            tensor(class_weight, "class_weight")
            if not bool((class_weight > 0).all()):
                raise ValueError(f"expected positive class weights to undo, got {float(class_weight.min())}")
        self.slope_, self.centre_, self.width_, self.floor_ = slope, centre, width, floor
        self.class_weight = class_weight

    def fit(self, scores: Tensor, labels: Tensor, *, weight: Tensor | None = None, floor: bool = False) -> Self:
        """Find a, c and w for held-out scores (N, K) and labels (N,).

        Arguments:
            scores, labels: held out.
            weight: of samples (N,), not negative; only their ratios matter, and a weight of 0 is absence. The prior is then
                divided by (sum w)^2 / sum w^2 in place of N: as many equal weights as these are worth.
            floor: find e as well, under the firmer prior.
        """
        scores, labels = read(scores, labels)
        weights = read_weight(weight, scores)
        if weight is not None:
            scores, labels, weights = (part[weights > 0] for part in (scores, labels, weights))
        size = spread(scores)
        scaled = (scores - scores.mean(1, keepdim=True)) / size
        held = HeldOut(scaled, labels, weights, self._offset(scores))
        best = (_search_with_floor if floor else _search)(held)
        self.slope_, self.centre_, self.width_ = math.exp(best[0]), size * float(best[1]), size * math.exp(best[2])
        self.floor_ = 1 / (1 + math.exp(-best[3])) if floor else 0.0
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """(1 - e) softmax(a asinh((scores - c) / w) - log class_weight) + e / K, (N, K), in the dtype of the scores."""
        slope, centre, width = fitted(self.slope_), fitted(self.centre_), fitted(self.width_)
        dim, wide = simplex.class_dim(scores), simplex.wide(scores)
        bent = torch.asinh((wide - wide.mean(dim, keepdim=True) - centre) / width)
        p = torch.softmax(slope * bent - self._offset(wide), dim)
        return ((1 - self.floor_) * p + self.floor_ / scores.shape[dim]).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "asinh", "slope": a, "centre": c, "width": w, "floor": e, "class_weight": [w_1, ..., w_K] or None}."""
        values = {"slope": fitted(self.slope_), "centre": fitted(self.centre_), "width": fitted(self.width_)}
        weights = None if self.class_weight is None else self.class_weight.tolist()
        return {"kind": "asinh", **values, "floor": self.floor_, "class_weight": weights}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        weights = state["class_weight"]
        tensor = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        return cls(state["slope"], state["centre"], state["width"], state["floor"], tensor)

    def _offset(self, scores: Tensor) -> Tensor:
        """The logarithms of the class weights along the class axis, or zero."""
        if self.class_weight is None:
            return scores.new_zeros(())
        dim, classes = simplex.class_dim(scores), len(self.class_weight)
        if scores.shape[dim] != classes:
            raise ValueError(f"expected scores of shape (N, {classes}), one per class weight, got {tuple(scores.shape)}")
        return self.class_weight.to(scores).log().view(-1, *[1] * (scores.ndim - dim - 1))


class HeldOut(NamedTuple):
    """What the numbers are fitted to."""

    scores: Tensor  # (N, K), centred, of spread 1
    labels: Tensor  # (N,)
    weight: Tensor  # (N,), positive; their sum is how many samples they are worth
    offset: Tensor  # (K,) or (), subtracted from what softmax takes


class Prior(NamedTuple):
    """Of independent normals, in (log a, c, log w) or (log a, c, log w, logit e)."""

    mean: np.ndarray
    std: np.ndarray


WEAK = Prior(np.zeros(3), np.array([3.0, 1.0, 3.0]))
# about where fits to a thousand held-out samples end, for four losses on data of 2 to 100 classes, with and without noise
FIRM = Prior(np.array([1.0, 0.0, 0.5, -4.0]), np.array([1.0, 0.5, 1.0, 2.0]))


def _search(held: HeldOut) -> np.ndarray:
    """(log a, c, log w) of the least loss."""
    zero = -1 / math.sqrt(held.scores.shape[1] - 1)  # of one-hot codes, centred and of spread 1
    return _best(held, [_start(held, centre) for centre in (0.0, zero)], WEAK, 1e-6)


def _search_with_floor(held: HeldOut) -> np.ndarray:
    """(log a, c, log w, logit e) of the least loss, from a wide bend, and from a narrow one nearer to where estimates are zero.

    For two classes the loss is even in c, so that a search from c = 0 alone would stay there.
    """
    half = -0.5 / math.sqrt(held.scores.shape[1] - 1)
    return _best(held, [np.array([1.0, 0.0, 0.5, -2.0]), np.array([1.0, half, -1.0, -2.0])], FIRM, 1e-4)


def _start(held: HeldOut, centre: float) -> np.ndarray:
    """Where a search begins: a centre, the best of four widths, and the slope that is best with them."""
    starts = []
    for width in WIDTHS:
        slope = best_slope(torch.asinh((held.scores - centre) / width), held.labels)
        starts.append(np.array([math.log(slope), centre, math.log(width)]))
    return min(starts, key=lambda at: _asinh_loss(at, held, WEAK)[0])


def _best(held: HeldOut, starts: list[np.ndarray], prior: Prior, tolerance: float) -> np.ndarray:
    """The least of the minima that BFGS finds."""

    def found(start: np.ndarray) -> OptimizeResult:
        return minimize(_asinh_loss, start, (held, prior), method="BFGS", jac=True, options={"gtol": tolerance})

    best: np.ndarray = min((found(start) for start in starts), key=lambda result: float(result.fun)).x
    return best


def _asinh_loss(at: np.ndarray, held: HeldOut, prior: Prior) -> tuple[float, np.ndarray]:
    """Mean negative log likelihood plus prior / N, and its gradient, in (log a, c, log w), or with logit e after them.

    N is the sum of the weights.
    """
    slope, centre, width = math.exp(at[0]), at[1], math.exp(at[2])
    # log e and log(1 - e); without a floor, of e = 0
    log_floor, log_rest = (-float(np.logaddexp(0, x)) for x in ((-at[3], at[3]) if len(at) == 4 else (math.inf, -math.inf)))
    samples, classes = float(held.weight.sum()), held.scores.shape[1]
    level = held.scores.new_tensor(log_floor - math.log(classes))
    value, gradient = 0.0, np.zeros(4)
    rows = max(1, 2**18 // classes)  # in runs that fit the cache
    for s, y, weight in zip(*(torch.split(part, rows) for part in held[:3]), strict=True):
        z = (s - centre) / width
        root = (1 + z.square()).sqrt()
        bent = (z.abs() + root).log().copysign(z)  # torch.asinh(z), and below log_softmax, at a third of the time
        logits = slope * bent - held.offset
        logits = logits - logits.logsumexp(1, keepdim=True)
        above = logits.gather(1, y[:, None])[:, 0] + log_rest
        likelihood = torch.logaddexp(above, level)
        value -= float((weight * likelihood).sum())
        share = (above - likelihood).exp()  # of the likelihood that is not the floor's
        residual = logits.exp().scatter_add(1, y[:, None], -torch.ones_like(bent[:, :1])) * (weight * share)[:, None]
        steep = residual / root
        by_three = [slope * float(t.sum()) for t in (residual * bent, -steep / width, -steep * z)]
        gradient += np.array([*by_three, float((weight * (share - math.exp(log_rest))).sum())])
    away = (at - prior.mean) / prior.std
    return (value + float(away @ away) / 2) / samples, (gradient[: len(at)] + away / prior.std) / samples
