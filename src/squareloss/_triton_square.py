"""The hot path of square loss as Triton kernels: one read of the outputs forward, one read and one write backward.

In eager mode on a GPU a small loss costs what its launches cost, so there are few: one each way for small batches, one more
forward to add up the blocks of large ones. Class weights, ignored samples and the mean are done on the way. A label out of
range cannot raise an error from here; it makes the loss and the gradient NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from squareloss._hard_square import Quadratic

TILE = 2048  # elements of a tile, for four warps
SMALL = 16384  # a batch this small is summed by one program
BLOCKS = 1024  # at most, to be added up in one go


@triton.jit
def _row(labels, weights, rows, n, k, ignore_index, WEIGHTED: tl.constexpr):  # type: ignore[no-untyped-def]
    y = tl.load(labels + rows, mask=rows < n, other=ignore_index)
    used = y != ignore_index
    known = (y >= 0) & (y < k)
    w = used.to(tl.float32)
    if WEIGHTED:
        w = tl.load(weights + y, mask=used & known, other=0.0).to(tl.float32)
    return y.to(tl.int32), tl.where(known | (y == ignore_index), w, float("nan"))


@triton.jit(do_not_specialize=["n", "ignore_index"])
def _forward(  # type: ignore[no-untyped-def]
    f, labels, weights, totals, masses, n, k, stride, ignore_index, off_weight, off, on_weight, on, constant,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([ROWS], tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    for first in range(tl.program_id(0) * ROWS, n, tl.num_programs(0) * ROWS):
        rows = first + tl.arange(0, ROWS)
        y, w = _row(labels, weights, rows, n, k, ignore_index, WEIGHTED)
        losses = tl.zeros([ROWS], tl.float32) + constant
        for start in range(0, k, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            inside = (rows < n)[:, None] & (columns < k)[None, :]
            x = tl.load(f + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)
            is_on = columns[None, :] == y[:, None]
            residual = tl.where(is_on, x - on, x - off)
            square = tl.where(is_on, on_weight, off_weight) * residual * residual
            losses += tl.sum(tl.where(inside, square, 0.0), axis=1)
        total += tl.where(w == 0.0, 0.0, w * losses)
        mass += w
    _store(totals + tl.program_id(0), masses + tl.program_id(0), total, mass, MEAN)


@triton.jit(do_not_specialize=["blocks"])
def _finish(totals, masses, loss, mass, blocks, BLOCKS: tl.constexpr, MEAN: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCKS)
    total = tl.load(totals + index, mask=index < blocks, other=0.0)
    _store(loss, mass, total, tl.load(masses + index, mask=index < blocks, other=0.0), MEAN)


@triton.jit
def _store(to_total, to_mass, total, mass, MEAN: tl.constexpr):  # type: ignore[no-untyped-def]
    sum_total = tl.sum(total, axis=0)
    sum_mass = tl.sum(mass, axis=0)
    if MEAN:
        sum_total = sum_total / sum_mass
    tl.store(to_total, sum_total)
    tl.store(to_mass, sum_mass)


@triton.jit(do_not_specialize=["n", "ignore_index"])
def _backward(  # type: ignore[no-untyped-def]
    f, labels, weights, grad, mass, gradient, n, k, stride, ignore_index, off_weight, off, on_weight, on,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < k)[None, :]
    y, w = _row(labels, weights, rows, n, k, ignore_index, WEIGHTED)
    coefficient = 2.0 * tl.load(grad).to(tl.float32)
    if MEAN:
        coefficient = coefficient / tl.load(mass)
    factor = tl.where(w == 0.0, 0.0, w * coefficient)  # all ignored: 0, not 0 x infinity
    x = tl.load(f + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    is_on = columns[None, :] == y[:, None]
    slope = tl.where(is_on, on_weight * (x - on), off_weight * (x - off)) * factor[:, None]
    tl.store(gradient + rows.to(tl.int64)[:, None] * k + columns[None, :], slope, mask=inside)


def forward(
    f: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, mean: bool, q: Quadratic
) -> tuple[Tensor, Tensor]:
    """The loss, sum_i w_i loss_i (over sum_i w_i if `mean`), and sum_i w_i, as 0-d float32 tensors."""
    f, labels = _rows_contiguous(f), labels.contiguous()
    n, k, columns = f.shape[0], f.shape[1], _columns(f)
    loss, mass = f.new_empty((), dtype=torch.float32), f.new_empty((), dtype=torch.float32)
    one = n * columns <= SMALL
    warps = 16 if one else 4
    rows = max(1, TILE * warps // 4 // columns)
    blocks = 1 if one else min(triton.cdiv(n, rows), BLOCKS)
    totals, masses = (loss, mass) if one else torch.empty(2, blocks, device=f.device).unbind()
    with torch.cuda.device_of(f):
        _forward[(blocks,)](
            f, labels, labels if weight is None else weight.contiguous(), totals, masses, n, k, f.stride(0), ignore_index, *q,
            ROWS=rows, COLUMNS=columns, WEIGHTED=weight is not None, MEAN=mean and one, num_warps=warps,
        )  # fmt: skip
        if not one:
            _finish[(1,)](totals, masses, loss, mass, blocks, BLOCKS=BLOCKS, MEAN=mean)
    return loss, mass


def backward(
    f: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, mean: bool, q: Quadratic, grad: Tensor, mass: Tensor
) -> Tensor:
    """The gradient in f (N, K) of the loss that `forward` gave with this mass, times grad."""
    f, labels = _rows_contiguous(f), labels.contiguous()
    n, k, columns = f.shape[0], f.shape[1], _columns(f)
    gradient = torch.empty((n, k), dtype=f.dtype, device=f.device)
    rows = TILE // columns
    with torch.cuda.device_of(f):
        _backward[(triton.cdiv(n, rows), triton.cdiv(k, columns))](
            f, labels, labels if weight is None else weight.contiguous(), grad, mass, gradient, n, k, f.stride(0),
            ignore_index, *q[:4], ROWS=rows, COLUMNS=columns, WEIGHTED=weight is not None, MEAN=mean,
        )  # fmt: skip
    return gradient


def _rows_contiguous(f: Tensor) -> Tensor:
    return f if f.stride(1) == 1 else f.contiguous()


def _columns(f: Tensor) -> Any:
    return min(triton.next_power_of_2(f.shape[1]), TILE)
