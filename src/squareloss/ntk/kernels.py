"""Kernels of wide networks on the unit sphere: the NTK of the paper, the two-layer NTK and the Laplace kernel.

All three are functions of the cosine u = x . z alone:

    NTK            h(u) = u (pi - arccos u) / (2 pi)                  the first layer trained, as in the paper
    TwoLayerNTK    2 h(u) + sqrt(1 - u^2) / (2 pi)                    both layers trained
    Laplace        exp(-sqrt(2 - 2 u) / scale)                        |x - z| = sqrt(2 - 2 u)

Matrices and products are formed tile by tile, so that memory beyond the result is two tiles. A cosine is off by rounding, and
near u = 1 or -1 these functions turn an error of e into one of sqrt(e). So cosines within eight units of rounding of 1 or -1
count as 1 or -1, which makes repeated points repeat exactly, and the diagonal is the exact one.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from squareloss import _checks
from squareloss._precision import strict_float32

SNAP = 8.0  # units of rounding
NO_MATRIX = "the iterative solver, which stores no matrix: conjugate_gradients, or NTKClassifier(solver='iterative')"
CPU_TILE, CUDA_TILE = 512, 8192  # two tiles stay in the cache of a core; a GPU wants long loops


class Kernel(ABC):
    """A function of the cosine of two points of the unit sphere; a small frozen object.

    A kernel is scale * g(u), with g done in place: products multiply the scale into the thin side.
    """

    _scale: float
    diagonal: float
    _fused: tuple[int, float] | None = None  # its number and parameter in the GPU's product, if that knows it

    @abstractmethod
    def _apply(self, u: Tensor, spare: Tensor) -> Tensor:
        """g(u) of cosines u in [-1, 1], written over u or the spare tile of the same shape; returns which."""

    def of_cosine(self, u: Tensor) -> Tensor:
        """The kernel's values (...) at cosines u (...), which are clamped to [-1, 1]."""
        if not u.is_floating_point():
            raise TypeError(f"expected cosines of a floating-point type, got {u.dtype}")
        return self._apply(u.clamp(-1, 1), torch.empty_like(u)).mul_(self._scale)

    def matrix(
        self,
        x: Tensor,
        z: Tensor | None = None,
        *,
        out: Tensor | None = None,
        tile: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """The kernel matrix (n, m) of points x (n, d) and z (m, d).

        Without z it is that of x with itself: half of it is computed, the other half copied, and the diagonal is exact.

        Arguments:
            x, z: points of the unit sphere, on one device; see `to_sphere`.
            out: where to write, (n, m) of this dtype on this device; what is not there is allocated.
            tile: side of the square tiles; 512 on a CPU and 8192 on a GPU if None.
            dtype: float64, or float32 where half the memory counts for more.
        """
        left, right = _pair(x, z, dtype)
        out = _room(len(left), len(right), left, out)
        with _full_precision(dtype):
            for i, j, values in _tiles(self, left, right, tile, symmetric=z is None):
                torch.mul(values, self._scale, out=out[i, j])
                if z is None:
                    out[j, i] = out[i, j].T if i != j else _mirrored(out[i, j])
        if z is None:
            out.fill_diagonal_(self.diagonal)
        return out

    def product(
        self,
        x: Tensor,
        z: Tensor | None,
        v: Tensor,
        *,
        tile: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """K(x, z) @ v without the matrix: (n, K) for v (m, K), in float64; (n,) for v (m,).

        Arguments:
            x, z, tile: as in `matrix`; z = None stands for x, and half of the tiles are computed on a CPU.
            v: one column per output.
            dtype: in which tiles are computed; their products with v are added up in float64 in any case. In float32 on a
                GPU, up to 64 coordinates and 16 outputs, they stay in its registers.
        """
        left, right = _pair(x, z, dtype)
        if v.ndim not in (1, 2) or len(v) != len(right) or v.device != left.device:
            raise ValueError(
                f"expected v of shape ({len(right)},) or ({len(right)}, K) on {left.device}, got {tuple(v.shape)} on {v.device}"
            )
        thin = (v if v.ndim == 2 else v.unsqueeze(1)).double() * self._scale
        if dtype == torch.float32 and x.is_cuda and self._fused and (gpu := _gpu()) and gpu.fits(left, thin):
            answer: Tensor = gpu.product(*self._fused, left, right, thin.float(), _snap(dtype))
        else:
            with _full_precision(dtype):
                answer = _product(self, left, right, thin, tile, z is None)
        return answer if v.ndim == 2 else answer.squeeze(1)


@dataclass(frozen=True)
class NTK(Kernel):
    """h(u) = u (pi - arccos u) / (2 pi): the limit of a wide one-hidden-layer ReLU network whose first layer is trained.

    As u/4 + u arcsin(u) / (2 pi) it is linear plus even: odd degrees from three on have eigenvalue zero.
    """

    _scale = 0.25
    diagonal = 0.5
    _fused = (0, 0.0)

    def _apply(self, u: Tensor, spare: Tensor) -> Tensor:
        torch.asin(u, out=spare)
        return torch.addcmul(u, u, spare, value=2 / math.pi, out=u)


@dataclass(frozen=True)
class TwoLayerNTK(Kernel):
    """2 h(u) + sqrt(1 - u^2) / (2 pi): both layers of the network trained, from outer weights of variance one."""

    _scale = 1 / (2 * math.pi)
    diagonal = 1.0
    _fused = (1, 0.0)

    def _apply(self, u: Tensor, spare: Tensor) -> Tensor:
        torch.asin(u, out=spare).mul_(2).add_(math.pi).mul_(u)
        # (1 - u)(1 + u) would be exact near 1 and costs a tile more; u is off by rounding already
        return spare.add_(u.square_().neg_().add_(1).sqrt_())


@dataclass(frozen=True)
class Laplace(Kernel):
    """exp(-|x - z| / scale), restricted to the sphere.

    Arguments:
        scale: the length over which the kernel falls by e.
    """

    scale: float = 1.0
    _scale = 1.0
    diagonal = 1.0

    def __post_init__(self) -> None:
        _checks.positive("scale", self.scale)

    @property
    def _fused(self) -> tuple[int, float]:  # type: ignore[override]
        return 2, math.sqrt(2) / self.scale

    def _apply(self, u: Tensor, spare: Tensor) -> Tensor:
        return u.neg_().add_(1).sqrt_().mul_(-math.sqrt(2) / self.scale).exp_()


def to_sphere(x: Tensor, *, bias: bool = True) -> Tensor:
    """Points (n, d) on the unit sphere, in float64: (x, 1) / |(x, 1)|, (n, d + 1), or x / |x|, (n, d), without the bias.

    With the bias coordinate all points lie in an open hemisphere, where no two are antipodal and the NTK is positive definite
    on distinct points; without it, length is lost and the NTK holds only linear and even functions.
    """
    _finite(x)
    x = x.double()
    if bias:
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
    norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if not bool((norm > 0).all()):
        raise ValueError("expected points other than 0, which has no direction, got 0; drop it or use to_sphere(x, bias=True)")
    return x / norm


def finite_width(network: nn.Module | Tensor, x: Tensor, z: Tensor | None = None, *, chunk: int = 4096) -> Tensor:
    """The tangent kernel of a network at its present weights, H_ij = x_i . z_j / m #{r : w_r . x_i > 0 and w_r . z_j > 0}.

    It is that of f(x) = 1/sqrt(m) sum_r a_r relu(w_r . x) with a_r = +1 or -1 and W trained; as m grows at random W it tends
    to `NTK`. Points need not lie on the sphere.

    Arguments:
        network: a `OneHidden`, or its weights W (m, d); (..., m, d) for a stack of networks.
        x, z: points (n, d) and (p, d); z = None stands for x.
        chunk: how many units at a time: it bounds memory.

    Returns (..., n, p) in the dtype of x.
    """
    w = getattr(network, "weight", network)
    if not isinstance(w, Tensor) or w.ndim < 2:
        raise TypeError(f"expected a network with hidden weights W or a tensor (..., m, d), got {type(network).__name__}")
    w, other = w.detach().to(x), x if z is None else z
    counts = x.new_zeros(*w.shape[:-2], len(x), len(other), dtype=torch.float32)  # whole numbers: exact below 2^24
    for part in torch.split(w, chunk, -2):
        active = (x @ part.mT > 0).float()  # (..., n, c)
        counts += active @ (active if z is None else (other @ part.mT > 0).float()).mT
    return counts.to(x.dtype) * (x @ other.T) / w.shape[-2]


def check_memory(needed: float, device: torch.device, memory_gb: float | None = None, instead: str = NO_MATRIX) -> None:
    """Raise MemoryError if `needed` bytes are more than memory_gb, or if that is None, than the device has free."""
    available = _free(device) if memory_gb is None else memory_gb * 1e9
    if needed > available:
        raise MemoryError(
            f"expected at most {available / 1e9:.3g} GB on {device.type}, got a problem that needs {needed / 1e9:.3g} GB; "
            f"use fewer points, more memory, or {instead}"
        )


def on_sphere(x: Tensor, name: str = "x") -> Tensor:
    """Points (n, d) in float64 with length one to the last digit, or an error if some are not on the sphere."""
    _finite(x, name)
    wide = x.double()
    norm: Tensor = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    off = float((norm - 1).abs().max())
    if off > 10 * max(1.0, x.shape[1] ** 0.5) * torch.finfo(x.dtype).eps:
        raise ValueError(
            f"expected {name} on the unit sphere, got a point whose length is off by {off:.2g}; "
            "use to_sphere(x) to put points there with a bias coordinate, or to_sphere(x, bias=False)"
        )
    return wide / norm


def _finite(x: Tensor, name: str = "x") -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor {name}, got {type(x).__name__}; use torch.as_tensor({name})")
    if x.ndim != 2 or not x.is_floating_point() or len(x) == 0 or x.shape[1] == 0:
        raise ValueError(f"expected points {name} (n, d) of a floating-point type, got {tuple(x.shape)}, {x.dtype}")
    if not bool(x.isfinite().all()):
        raise ValueError(f"expected finite {name}, got NaN or infinity; drop or fill those points first")


def _pair(x: Tensor, z: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both sets of points, checked, in the dtype of the tiles."""
    if dtype not in (torch.float64, torch.float32):
        raise TypeError(f"expected dtype float64 or float32, got {dtype}")
    left = on_sphere(x).to(dtype)
    if z is None:
        return left, left
    if z.device != x.device or z.ndim != 2 or z.shape[1] != x.shape[1]:
        raise ValueError(
            f"expected z (m, {x.shape[1]}) on {x.device}, like x {tuple(x.shape)}, got {tuple(z.shape)} on {z.device}"
        )
    return left, on_sphere(z, "z").to(dtype)


def _room(n: int, m: int, like: Tensor, out: Tensor | None) -> Tensor:
    """The matrix to write to: the one given, if it fits, else a new one, if memory does."""
    if out is None:
        check_memory(n * m * like.element_size(), like.device)
        return like.new_empty(n, m)
    if out.shape != (n, m) or out.dtype != like.dtype or out.device != like.device:
        raise ValueError(
            f"expected out ({n}, {m}), {like.dtype} on {like.device}, got {tuple(out.shape)}, {out.dtype} on {out.device}"
        )
    return out


def _mirrored(block: Tensor) -> Tensor:
    """The lower half twice: products of a matrix with itself are symmetric only up to rounding."""
    return block.tril() + block.tril(-1).T


Tile = tuple[slice, slice, Tensor]


def _tiles(kernel: Kernel, x: Tensor, z: Tensor, tile: int | None, *, symmetric: bool) -> Iterator[Tile]:
    """Rows, columns and g of every tile, or of those on and below the diagonal; the tile is overwritten by the next one."""
    side = tile or (CPU_TILE if x.device.type == "cpu" else CUDA_TILE)
    if side < 1:
        raise ValueError(f"expected tile >= 1, got {tile}")
    room = x.new_empty(2, side * side)
    snap = _snap(x.dtype)
    for i in range(0, len(x), side):
        rows = slice(i, min(i + side, len(x)))
        for j in range(0, i + 1 if symmetric else len(z), side):
            columns = slice(j, min(j + side, len(z)))
            shape = (rows.stop - i, columns.stop - j)
            u, spare = (part[: shape[0] * shape[1]].view(shape) for part in room)
            torch.addmm(u, x[rows], z[columns].T, beta=0, alpha=snap, out=u)
            yield rows, columns, kernel._apply(u.clamp_(-1, 1), spare)


def _product(kernel: Kernel, x: Tensor, z: Tensor, v: Tensor, tile: int | None, symmetric: bool) -> Tensor:
    out = v.new_zeros(len(x), v.shape[1])
    narrow = v.to(x.dtype)
    peak = kernel.diagonal / kernel._scale
    for i, j, values in _tiles(kernel, x, z, tile, symmetric=symmetric):
        if symmetric and i == j:
            values.fill_diagonal_(peak)
        out[i] += values @ narrow[j]
        if symmetric and i != j:
            out[j] += values.T @ narrow[i]
    return out


def _snap(dtype: torch.dtype) -> float:
    """What cosines are multiplied by before they are clamped, so that those near 1 and -1 become 1 and -1."""
    return 1 + SNAP * torch.finfo(dtype).eps


@functools.cache
def _gpu() -> Any:
    """The product that stays in registers, where there is Triton."""
    try:
        from squareloss.ntk import _triton_product
    except ImportError:
        return None
    return _triton_product


def _full_precision(dtype: torch.dtype) -> AbstractContextManager[None]:
    """Float32 means float32 on a GPU, whatever the user chose for products elsewhere."""
    return strict_float32() if dtype == torch.float32 else nullcontext()


def _free(device: torch.device) -> float:
    """Bytes that can still be had on a device."""
    if device.type == "cuda":  # what torch holds and does not use counts as well
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf
