"""The options of `SquareLossClassifier`: checked, and made into a loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from squareloss._checks import choose
from squareloss.codings import one_hot_15, scaled_one_hot
from squareloss.losses import CrossEntropy, Loss, SquareLoss, Squentropy

LOSSES: dict[str, Callable[[int], Loss]] = {  # of the number of classes; names of `squareloss compare` mean the same
    "simplex": lambda K: SquareLoss(),
    "one_hot_15": lambda K: SquareLoss(one_hot_15(K), scale=1.0),
    "scaled_one_hot": lambda K: SquareLoss(scaled_one_hot(K)),
    "cross_entropy": lambda K: CrossEntropy(),
    "squentropy": lambda K: Squentropy(),
}


def check(estimator: Any) -> None:
    """Raise if an option of a `SquareLossClassifier` is not what it should be."""
    fraction = _is_number(estimator.validation_fraction) and 0 < estimator.validation_fraction < 1
    widths = isinstance(estimator.hidden, (Sequence, np.ndarray)) and not isinstance(estimator.hidden, str)
    for name, right, expected in [
        ("hidden", widths and all(_is_count(w) for w in estimator.hidden), "a tuple of positive integers, such as (100,)"),
        ("learning_rate", _is_number(estimator.learning_rate) and estimator.learning_rate > 0, "a number > 0"),
        ("batch_size", estimator.batch_size == "auto" or _is_count(estimator.batch_size), "'auto' or an integer >= 1"),
        ("max_epochs", _is_count(estimator.max_epochs), "an integer >= 1"),
        ("weight_decay", _is_number(estimator.weight_decay) and estimator.weight_decay >= 0, "a number >= 0"),
        ("early_stopping", estimator.early_stopping in (True, False, "auto"), "True, False or 'auto'"),
        ("validation_fraction", fraction, "a number between 0 and 1"),
        ("patience", _is_count(estimator.patience), "an integer >= 1"),
    ]:
        if not right:
            raise ValueError(f"expected {name} to be {expected}, got {getattr(estimator, name)!r}")


def make_loss(loss: str | Loss, num_classes: int) -> Loss:
    """A loss of its own for the estimator, without reduction: it weights samples itself."""
    if isinstance(loss, str):
        loss = LOSSES[choose("loss", loss, LOSSES, "an instance of a squareloss loss")](num_classes)
    elif not isinstance(loss, Loss):
        raise TypeError(f"expected loss to be one of {', '.join(LOSSES)} or an instance of a squareloss loss, got {loss!r}")
    loss = copy.deepcopy(loss)
    loss.reduction, loss.ignore_index = "none", -100
    return loss


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1
