"""The hot path of square loss as two Triton kernels: one read of the outputs forward, one read and one write backward.

In eager mode on a GPU a loss costs what its launches cost; these do class weights and ignored samples on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from squareloss._hard_square import Quadratic

ELEMENTS = 2048  # of one tile


@triton.jit
def _row(labels, weights, rows, n, ignore_index, WEIGHTED: tl.constexpr):  # type: ignore[no-untyped-def]
    y = tl.load(labels + rows, mask=rows < n, other=ignore_index)
    valid = y != ignore_index
    w = valid.to(tl.float32)
    if WEIGHTED:
        w = tl.load(weights + y, mask=valid, other=0.0).to(tl.float32)
    return y, w


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    f, labels, weights, partial, n, k, stride, ignore_index, off_weight, off, on_weight, on, constant,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y, w = _row(labels, weights, rows, n, ignore_index, WEIGHTED)
    total = tl.zeros([ROWS], tl.float32) + constant
    for start in range(0, k, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = (rows < n)[:, None] & (columns < k)[None, :]
        x = tl.load(f + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        is_on = columns[None, :] == y[:, None]
        residual = tl.where(is_on, x - on, x - off)
        square = tl.where(is_on, on_weight, off_weight) * residual * residual
        total += tl.sum(tl.where(inside, square, 0.0), axis=1)
    total = tl.where(w == 0.0, 0.0, w * total)
    tl.store(partial + tl.program_id(0), tl.sum(total, axis=0))
    tl.store(partial + tl.num_programs(0) + tl.program_id(0), tl.sum(w, axis=0))


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    f, labels, weights, coefficient, gradient, n, k, stride, ignore_index, off_weight, off, on_weight, on,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < k)[None, :]
    y, w = _row(labels, weights, rows, n, ignore_index, WEIGHTED)
    factor = tl.where(w == 0.0, 0.0, 2.0 * w * tl.load(coefficient).to(tl.float32))
    x = tl.load(f + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    is_on = columns[None, :] == y[:, None]
    slope = tl.where(is_on, on_weight * (x - on), off_weight * (x - off)) * factor[:, None]
    tl.store(gradient + rows.to(tl.int64)[:, None] * k + columns[None, :], slope, mask=inside)


def forward(f: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, q: Quadratic) -> tuple[Tensor, Tensor]:
    """sum_i w_i loss_i and sum_i w_i over the samples that are not ignored, as 0-d float32 tensors."""
    f, labels = _rows_contiguous(f), labels.contiguous()
    n, k, tile = f.shape[0], f.shape[1], _tile(f)
    blocks = triton.cdiv(n, tile["ROWS"])
    partial = torch.empty(2, blocks, device=f.device)
    _forward[(blocks,)](
        f, labels, labels if weight is None else weight.contiguous(), partial, n, k, f.stride(0), ignore_index, *q,
        **tile, WEIGHTED=weight is not None,
    )  # fmt: skip
    total, mass = partial.sum(1).unbind()
    return total, mass


def backward(f: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, q: Quadratic, coefficient: Tensor) -> Tensor:
    """The gradient in f (N, K) of coefficient * sum_i w_i loss_i."""
    f, labels = _rows_contiguous(f), labels.contiguous()
    n, k, tile = f.shape[0], f.shape[1], _tile(f)
    gradient = torch.empty((n, k), dtype=f.dtype, device=f.device)
    grid = (triton.cdiv(n, tile["ROWS"]), triton.cdiv(k, tile["COLUMNS"]))
    _backward[grid](
        f, labels, labels if weight is None else weight.contiguous(), coefficient, gradient, n, k, f.stride(0),
        ignore_index, *q[:4], **tile, WEIGHTED=weight is not None,
    )  # fmt: skip
    return gradient


def _rows_contiguous(f: Tensor) -> Tensor:
    return f if f.stride(1) == 1 else f.contiguous()


def _tile(f: Tensor) -> dict[str, Any]:
    columns = min(triton.next_power_of_2(f.shape[1]), ELEMENTS)
    return {"ROWS": ELEMENTS // columns, "COLUMNS": columns}
