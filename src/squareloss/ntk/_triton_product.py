"""K(x, z) @ v on a GPU in one kernel: cosines, the kernel's function and the product stay in registers.

Formed by torch, a tile goes to memory and back five times, which is what the product then costs. Here nothing of it does.
Tiles are in float32; every 32 of them their sums are added up in float64. arcsin is pi/2 - sqrt(1 - u) P(u), with Hastings'
polynomial (Abramowitz and Stegun 4.4.46), right to 2e-8.
"""
# ruff: noqa: SIM108
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, CHUNK = 64, 64, 32
WIDEST = 64  # coordinates that fit in registers
OUTPUTS = 16  # that one product of tiles takes


@triton.jit
def _values(u, parameter, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    """g(u) of the kernel: 0 is NTK, 1 TwoLayerNTK, 2 Laplace."""
    if CODE == 2:
        g = tl.exp(-parameter * tl.sqrt(1.0 - u))
    else:
        a = tl.abs(u)
        p = -0.0012624911 * a + 0.0066700901
        p = p * a - 0.0170881256
        p = p * a + 0.0308918810
        p = p * a - 0.0501743046
        p = p * a + 0.0889789874
        p = p * a - 0.2145988016
        p = p * a + 1.5707963050
        arc = 1.5707963268 - tl.sqrt(1.0 - a) * p  # arcsin |u|
        if CODE == 0:
            g = u + 0.6366197724 * a * arc
        else:
            g = 3.1415926536 * u + 2.0 * a * arc + tl.sqrt((1.0 - a) * (1.0 + a))
    return g


@triton.jit(do_not_specialize=["n", "m"])
def _kernel(  # type: ignore[no-untyped-def]
    x, z, v, out, n, m, snap, parameter,
    D: tl.constexpr, K: tl.constexpr, CODE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    axis = tl.arange(0, D)
    left = tl.load(x + rows[:, None] * D + axis[None, :], mask=(rows < n)[:, None], other=0.0)  # (ROWS, D)
    if K == 1:
        total = tl.zeros([ROWS], tl.float64)
    else:
        total = tl.zeros([ROWS, K], tl.float64)
    for first in range(0, m, COLUMNS * CHUNK):
        if K == 1:
            part = tl.zeros([ROWS, COLUMNS], tl.float32)
        else:
            part = tl.zeros([ROWS, K], tl.float32)
        for start in range(first, min(first + COLUMNS * CHUNK, m), COLUMNS):
            columns = start + tl.arange(0, COLUMNS).to(tl.int64)
            inside = columns < m
            right = tl.load(z + columns[None, :] * D + axis[:, None], mask=inside[None, :], other=0.0)  # (D, COLUMNS)
            u = tl.dot(left, right, input_precision="ieee") * snap
            g = _values(tl.minimum(tl.maximum(u, -1.0), 1.0), parameter, CODE)
            if K == 1:
                part += g * tl.load(v + columns, mask=inside, other=0.0)[None, :]
            else:
                thin = tl.load(v + columns[:, None] * K + tl.arange(0, K)[None, :], mask=inside[:, None], other=0.0)
                part += tl.dot(g, thin, input_precision="ieee")
        if K == 1:
            total += tl.sum(part, axis=1).to(tl.float64)
        else:
            total += part.to(tl.float64)
    if K == 1:
        tl.store(out + rows, total, mask=rows < n)
    else:
        tl.store(out + rows[:, None] * K + tl.arange(0, K)[None, :], total, mask=(rows < n)[:, None])


def fits(x: Tensor, v: Tensor) -> bool:
    """Whether points (n, d) and the thin side (m, K) are of a size this is made for."""
    return x.shape[1] <= WIDEST and v.shape[1] <= OUTPUTS


def product(code: int, parameter: float, x: Tensor, z: Tensor, v: Tensor, snap: float) -> Tensor:
    """g(x z') @ v (n, K) in float64, of points x (n, d), z (m, d) and v (m, K) in float32."""
    d, k = max(16, triton.next_power_of_2(x.shape[1])), 1 if v.shape[1] == 1 else OUTPUTS
    left = F.pad(x, (0, d - x.shape[1])).contiguous()
    right = left if z is x else F.pad(z, (0, d - z.shape[1])).contiguous()
    thin = F.pad(v, (0, k - v.shape[1])).contiguous()
    out = torch.empty(len(x), k, dtype=torch.float64, device=x.device)
    with torch.cuda.device_of(x):
        _kernel[(triton.cdiv(len(x), ROWS),)](
            left, right, thin, out, len(x), len(z), snap, parameter,
            D=d, K=k, CODE=code, ROWS=ROWS, COLUMNS=COLUMNS, CHUNK=CHUNK, num_warps=4,
        )  # fmt: skip
    return out[:, : v.shape[1]]
