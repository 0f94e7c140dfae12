"""The hot path of square loss: class indices in, one number out, and nothing kept for the backward pass but the outputs.

Written as an autograd function because plain autograd would keep a second N x K buffer and pass over it several times.
`functional.square_loss` takes this path in eager mode; compiled code takes the plain formula, which the compiler fuses.
Its operations are few on purpose: with ten classes on a CPU, each costs more to call than to compute.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from squareloss import _checks
from squareloss.codings import Levels
from squareloss.simplex import wide


class Quadratic(NamedTuple):
    """off_weight sum_{j != y} (f_j - off)^2 + on_weight (f_y - on)^2 + constant: the loss of one sample with class y."""

    off_weight: float
    off: float
    on_weight: float
    on: float
    constant: float


@functools.lru_cache(maxsize=256)
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


Options = tuple[int, bool, Quadratic]  # the ignored label, whether to take the mean, the loss


class HardSquare(torch.autograd.Function):
    """sum_i w_{y_i} loss_i over the samples that are not ignored, divided by sum_i w_{y_i} for the mean: `hard_square`.

    Outputs (N, K, ...), labels (N, ...) of int64, not empty. Label values are checked on the CPU. Not for use within
    `torch.compile` and `torch.func`.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, labels: Tensor, weight: Tensor | None, options: Options) -> Tensor:
        loss: Tensor
        ignore_index, mean, q = ctx.options = options
        if weight is None and outputs.is_cpu and not 0 <= ignore_index < outputs.shape[1]:
            f, index = wide(outputs), labels.unsqueeze(1)
            try:
                on = f.gather(1, index)
            except RuntimeError:  # a label out of range: ignored, or wrong
                pass
            else:
                ctx.save_for_backward(outputs, index, on)
                return torch.scalar_tensor(_sum(f, index, on, q) / (on.numel() if mean else 1), dtype=f.dtype)
        if kernels := _kernels(outputs):
            loss, mass = kernels.forward(outputs, labels, weight, ignore_index, mean, q)
        else:
            loss, mass = _weighted_sum(outputs, labels, weight, ignore_index, q)
            loss = loss / mass if mean else loss
        ctx.save_for_backward(outputs, labels, weight, mass)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ignore_index, mean, q = ctx.options
        saved = ctx.saved_tensors
        first_order = not torch.is_grad_enabled()  # else someone will differentiate this gradient
        if len(saved) == 3:
            outputs, index, on = saved
            count = on.numel() if mean else 1
            if first_order and (factor := _number(grad)) is not None:
                gradient = _gradient(wide(outputs), index, on, q, factor / count)
            else:
                gradient = _slopes(wide(outputs), index, q) * (grad / count)
            return gradient, None, None, None  # autograd casts it to the dtype of the outputs
        outputs, labels, weight, mass = saved
        if first_order and (kernels := _kernels(outputs)):
            return kernels.backward(outputs, labels, weight, ignore_index, mean, q, grad, mass), None, None, None
        rows = _row_weights(labels, weight, ignore_index, mass.dtype)
        rows = torch.where(rows == 0, 0.0, rows * (grad / mass if mean else grad))  # all ignored: 0, not 0 x infinity
        slopes = _slopes(wide(outputs), _index(labels, ignore_index), q)
        return slopes * rows.unsqueeze(1), None, None, None


# torch's own wrapper around this method serves `torch.func` alone, and takes as long as two operations
hard_square: Callable[[Tensor, Tensor, Tensor | None, Options], Tensor] = super(torch.autograd.Function, HardSquare).apply


def _number(grad: Tensor) -> float | None:
    try:
        return grad.item()
    except RuntimeError:  # several at once: `torch.autograd.grad(..., is_grads_batched=True)`
        return None


def _sum(f: Tensor, index: Tensor, on: Tensor, q: Quadratic) -> float:
    """The sum of all losses, expanded into sums of f and f^2: two reads of the outputs, no buffer.

    The terms are as large as the loss at f = 0, so a loss below a hundredth of them is computed again from its residuals.
    """
    n, squares = on.numel(), _squares(f)
    if not math.isfinite(squares):
        return squares
    value = q.off_weight * (squares - 2 * q.off * f.sum().item() if q.off else squares)
    value -= 2 * (q.on_weight * q.on - q.off_weight * q.off) * on.sum().item()
    if q.on_weight != q.off_weight:
        value += (q.on_weight - q.off_weight) * on.square().sum().item()
    at_zero = n * (q.on_weight * q.on**2 - q.off_weight * q.off**2) + f.numel() * q.off_weight * q.off**2
    if value + at_zero < 0.01 * (at_zero + q.off_weight * squares):
        return _row_losses(f, index, q).sum().item()
    return value + at_zero + n * q.constant


def _squares(f: Tensor) -> float:
    """sum f^2, by rows or pieces if it is long: one dot product over millions of float32 loses digits."""
    if f.numel() <= 2**17:
        return _dot(f.reshape(-1))
    if f.ndim == 2 and f.is_contiguous():
        return _dot(torch.linalg.vector_norm(f, dim=1))
    return sum(_dot(piece) for piece in torch.split(f.reshape(-1), 2**17))


def _dot(v: Tensor) -> float:
    return torch.dot(v, v).item()


def _weighted_sum(
    outputs: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, q: Quadratic
) -> tuple[Tensor, Tensor]:
    """sum_i w_i loss_i and sum_i w_i."""
    losses, rows = weighted_losses(outputs, labels, weight, ignore_index, q)
    return losses.sum(), rows.sum()


def weighted_losses(
    outputs: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, q: Quadratic
) -> tuple[Tensor, Tensor]:
    """w_i loss_i and w_i of each sample (N, ...), by operations that autograd can record."""
    if outputs.is_cpu:
        _checks.indices(labels, outputs.shape[1], ignore_index)
    losses = _row_losses(wide(outputs), _index(labels, ignore_index), q)
    rows = _row_weights(labels, weight, ignore_index, losses.dtype)
    return torch.where(rows == 0, 0.0, rows * losses), rows  # 0, even where the loss is infinite


def _row_losses(f: Tensor, index: Tensor, q: Quadratic) -> Tensor:
    """The loss of each sample (N, ...)."""
    residuals = f - q.off
    residuals.scatter_(1, index, (f.gather(1, index) - q.on) * math.sqrt(q.on_weight / q.off_weight))
    squares = residuals.square() if residuals.requires_grad else residuals.square_()
    return q.off_weight * squares.sum(1) + q.constant


def _gradient(f: Tensor, index: Tensor, on: Tensor, q: Quadratic, factor: float) -> Tensor:
    """`_slopes` times `factor`, in one pass over the outputs; `on` is f at the class."""
    slope = 2 * factor * q.off_weight
    everywhere = _line(f, slope, q.off)
    if q.on_weight == q.off_weight:
        return everywhere.scatter_add_(1, index, torch.full_like(on, slope * (q.off - q.on)))
    return everywhere.scatter_(1, index, _line(on, 2 * factor * q.on_weight, q.on))


def _line(f: Tensor, slope: float, root: float) -> Tensor:
    return torch.rsub(f, -slope * root, alpha=-slope)  # slope (f - root), as one operation


def _slopes(f: Tensor, index: Tensor, q: Quadratic) -> Tensor:
    """The gradient of each sample's loss (N, K, ...)."""
    on = (f.gather(1, index) - q.on) * (2 * q.on_weight)
    return ((f - q.off) * (2 * q.off_weight)).scatter(1, index, on)


def _row_weights(labels: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    valid = (labels != ignore_index).to(dtype)
    return valid if weight is None else valid * weight.to(dtype)[_index(labels, ignore_index).squeeze(1)]


def _index(labels: Tensor, ignore_index: int) -> Tensor:
    """The labels as an index (N, 1, ...) into the class axis, 0 where they are ignored."""
    return labels.masked_fill(labels == ignore_index, 0).unsqueeze(1)


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
