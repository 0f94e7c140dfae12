"""Predictions and labels, checked once and read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from squareloss import _checks
from squareloss._warnings import warn


@dataclass(frozen=True)
class Predictions:
    """Checked predictions: the values as given, and what the metrics read off them.

    Attributes:
        values: probabilities or raw eta (N, K), float32 or float64.
        labels: the classes (N,), int64, on the device of the values.
        outside: the share of the values outside [0, 1].
    """

    values: Tensor
    labels: Tensor
    outside: float

    @property
    def samples(self) -> int:
        """N."""
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @cached_property
    def _top(self) -> tuple[Tensor, Tensor]:
        value, index = self.values.max(1)
        return value, index

    @property
    def confidence(self) -> Tensor:
        """The largest value of each sample, clamped to [0, 1]: (N,), in the dtype of the values."""
        return self._top[0].clamp(0, 1)

    @property
    def correct(self) -> Tensor:
        """1 where the class with the largest value, the first if several share it, is the label: (N,), float64."""
        return (self._top[1] == self.labels).double()

    @cached_property
    def residual(self) -> Tensor:
        """confidence - correct: (N,), float64."""
        return self.confidence - self.correct

    @cached_property
    def true_class(self) -> Tensor:
        """The value of the true class: (N,), float64."""
        return self.values.gather(1, self.labels[:, None]).squeeze(1).double()

    @property
    def outside_mass(self) -> float:
        """The mean over samples of sum_k max(-v_k, v_k - 1, 0)."""
        if self.outside == 0:
            return 0.0
        return sum(float((rows - rows.clamp(0, 1)).abs().sum(dtype=torch.float64)) for rows in self.blocks()) / len(self.values)

    def blocks(self) -> tuple[Tensor, ...]:
        """The values in runs of rows, so that temporaries stay small."""
        return torch.split(self.values, max(1, 2**22 // self.values.shape[1]))


def read(values: Tensor, labels: Tensor) -> Predictions:
    """Check predictions (N, K) and labels (N,); raise a clear error for what no metric can use."""
    values = floats(values, "probabilities (or raw eta)")
    if values.ndim != 2 or values.shape[0] == 0 or values.shape[1] < 2:
        hint = (
            "; for one probability per sample use torch.stack([1 - p, p], 1)"
            if values.ndim == 1 or 1 in values.shape[1:]
            else ""
        )
        hint = pixels_hint("p") if values.ndim > 2 else hint
        raise ValueError(f"expected probabilities of shape (N, K) with N >= 1 and K >= 2, got {tuple(values.shape)}{hint}")
    low, high = finite_range(values, "probabilities")
    labels = classes(labels, values)
    slack = 4 * torch.finfo(values.dtype).eps  # a softmax may exceed one by rounding
    outside = 0.0 if low >= -slack and high <= 1 + slack else _share_outside(values, slack)
    return Predictions(values, labels, outside)


def pixels_hint(name: str, rest: str = ", labels.flatten()") -> str:
    """What to pass where every pixel of (N, K, H, W) is a sample, or every place of (N, K, d1, ...)."""
    return f"; for (N, K, d1, ...) pass {name}.movedim(1, -1).flatten(0, -2){rest}"


def finite_range(values: Tensor, what: str) -> tuple[float, float]:
    """The smallest and the largest value, in one pass that also finds NaN and infinity."""
    low, high = (float(end) for end in torch.aminmax(values))
    if not (abs(low) < float("inf") and abs(high) < float("inf")):
        wrong = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"expected finite {what}, got {wrong} NaN or infinite of {values.numel()}; look at the network's outputs"
        )
    return low, high


def tensor(values: Tensor, what: str) -> None:
    """Raise for anything but a tensor."""
    if not isinstance(values, Tensor):
        raise TypeError(f"expected {what} as a torch.Tensor, got {type(values).__name__}; use torch.as_tensor(...)")


def floats(values: Tensor, what: str) -> Tensor:
    """A detached tensor in float32 or float64, or a clear error."""
    tensor(values, what)
    if not values.is_floating_point():
        raise TypeError(f"expected floating-point {what}, got {values.dtype}; pass one value per class, not classes")
    values = values.detach()
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def classes(labels: Tensor, values: Tensor) -> Tensor:
    """Labels (N,) for values (N, K), checked, as int64 on the device of the values."""
    tensor(labels, "labels")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"expected integer labels, got {labels.dtype}; use labels.long() of class indices")
    if labels.shape != values.shape[:1]:
        raise ValueError(f"expected labels of shape ({len(values)},) for {tuple(values.shape)}, got {tuple(labels.shape)}")
    _checks.indices(labels, values.shape[1])
    return labels.to(values.device, torch.long)


def _share_outside(values: Tensor, slack: float) -> float:
    total = float(values.sum(dtype=torch.float64)) / len(values)
    if abs(total - 1) > 0.5:
        warn(
            f"expected probabilities or raw eta, whose rows sum to about one; these leave [0, 1] and sum to {total:.3g} on "
            "average. If they are scores or logits, pass link.probabilities(outputs) or coding.eta(outputs) instead"
        )
    return int(((values < -slack) | (values > 1 + slack)).sum()) / values.numel()
