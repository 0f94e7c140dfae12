"""Scores bent by asinh, as square loss needs it: a slope, a centre and a width, by BFGS."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor
from typing_extensions import Self

from squareloss import simplex
from squareloss.calibrators._held_out import fitted, read
from squareloss.calibrators.temperature import RANGE, best_slope, slopes

WIDTHS = (0.01, 0.1, 1.0, 10.0)  # of the spread: where the search for w begins


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
        scores, labels = read(scores, labels)
        spread = 1 / (RANGE * slopes(scores)[0])
        scaled = (scores - scores.mean(1, keepdim=True)) / spread
        zero = -1 / math.sqrt(scores.shape[1] - 1)  # of one-hot codes, centred and of spread 1
        best = min((_search(scaled, labels, centre) for centre in (0.0, zero)), key=lambda found: float(found.fun)).x
        self.slope_, self.centre_, self.width_ = math.exp(best[0]), spread * float(best[1]), spread * math.exp(best[2])
        return self

    def transform(self, scores: Tensor) -> Tensor:
        """softmax(a asinh((scores - c) / w)), (N, K), in the dtype of the scores; differentiable."""
        slope, centre, width = fitted(self.slope_), fitted(self.centre_), fitted(self.width_)
        dim, wide = simplex.class_dim(scores), simplex.wide(scores)
        bent = torch.asinh((wide - wide.mean(dim, keepdim=True) - centre) / width)
        return torch.softmax(slope * bent, dim).to(scores.dtype)

    def state(self) -> dict[str, Any]:
        """{"kind": "asinh", "slope": a, "centre": c, "width": w}."""
        values = {"slope": fitted(self.slope_), "centre": fitted(self.centre_), "width": fitted(self.width_)}
        return {"kind": "asinh", **values}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The calibrator of such a dict."""
        return cls(state["slope"], state["centre"], state["width"])


def _search(scores: Tensor, labels: Tensor, centre: float) -> OptimizeResult:
    """A minimum of the loss in (log a, c, log w), from a centre and the best width to begin with; scores have spread 1."""
    starts = []
    for width in WIDTHS:
        slope = best_slope(torch.asinh((scores - centre) / width), labels, 1 / RANGE, RANGE)
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
