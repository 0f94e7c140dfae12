"""Exact ridge and interpolation with a kernel: one mu by Cholesky, paths of mu by a few, flow times by eigendecomposition.

For targets y (n, K) everything here solves

    min over f of  sum_i |y_i - f(x_i)|^2 + mu |f|^2,      f(x) = sum_i h(x, x_i) a_i,      (H + mu I) a = y,

with the norm of the kernel's space. mu stands beside a sum, as in the paper, whose sum of losses + mu |W|^2 has this limit for
wide networks; it is `alpha` of scikit-learn's `KernelRidge`. mu = 0 interpolates.

The matrix is the only thing of its size: it is factorised in place, with the factor in the blocks on and below its diagonal,
while those above keep the kernel for the next mu of a path.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss import _checks
from squareloss._progress import announce
from squareloss.ntk.cholesky import Factor
from squareloss.ntk.kernels import NTK, Kernel, check_memory, on_sphere
from squareloss.ridge import KernelPath

SPAN = 100.0  # ratio of the largest to the smallest mu that share a factorisation
TOLERANCE = 1e-12  # relative residual of a path
STEPS = 400  # of a path's iteration, at most; it takes about fifty


@dataclass(frozen=True)
class Solution:
    """f(x) = sum_i h(x, x_i) a_i, fitted.

    Attributes:
        kernel: h. points: (n, d), on the sphere, float64. dual: a, (n, K) or (n,), float64. mu: the penalty.
        residual: |y - (H + mu) a| / |y|, the largest over outputs, where the solver knows it.
        iterations: how many it took; 0 if it took none.
    """

    kernel: Kernel
    points: Tensor
    dual: Tensor
    mu: float
    residual: float | None = None
    iterations: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        """f at points x (m, d) of the sphere: (m, K), or (m,) if y was (n,)."""
        return self.kernel.product(x, self.points, self.dual)


def ridge(
    x: Tensor,
    y: Tensor,
    mu: float,
    kernel: Kernel | None = None,
    *,
    memory_gb: float | None = None,
    progress: bool = False,
) -> Solution:
    """The exact solution at one mu, by a Cholesky factorisation in place: n^3 / 3 operations in 8 n^2 bytes.

    Arguments:
        x: points (n, d) of the unit sphere; see `to_sphere`.
        y: targets (n,) or (n, K).
        mu: the penalty; 0 interpolates, and needs distinct points.
        kernel: `NTK()` if None.
        memory_gb: refuse to take more; if None, more than the device has free.
        progress: show it.
    """
    points, targets, kernel = problem(x, y, kernel)
    _checks.not_negative("mu", mu)
    factor = Factor.of(kernel_matrix(kernel, points, memory_gb), mu, points, progress=progress)
    dual = factor.solve(targets)
    return Solution(kernel, points, dual.view_as(y), mu)


def ridge_path(
    x: Tensor,
    y: Tensor,
    mus: Sequence[float],
    kernel: Kernel | None = None,
    *,
    memory_gb: float | None = None,
    progress: bool = False,
) -> list[Solution]:
    """The solutions at every mu, in the order given, each to a relative residual of 1e-12.

    One factorisation serves all mu within a factor of 100 of each other. With A = (H + mu_0)^-1 from it, the solution at mu is
    a = A b with (I + (mu - mu_0) A) b = y, whose condition is at most ten, and one Krylov space of A (Lanczos with full
    orthogonalisation) holds b for all of them. Arguments are those of `ridge`.
    """
    points, targets, kernel = problem(x, y, kernel)
    for mu in mus:
        _checks.not_negative("mu", mu)
    matrix, solved = kernel_matrix(kernel, points, memory_gb), dict[float, Solution]()
    groups = _groups(mus)
    for i, group in enumerate(groups):
        pole = math.sqrt(group[0] * group[-1]) if len(group) > 1 else group[0]
        factor = Factor.of(matrix, pole, points, progress=progress, what=f"factorisation {i + 1} of {len(groups)}")
        for mu, (dual, residual, steps) in zip(group, _shifted(factor, targets, pole, group), strict=True):
            solved[mu] = Solution(kernel, points, dual.view_as(y), mu, residual, steps)
        if group is not groups[-1]:
            _restore(factor, kernel, points)
    return [solved[mu] for mu in mus]


@dataclass(frozen=True)
class Spectral:
    """All of ridge and of gradient flow from one eigendecomposition of H, about 30 times the cost of one factorisation.

    Attributes:
        kernel: h. points: (n, d). eigen: eigenvalues and eigenvectors of H, weighted if the samples are, and the targets in
            their basis. shape: of y.
    """

    kernel: Kernel
    points: Tensor
    eigen: KernelPath
    shape: torch.Size

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        kernel: Kernel | None = None,
        *,
        weight: Tensor | None = None,
        memory_gb: float | None = None,
        progress: bool = False,
    ) -> Spectral:
        """Decompose the kernel matrix of x (n, d) for targets y (n,) or (n, K); arguments as in `ridge`.

        weight: positive, (n,), of the squares: everything is then of sum_i weight_i |y_i - f(x_i)|^2 + mu |f|^2.
        """
        points, targets, kernel = problem(x, y, kernel)
        matrix = kernel_matrix(kernel, points, memory_gb, copies=4)
        if progress:
            announce("eigendecomposition", _eigen_seconds(matrix))
        return cls(kernel, points, KernelPath.from_kernel(matrix, targets, weight), y.shape)

    def ridge(self, mu: float) -> Solution:
        """The solution at one mu."""
        self.eigen.check_regular(mu, "mu")
        return Solution(self.kernel, self.points, self.eigen.solve(mu)[0].view(self.shape), mu)

    def flow(self, time: float, mu: float = 0.0) -> Solution:
        """Gradient flow from f = 0 at a time t: a = (I - exp(-(H + mu) t)) (H + mu)^-1 y.

        It is the flow of half the objective, df/dt = -(H (f - y) + mu f), with the penalty drawing weights to where they
        started. k steps of size zeta on the objective itself are the time t = 2 zeta k. t = infinity is `ridge(mu)`.
        """
        if math.isinf(time) and time > 0:
            return self.ridge(mu)
        _checks.not_negative("mu", mu)
        if not time >= 0:
            raise ValueError(f"expected a time >= 0, got {time}")
        rate = self.eigen.values + mu
        share = torch.where(rate > 0, -torch.expm1(-rate * time) / rate.clamp_min(1e-300), time)
        dual = self.eigen.weight.sqrt().unsqueeze(1) * (self.eigen.vectors @ (self.eigen.cross * share.unsqueeze(1)))
        return Solution(self.kernel, self.points, dual.view(self.shape), mu)

    def leave_one_out(self, mu: float) -> Tensor:
        """What the fit without sample i predicts for it, in the shape of y."""
        return self.leave_one_out_path([mu])[0]

    def leave_one_out_path(self, mus: Sequence[float]) -> list[Tensor]:
        """`leave_one_out` at every mu: several at once, in half the memory of H; the vectors are squared once for them."""
        for mu in mus:
            self.eigen.check_regular(mu, "mu")
        group = max(1, len(self.points) // (2 * self.eigen.targets.shape[1]))
        parts = [self.eigen.leave_one_out_path(mus[first : first + group]) for first in range(0, len(mus), group)]
        return [left_out.view(self.shape) for part in parts for left_out in part]


def problem(x: Tensor, y: Tensor, kernel: Kernel | None) -> tuple[Tensor, Tensor, Kernel]:
    """Points on the sphere, targets (n, K) in float64, and the kernel; or an error that says what is wrong."""
    points = on_sphere(x)
    if not isinstance(y, Tensor):
        raise TypeError(f"expected a tensor y, got {type(y).__name__}; use torch.as_tensor(y)")
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise ValueError(f"expected y of shape ({len(x)},) or ({len(x)}, K), got {tuple(y.shape)}")
    if y.device != x.device:
        raise ValueError(f"expected y on the device of x, {x.device}, got {y.device}; use y.to(...)")
    targets = y.reshape(len(x), -1).double()
    if not bool(targets.isfinite().all()):
        raise ValueError("expected finite y, got NaN or infinity; drop those samples first")
    return points, targets, check_kernel(kernel)


def check_kernel(kernel: Kernel | None) -> Kernel:
    """The kernel, `NTK()` for None; raise if it is none."""
    if kernel is None:
        return NTK()
    if not isinstance(kernel, Kernel):
        raise TypeError(f"expected a kernel such as NTK() or Laplace(), or None, got {kernel!r}")
    return kernel


def kernel_matrix(kernel: Kernel, points: Tensor, memory_gb: float | None, copies: int = 1) -> Tensor:
    """The matrix (n, n); raises MemoryError if so many of its size are more than memory_gb, or than the device has free."""
    check_memory(copies * 8.0 * len(points) ** 2, points.device, memory_gb)
    return kernel.matrix(points)


def _eigen_seconds(matrix: Tensor) -> float:
    """How long an eigendecomposition will take, by the time of a small one: n^3."""
    small = matrix[:512, :512]
    begin = time.perf_counter()
    float(torch.linalg.eigh(small)[0][0])  # waits for a GPU
    return (time.perf_counter() - begin) * (len(matrix) / len(small)) ** 3


def _restore(factor: Factor, kernel: Kernel, points: Tensor) -> None:
    """Put the kernel matrix back where its factor was: copied from above the diagonal, computed on it."""
    a, block = factor.matrix, factor.block
    for k in range(0, len(a), block):
        e = min(k + block, len(a))
        a[k:e, :k] = a[:k, k:e].mT
        kernel.matrix(points[k:e], out=a[k:e, k:e])


def _groups(mus: Sequence[float]) -> list[list[float]]:
    """Sorted values, split so that the largest of a group is at most SPAN times its smallest."""
    groups: list[list[float]] = []
    for mu in sorted(set(mus)):
        if groups and 0 < mu <= SPAN * groups[-1][0]:
            groups[-1].append(mu)
        else:
            groups.append([mu])
    return groups


def _shifted(factor: Factor, y: Tensor, pole: float, mus: Sequence[float]) -> list[tuple[Tensor, float, int]]:
    """For each mu: a (n, K), the largest relative residual over columns, and the number of solves with the factor."""
    norm = y.norm(dim=0).clamp_min(1e-300)
    if list(mus) == [pole]:
        return [(factor.solve(y), 0.0, 1)]
    space = Krylov(factor, y / norm)
    worst = math.inf
    while worst > TOLERANCE and len(space.diagonal) < min(STEPS, len(y)):
        for _ in range(4):  # to look costs a little, too
            space.extend()
        answers = [space.solve(mu - pole) for mu in mus]
        worst = max(residual for _, residual in answers)
    return [(space.combine(c) * norm, residual, len(space.diagonal)) for c, residual in answers]


class Krylov:
    """Lanczos for A = (H + mu_0)^-1 from y, every column (of norm one, or zero) by itself, fully orthogonalised.

    A V = V T + beta v e': in `basis` (j + 1, n, K) the last is v; T has `diagonal` and `beside`, each (K,) a step.
    """

    def __init__(self, factor: Factor, y: Tensor) -> None:
        self.factor = factor
        self.basis = [y]
        self.diagonal: list[Tensor] = []
        self.beside: list[Tensor] = []

    def extend(self) -> None:
        """One step further."""
        last = self.basis[-1]
        w = self.factor.solve(last)
        self.diagonal.append((w * last).sum(0))
        for _ in range(2):  # twice is enough
            for v in self.basis:
                w -= v * (v * w).sum(0)
        beta = w.norm(dim=0)
        scale = torch.where(beta > 1e-14 * self.diagonal[0].abs(), 1 / beta.clamp_min(1e-300), 0.0)  # 0: nothing left to find
        self.beside.append(beta * (scale > 0))
        self.basis.append(w * scale)

    def solve(self, shift: float) -> tuple[Tensor, float]:
        """Coefficients (K, j) of b, where (I + shift A) b = y in this space, and the relative residual that leaves."""
        j = len(self.diagonal)
        t = self._tridiagonal()[:, :j]  # (K, j, j)
        first = torch.zeros_like(t[:, 0])
        first[:, 0] = 1
        c = torch.linalg.solve(torch.eye(j).to(t) + shift * t, first)
        return c, float((shift * self.beside[-1] * c[:, -1]).abs().max())

    def combine(self, c: Tensor) -> Tensor:
        """a = A b (n, K), for b with the coefficients c (K, j)."""
        weights = (self._tridiagonal() @ c.unsqueeze(2)).squeeze(2)  # (K, j + 1)
        out = torch.zeros_like(self.basis[0])
        for v, w in zip(self.basis, weights.T, strict=True):
            out += v * w
        return out

    def _tridiagonal(self) -> Tensor:
        """T and the row of beta below it, (K, j + 1, j)."""
        diagonal, beside = torch.stack(self.diagonal, 1), torch.stack(self.beside, 1)
        j = diagonal.shape[1]
        t = diagonal.new_zeros(len(diagonal), j + 1, j)
        t.diagonal(dim1=1, dim2=2).copy_(diagonal)
        t.diagonal(-1, 1, 2).copy_(beside)
        t.diagonal(1, 1, 2).copy_(beside[:, :-1])
        return t
