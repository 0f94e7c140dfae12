"""The hot path of square loss as Triton kernels: one read of the outputs forward, one read and one write backward.

In eager mode on a GPU a small loss costs what its launches cost, so there are few: one each way for small batches, one more
forward to add up the blocks of large ones. Class weights, ignored samples and the mean are done on the way. A label out of
range cannot raise an error from here; it makes the loss and the gradient NaN.
"""
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False, warn-unused-ignores=False

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
DIRECT = tuple(map(int, triton.__version__.split(".")[:2])) == (3, 6)  # whose compiled kernels we know how to launch


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
    """The loss, sum_i w_i loss_i (over sum_i w_i if `mean`), as a 0-d float32 tensor; and sum_i w_i, first in a float32 one."""
    f, labels, weights = _laid_out(f, labels, weight)
    n, k = f.shape
    columns = _columns(k)
    loss = torch.empty((), dtype=torch.float32, device=f.device)
    one = n * columns <= SMALL
    warps = 16 if one else 4
    rows = max(1, TILE * warps // 4 // columns)
    sizes, constants = (n, k, f.stride(0), ignore_index), (rows, columns, weight is not None, mean and one)
    if one:
        mass = torch.empty(1, dtype=torch.float32, device=f.device)
        _launch(_forward, (1, 1, 1), (f, labels, weights, loss, mass), sizes, q, constants, warps)
        return loss, mass
    blocks = min(-(-n // rows), BLOCKS)
    space = torch.empty(3 * BLOCKS, dtype=torch.float32, device=f.device)  # sum_i w_i, then both sums of every block
    totals, masses = space[BLOCKS:], space[2 * BLOCKS :]
    _launch(_forward, (blocks, 1, 1), (f, labels, weights, totals, masses), sizes, q, constants, warps)
    _launch(_finish, (1, 1, 1), (totals, masses, loss, space), (blocks,), (), (BLOCKS, mean))
    return loss, space


def backward(
    f: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, mean: bool, q: Quadratic, grad: Tensor, mass: Tensor
) -> Tensor:
    """The gradient in f (N, K) of the loss that `forward` gave with this mass, times grad."""
    f, labels, weights = _laid_out(f, labels, weight)
    n, k = f.shape
    columns = _columns(k)
    gradient = torch.empty((n, k), dtype=f.dtype, device=f.device)
    rows = TILE // columns
    grid = (-(-n // rows), -(-k // columns), 1)
    sizes, constants = (n, k, f.stride(0), ignore_index), (rows, columns, weight is not None, mean)
    _launch(_backward, grid, (f, labels, weights, grad, mass, gradient), sizes, q[:4], constants)
    return gradient


_compiled: dict[tuple[Any, ...], Any] = {}


def _launch(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    numbers: tuple[float, ...],
    constants: tuple[Any, ...],
    warps: int = 4,
) -> None:
    """Launch a kernel; from the second time on straight through what Triton compiled, which it takes 100 us to find again.

    The key holds all that Triton compiles for, and more: types, alignment, sizes, but the first of them, on which no kernel is
    specialised, by its type alone, so that batches of any length share one.
    """
    device = tensors[0].get_device()
    addresses = [t.data_ptr() for t in tensors]
    aligned = [a % 16 == 0 for a in addresses]
    key = (kernel.fn, device, warps, sizes[0] >> 31, *sizes[1:], *constants, *[t.dtype for t in tensors], *aligned)
    compiled = _compiled.get(key)
    if compiled is not None and device == torch._C._cuda_getDevice():
        stream = torch._C._cuda_getCurrentRawStream(device)
        # None: no hooks of profilers
        compiled.run(
            *grid,
            stream,
            compiled.function,
            compiled.packed_metadata,
            None,
            None,
            None,
            *addresses,
            *sizes,
            *numbers,
            *constants,
        )
        return
    with torch.cuda.device_of(tensors[0]):
        compiled = kernel[grid](*tensors, *sizes, *numbers, *constants, num_warps=warps)
    if DIRECT:
        _compiled[key] = compiled


def _laid_out(f: Tensor, labels: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs as the kernels read them; the labels in place of weights that are not there."""
    f = f if f.stride(1) == 1 else f.contiguous()
    labels = labels.contiguous()
    return f, labels, labels if weight is None else weight.contiguous()


def _columns(k: int) -> int:
    return min(1 << (k - 1).bit_length(), TILE)
