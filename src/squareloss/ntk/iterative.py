"""Ridge with a kernel beyond the memory for its matrix: conjugate gradients with a Nystrom preconditioner.

It solves (H + mu I) a = y, as `solve` does and with the same mu, by products with H that are formed tile by tile and never
stored. What is stored is the preconditioner, n x rank numbers. All columns of y share every product.

The kernel's large eigenvalues are what makes conjugate gradients slow, and a sample of r points sees them: with their columns
H_nr and F F' = H_nr H_rr^-1 H_rn (Nystrom), of eigenvalues s_1 >= ... >= s_r and eigenvectors u_j, the preconditioner is

    P^-1 = sum_j (s_r + mu) / (s_j + mu) u_j u_j' + (I - sum_j u_j u_j'),

so that the work left depends on s_r / mu alone (Frangella, Tropp and Udell, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss import _checks
from squareloss._progress import Line
from squareloss._warnings import warn
from squareloss.ntk.kernels import Kernel, check_memory
from squareloss.ntk.solve import Solution, problem

ROWS = 8192  # of the preconditioner at a time
ROUNDS = 20  # of refinement, at most


@dataclass(frozen=True)
class Nystrom:
    """A low-rank approximation F F' of a kernel matrix, for any mu.

    Attributes:
        factor: F, (n, r). values: (r,) eigenvalues of F'F, ascending. vectors: (r, r) their eigenvectors.
    """

    factor: Tensor
    values: Tensor
    vectors: Tensor

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        points: Tensor,
        rank: int,
        *,
        weight: Tensor | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        progress: bool = False,
    ) -> Nystrom:
        """Sample `rank` of the points (n, d) uniformly, by the seed; F is stored in this dtype, computed in float64.

        With weights (n,), on the diagonal of S, it is of S^(1/2) H S^(1/2), as `conjugate_gradients` with them needs.
        """
        n, line = len(points), Line("preconditioner", progress)
        root = _root(weight, points).T  # (1, n)
        if not 1 <= rank <= n:
            raise ValueError(f"expected a rank from 1 to the {n} points there are, got {rank}")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:rank]
        chosen = points[order.to(points.device)]
        core = kernel.matrix(chosen)
        core.diagonal().add_(1e-12 * rank * kernel.diagonal)  # repeated points
        core = torch.linalg.cholesky(core)
        factor = points.new_empty(n, rank, dtype=dtype)
        gram = torch.zeros_like(core)
        for i in range(0, n, ROWS):
            part = torch.linalg.solve_triangular(core, kernel.matrix(chosen, points[i : i + ROWS]), upper=False)  # (r, rows)
            part *= root[:, i : i + ROWS]
            factor[i : i + ROWS] = part.T
            gram.addmm_(part, part.T)
            line(min(1.0, (i + ROWS) / n))
        line.close()
        values, vectors = torch.linalg.eigh(gram)
        return cls(factor, values.clamp_min(float(values[-1]) * 1e-14), vectors)

    def at(self, mu: float) -> Callable[[Tensor], Tensor]:
        """v -> P^-1 v, for v (n, K) in float64."""
        least = self.values[0] + mu
        middle = (self.vectors * ((least / (self.values + mu) - 1) / self.values)) @ self.vectors.T

        def apply(v: Tensor) -> Tensor:
            inner = middle @ (self.factor.T @ v.to(self.factor.dtype)).double()
            return v + (self.factor @ inner.to(self.factor.dtype)).double()

        return apply


def conjugate_gradients(
    x: Tensor,
    y: Tensor,
    mu: float,
    kernel: Kernel | None = None,
    *,
    weight: Tensor | None = None,
    tolerance: float = 1e-6,
    rank: int | None = None,
    dtype: torch.dtype = torch.float64,
    max_iterations: int = 1000,
    start: Tensor | None = None,
    preconditioner: Nystrom | None = None,
    seed: int = 0,
    memory_gb: float | None = None,
    progress: bool = False,
) -> Solution:
    """Solve (H + mu I) a = y to a relative residual |y - (H + mu) a| / |y| <= tolerance in every column, without storing H.

    The residual that ends it, and that the solution reports, is computed afresh in float64. With dtype=float32 the products
    on the way are in float32, two to three times as fast, and what their rounding leaves is solved for again.

    Arguments:
        x, y, kernel: as in `ridge`. mu: > 0.
        weight: positive, (n,), of the squares. It solves (S^(1/2) H S^(1/2) + mu I) b = S^(1/2) y then, with S the diagonal
            matrix of the weights and a = S^(1/2) b; the residual is that of b.
        rank: of the preconditioner; 5 sqrt(n), but 5,000 at most, if None. More pays where mu is small.
        dtype: float64 or float32, of the products on the way and of the preconditioner.
        max_iterations: products on the way, at most; a warning says if that was too few.
        start: a (n,) or (n, K) to begin at, such as the solution at a mu nearby.
        preconditioner: one made before for the same points and weights; it serves every mu.
        seed: of the points the preconditioner samples.
        memory_gb: as in `ridge`, for the preconditioner.
        progress: show it.
    """
    points, targets, kernel = problem(x, y, kernel)
    _checks.not_negative("mu", mu)
    if mu == 0:
        raise ValueError("expected mu > 0, got mu = 0; use `ridge`, which can interpolate")
    _checks.positive("tolerance", tolerance)
    if preconditioner is None:
        rank = min(len(points), rank or default_rank(len(points)))
        check_memory(len(points) * rank * dtype.itemsize, points.device, memory_gb, "a lower rank")
        preconditioner = Nystrom.of(kernel, points, rank, weight=weight, seed=seed, dtype=dtype, progress=progress)
    root, line = _root(weight, points), Line("conjugate gradients", progress)
    targets = root * targets
    system = _System(kernel, points, root, mu, preconditioner.at(mu), tolerance * targets.norm(dim=0), tolerance, line)
    dual = None if start is None else start.reshape_as(targets).double() / root
    dual, residual, iterations = system.solve(targets, dual, dtype, max_iterations)
    line.close()
    reached = float((residual.norm(dim=0) / targets.norm(dim=0).clamp_min(1e-300)).max())
    if reached > tolerance:
        warn(_unfinished(reached, tolerance, iterations), RuntimeWarning)
    return Solution(kernel, points, (root * dual).view_as(y), mu, reached, iterations)


def _root(weight: Tensor | None, points: Tensor) -> Tensor:
    """The square roots of weights (n,) as a column (n, 1); ones for None."""
    if weight is None:
        return points.new_ones(len(points), 1, dtype=torch.float64)
    if weight.shape != points.shape[:1] or not bool(((weight > 0) & weight.isfinite()).all()):
        raise ValueError(f"expected positive, finite weights of shape ({len(points)},), got others, {tuple(weight.shape)}")
    return weight.to(points.device).double().sqrt().unsqueeze(1)


@dataclass(frozen=True)
class _System:
    """S^(1/2) H S^(1/2) + mu I, with weights S, and its preconditioner."""

    kernel: Kernel
    points: Tensor
    root: Tensor  # (n, 1), of the weights
    mu: float
    precondition: Callable[[Tensor], Tensor]
    goal: Tensor  # (K,) norms of residuals that will do: tolerance |y|
    tolerance: float
    line: Line

    def times(self, v: Tensor, dtype: torch.dtype) -> Tensor:
        """The matrix times v."""
        return self.root * self.kernel.product(self.points, None, self.root * v, dtype=dtype) + self.mu * v

    def solve(self, targets: Tensor, start: Tensor | None, dtype: torch.dtype, limit: int) -> tuple[Tensor, Tensor, int]:
        """b, its residual in float64, and how many steps that took: each round descends from the residual of the one before."""
        b = torch.zeros_like(targets) if start is None else start
        residual = targets if start is None else targets - self.times(b, torch.float64)
        count = 0
        for _ in range(ROUNDS):
            if bool((residual.norm(dim=0) <= self.goal).all()) or count >= limit:
                break
            step, more = self.descend(residual, dtype, limit - count)
            b, count = b + step, count + more
            residual = targets - self.times(b, torch.float64)
        return b, residual, count

    def descend(self, rhs: Tensor, dtype: torch.dtype, limit: int) -> tuple[Tensor, int]:
        """Conjugate gradients from 0, every column by itself, until each residual's norm is half its goal; and how many steps.

        In float32 a residual is trusted over four decades, and the rest is left to another round.
        """
        floor = 1e-4 if dtype == torch.float32 else 1e-12
        goal = torch.maximum(self.goal / 2, floor * rhs.norm(dim=0))
        a, r = torch.zeros_like(rhs), rhs.clone()
        p = z = self.precondition(r)
        rz = (r * z).sum(0)
        count = 0
        while count < limit:
            count += 1
            active = r.norm(dim=0) > goal
            q = self.times(p, dtype)
            alpha = torch.where(active, rz / (p * q).sum(0), 0.0)
            a += alpha * p
            r -= alpha * q
            norm = r.norm(dim=0)
            self._report(norm)
            if bool((norm <= goal).all()):
                break
            z = self.precondition(r)
            new = (r * z).sum(0)
            p = z + torch.where(active, new / rz, 0.0) * p
            rz = new
        return a, count

    def _report(self, norm: Tensor) -> None:
        """How far: residuals fall by about the same factor in every iteration."""
        if self.line.show:
            worst = float((self.tolerance * norm / self.goal).nan_to_num().max())
            share = math.log(max(worst, 1e-300)) / math.log(self.tolerance / 2) if self.tolerance < 1 else 1.0
            self.line(min(max(share, 0.0), 1.0), f", residual {worst:.1e}")


def default_rank(n: int) -> int:
    """5 sqrt(n), but n and 5,000 at most: the preconditioner then costs as much as an iteration or two."""
    return min(n, 5000, math.ceil(5 * math.sqrt(n)))


def _unfinished(reached: float, tolerance: float, iterations: int) -> str:
    return (
        f"expected a relative residual of {tolerance:g}, got {reached:.2g} after {iterations} iterations; "
        "raise rank, mu or max_iterations, or use dtype=torch.float64"
    )
