"""The hot path of square loss as Triton kernels: one read of the outputs forward, one read and one write backward.

In eager mode on a GPU a small loss costs what its launches cost, so there are few: one each way for small batches, one more
forward to add up the blocks of large ones; and they are launched without Triton's look-up. Class weights, ignored samples and
the mean are done on the way. A label out of range cannot raise an error from here; it makes the loss and the gradient NaN.
"""

from __future__ import annotations

import functools
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


class Kernel:
    """A kernel that remembers what Triton compiled and launches it directly: Triton's own look-up takes longer than the kernel.

    Triton compiles anew for other types, for addresses and integers that are multiples of 16, and for integers that are 1.
    Here the types and the integers are the key, and addresses that are not multiples of 16 take the long way.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.compiled: dict[Any, Any] = {}

    def __call__(
        self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], length: int, integers: tuple[int, ...],
        floats: tuple[float, ...], constants: tuple[int, ...], warps: int = 4,
    ) -> None:  # fmt: skip
        """The arguments in the order of the kernel's; `length` is the one integer it is not specialised on."""
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(grid, tensors, length, integers, floats, constants, warps)
        addresses = [t.data_ptr() for t in tensors]
        key = (device, *[t.dtype for t in tensors], integers, constants)
        compiled = self.compiled.get(key)
        if compiled is not None and not any(address % 16 for address in addresses):
            compiled[grid](*addresses, length, *integers, *floats, *constants)
            return None
        compiled = self.function[grid](*tensors, length, *integers, *floats, *constants, num_warps=warps)
        if DIRECT and not any(address % 16 for address in addresses):
            self.compiled[key] = compiled
        return None


# before 3.5 a compiled kernel took its arguments in another way
DIRECT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 5)
FORWARD, FINISH, BACKWARD = Kernel(_forward), Kernel(_finish), Kernel(_backward)


def forward(
    f: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, mean: bool, q: Quadratic
) -> tuple[Tensor, Tensor]:
    """The loss, sum_i w_i loss_i (over sum_i w_i if `mean`), and sum_i w_i, as 0-d float32 tensors."""
    f, labels = _rows_contiguous(f), labels.contiguous()
    n, k = f.shape
    columns, rows, blocks, warps = _tiles(n, k)
    one, device = blocks == 1, f.device
    loss = torch.empty((), dtype=torch.float32, device=device)
    mass = torch.empty((), dtype=torch.float32, device=device)
    totals, masses = (loss, mass) if one else (torch.empty(blocks, dtype=torch.float32, device=device) for _ in range(2))
    weights = labels if weight is None else weight.contiguous()
    integers, constants = (k, f.stride(0), ignore_index), (rows, columns, weight is not None, mean and one)
    FORWARD((blocks, 1, 1), (f, labels, weights, totals, masses), n, integers, q, constants, warps)
    if not one:
        FINISH((1, 1, 1), (totals, masses, loss, mass), blocks, (), (), (BLOCKS, mean))
    return loss, mass


def backward(
    f: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, mean: bool, q: Quadratic, grad: Tensor, mass: Tensor
) -> Tensor:
    """The gradient in f (N, K) of the loss that `forward` gave with this mass, times grad."""
    f, labels = _rows_contiguous(f), labels.contiguous()
    n, k = f.shape
    gradient = torch.empty((n, k), dtype=f.dtype, device=f.device)
    columns = _columns(k)
    rows = TILE // columns
    grid = (-(-n // rows), -(-k // columns), 1)
    weights = labels if weight is None else weight.contiguous()
    integers, constants = (k, f.stride(0), ignore_index), (rows, columns, weight is not None, mean)
    BACKWARD(grid, (f, labels, weights, grad, mass, gradient), n, integers, q[:4], constants)
    return gradient


@functools.lru_cache(maxsize=256)
def _tiles(n: int, k: int) -> tuple[int, int, int, int]:
    """Columns and rows of a tile, the number of programs, and the warps of each."""
    columns = _columns(k)
    if n * columns <= SMALL:
        return columns, 4 * TILE // columns, 1, 16
    rows = TILE // columns
    return columns, rows, min(-(-n // rows), BLOCKS), 4


def _columns(k: int) -> int:
    return min(1 << (k - 1).bit_length(), TILE)  # the next power of two


def _rows_contiguous(f: Tensor) -> Tensor:
    return f if f.stride(1) == 1 else f.contiguous()
