"""What all calibrators ask of held-out scores and labels, and of being fitted; and how they are shown."""

from __future__ import annotations

import inspect
from typing import TypeVar

from torch import Tensor

from squareloss._warnings import warn
from squareloss.metrics import _inputs
from squareloss.simplex import class_dim

Value = TypeVar("Value")


class NotFitted(ValueError):
    """A calibrator was used before `fit`."""


class Shown:
    """Shows what `fit` found as the arguments that it would be made with: numbers to three digits, tensors by their shape."""

    def __repr__(self) -> str:
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, f"{name}_" if hasattr(self, f"{name}_") else name)
            if isinstance(value, Tensor):
                shown.append(f"{name}={tuple(value.shape)}")
            elif value != parameter.default:
                shown.append(f"{name}={value:.3g}")
            elif not shown:  # the first is what `fit` finds
                shown.append("not fitted")
        return f"{type(self).__name__}({', '.join(shown)})"


def read(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (N, K) in float64 and labels (N,), checked."""
    scores = _inputs.floats(scores, "scores")
    if scores.ndim != 2 or scores.shape[0] == 0 or scores.shape[1] < 2:
        hint = "; pass link.scores(outputs), which has one column per class"
        hint = _inputs.pixels_hint("scores") if scores.ndim > 2 else hint
        raise ValueError(f"expected scores of shape (N, K) with N >= 1 and K >= 2, got {tuple(scores.shape)}{hint}")
    _inputs.finite_range(scores, "scores")
    return scores.double(), _inputs.classes(labels, scores)


def read_weight(weight: Tensor | None, scores: Tensor) -> Tensor:
    """Weights of the samples (N,) in the dtype and on the device of the scores; ones for None.

    Their sum is (sum w)^2 / sum w^2, as many samples as they are worth: N if all are equal.
    """
    if weight is None:
        return scores.new_ones(len(scores))
    _inputs.tensor(weight, "weight")
    if weight.shape != scores.shape[:1]:
        raise ValueError(f"expected weight of shape ({len(scores)},), one per sample, got {tuple(weight.shape)}")
    wide = weight.to(scores)
    if not bool(((wide >= 0) & wide.isfinite()).all()) or float(wide.max()) == 0:
        raise ValueError("expected finite sample weights, none below 0 and not all 0")
    shares = wide / wide.max()
    return shares * (shares.sum() / shares.square().sum())


def check_classes(scores: Tensor, classes: int) -> None:
    """Raise for scores of another number of classes than were fitted."""
    class_dim(scores)  # says what is wrong with scores that are no tensor
    if scores.ndim != 2 or scores.shape[1] != classes:
        hint = _inputs.pixels_hint("scores", "") if scores.ndim > 2 else ""
        raise ValueError(f"expected scores of shape (N, {classes}), as fitted, got {tuple(scores.shape)}{hint}")


def fitted(value: Value | None) -> Value:
    """What `fit` found; raises if it was not called."""
    if value is None:
        raise NotFitted("expected a fitted calibrator; call fit(scores, labels) with held-out scores first")
    return value


def warn_of_bound(why: str, which: str) -> None:
    """Tell that a fit ended at a bound."""
    warn(f"{why}; it is set to the {which} one considered. Hold out more data, or look at it")
