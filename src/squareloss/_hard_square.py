"""The hot path of square loss: class indices in, one number out, and nothing kept for the backward pass but the outputs.

Written as an autograd function because plain autograd would keep a second N x K buffer and pass over it several times.
`functional.square_loss` takes this path in eager mode; compiled code takes the plain formula, which the compiler fuses.
On the CPU the value comes from sums of f and f^2, expanded: its rounding error is that of the loss at f = 0, not of the loss
itself (about 1e-7 of it). The gradient comes from the residuals, with no such loss.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from squareloss.codings import Levels


class Quadratic(NamedTuple):
    """off_weight sum_{j != y} (f_j - off)^2 + on_weight (f_y - on)^2 + constant: the loss of one sample with class y."""

    off_weight: float
    off: float
    on_weight: float
    on: float
    constant: float


def quadratic(levels: Levels, num_classes: int, label_smoothing: float, factor: float) -> Quadratic:
    """The loss of a sample, times `factor`, its label smoothed: the expectation over labels is again of this form."""
    k, gap = levels.on_weight, levels.on - levels.off

    def expected(q: float) -> tuple[float, float, float]:  # of q k (f - on)^2 + (1 - q) (f - off)^2
        w = k * q + 1 - q
        return w, (k * q * levels.on + (1 - q) * levels.off) / w, k * q * (1 - q) * gap**2 / w

    off_weight, off, off_constant = expected(label_smoothing / num_classes)
    on_weight, on, on_constant = expected(1 - label_smoothing + label_smoothing / num_classes)
    constant = (num_classes - 1) * off_constant + on_constant
    return Quadratic(off_weight * factor, off, on_weight * factor, on, constant * factor)


class HardSquare(torch.autograd.Function):
    """sum_i w_{y_i} loss_i over the samples that are not ignored, divided by sum_i w_{y_i} if `mean`.

    `clean` promises that no sample is ignored. Outputs (N, K, ...), labels (N, ...) of int64.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, clean: bool,
        mean: bool, q: Quadratic,
    ) -> Tensor:  # fmt: skip
        ctx.options = (ignore_index, mean, q)
        if clean and weight is None and outputs.is_cpu:
            ctx.save_for_backward(outputs, labels)
            value = _expanded_sum(_wide(outputs), labels, q) / (labels.numel() if mean else 1)
            return torch.scalar_tensor(value, dtype=_wide_dtype(outputs))
        if kernels := _kernels(outputs):
            total, mass = kernels.forward(outputs, labels, weight, ignore_index, q)
        else:
            rows = _row_weights(labels, weight, ignore_index, _wide_dtype(outputs))
            total, mass = (_row_losses(_wide(outputs), _safe(labels, ignore_index), q) * rows).sum(), rows.sum()
        ctx.save_for_backward(outputs, labels, weight, mass)
        return total / mass if mean else total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ignore_index, mean, q = ctx.options
        outputs, labels, *rest = ctx.saved_tensors
        if not rest:
            coefficient = grad / labels.numel() if mean else grad
            return _residuals(_wide(outputs), labels, q).mul_(coefficient).to(outputs.dtype), *[None] * 6
        weight, mass = rest
        coefficient = grad / mass if mean else grad
        if (kernels := _kernels(outputs)) and not torch.is_grad_enabled():  # enabled: for a second derivative
            return kernels.backward(outputs, labels, weight, ignore_index, q, coefficient), *[None] * 6
        rows = _row_weights(labels, weight, ignore_index, mass.dtype)
        rows = torch.where(rows == 0, 0.0, rows * coefficient).unsqueeze(1)  # all ignored: 0, not 0 x infinity
        residuals = _residuals(_wide(outputs), _safe(labels, ignore_index), q)
        return residuals.mul_(rows).to(outputs.dtype), *[None] * 6


def _expanded_sum(f: Tensor, labels: Tensor, q: Quadratic) -> float:
    """The sum of all losses from sums over f: two reads of the outputs, no buffer."""
    flat, on, n = f.reshape(-1), f.gather(1, labels.unsqueeze(1)).reshape(-1), labels.numel()
    squares = torch.dot(flat, flat).item()
    first = flat.sum().item() if q.off else 0.0
    everywhere = q.off_weight * (squares - 2 * q.off * first + flat.numel() * q.off**2)
    at_class = -2 * (q.on_weight * q.on - q.off_weight * q.off) * on.sum().item()
    if q.on_weight != q.off_weight:
        at_class += (q.on_weight - q.off_weight) * torch.dot(on, on).item()
    at_class += n * (q.on_weight * q.on**2 - q.off_weight * q.off**2)
    # rounding may leave a perfect fit a hair below zero
    return max(everywhere + at_class, 0.0) + n * q.constant if math.isfinite(squares) else squares


def _row_losses(f: Tensor, labels: Tensor, q: Quadratic) -> Tensor:
    index = labels.unsqueeze(1)
    residuals = (f - q.off).mul_(math.sqrt(q.off_weight))
    residuals.scatter_(1, index, f.gather(1, index).sub_(q.on).mul_(math.sqrt(q.on_weight)))
    return residuals.square_().sum(1).add_(q.constant)


def _residuals(f: Tensor, labels: Tensor, q: Quadratic) -> Tensor:
    """The gradient of each sample's loss (N, K, ...)."""
    index = labels.unsqueeze(1)
    on = (f.gather(1, index) - q.on).mul_(q.on_weight / q.off_weight)
    return (f - q.off).scatter_(1, index, on).mul_(2 * q.off_weight)


def _row_weights(labels: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    valid = (labels != ignore_index).to(dtype)
    return valid if weight is None else valid * weight.to(dtype)[_safe(labels, ignore_index)]


def _safe(labels: Tensor, ignore_index: int) -> Tensor:
    return labels.masked_fill(labels == ignore_index, 0)


def _wide_dtype(f: Tensor) -> torch.dtype:
    return f.dtype if f.dtype == torch.float64 else torch.float32


def _wide(f: Tensor) -> Tensor:
    return f.to(_wide_dtype(f))


@functools.cache
def _triton_square() -> Any:
    """The module of Triton kernels, imported at first use; None where there is no Triton."""
    try:
        from squareloss import _triton_square

        return _triton_square
    except ImportError:
        return None


def _kernels(outputs: Tensor) -> Any:
    """The Triton kernels if they can serve these outputs, else None: the same torch operations as on the CPU do."""
    return _triton_square() if outputs.is_cuda and outputs.ndim == 2 and outputs.dtype != torch.float64 else None
