"""Cholesky factorisation in place, in blocks: one code for a CPU and for a GPU whose memory the matrix nearly fills."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss._progress import Line

CPU_BLOCK, CUDA_BLOCK = 384, 4096


@dataclass(frozen=True)
class Factor:
    """A Cholesky factor L L' = H + mu I, in the lower half of the matrix that H was in.

    Attributes:
        matrix: (n, n); its blocks above the diagonal still hold H. block: side of the blocks.
    """

    matrix: Tensor
    block: int

    @classmethod
    def of(
        cls,
        matrix: Tensor,
        mu: float,
        points: Tensor | None = None,
        *,
        block: int | None = None,
        progress: bool = False,
        what: str = "factorisation",
    ) -> Factor:
        """Factorise in place; the points (n, d), if given, help to say why a matrix is singular."""
        block = block or (CPU_BLOCK if matrix.device.type == "cpu" else CUDA_BLOCK)
        matrix.diagonal().add_(mu)
        largest = float(matrix.diagonal().max())
        n, line = len(matrix), Line(what, progress)
        for k in range(0, n, block):
            if not _factorise_panel(matrix, k, block):
                raise _singular(mu, points)
            line(1 - ((n - k) / n) ** 3 if k else 0.0)
        line.close()
        pivots = matrix.diagonal().square()
        if mu == 0 and bool(pivots.min() <= n * torch.finfo(matrix.dtype).eps * largest):
            raise _singular(mu, points)
        return cls(matrix, block)

    def solve(self, y: Tensor) -> Tensor:
        """(H + mu I)^-1 y for y (n, K), by substitution forwards and backwards."""
        y = y.clone()
        starts = range(0, len(y), self.block)
        for k in starts:
            self._forward(y, k, 0)
        for k in reversed(starts):
            e = min(k + self.block, len(y))
            y[k:e] -= self.matrix[e:, k:e].mT @ y[e:]
            y[k:e] = torch.linalg.solve_triangular(self.matrix[k:e, k:e].mT, y[k:e], upper=True)
        return y

    def inverse_diagonal(self) -> Tensor:
        """The diagonal of (H + mu I)^-1, (n,): column sums of squares of L^-1, of which a block of columns is held at a time.

        Leaving sample i out of the fit gives it the prediction y_i - a_i / inverse_diagonal_i.
        """
        n = len(self.matrix)
        answer = self.matrix.new_empty(n)
        for j in range(0, n, self.block):
            e = min(j + self.block, n)
            columns = self.matrix.new_zeros(n - j, e - j)
            columns.fill_diagonal_(1)
            for k in range(j, n, self.block):
                self._forward(columns, k, j)
            answer[j:e] = columns.square_().sum(0)
        return answer

    def _forward(self, y: Tensor, k: int, first: int) -> None:
        """Rows k to k + block of L^-1 y, where y starts at row `first` and is zero before, and is done up to k."""
        e = min(k + self.block, len(self.matrix))
        rows = slice(k - first, e - first)
        y[rows] -= self.matrix[k:e, first:k] @ y[: k - first]
        y[rows] = torch.linalg.solve_triangular(self.matrix[k:e, k:e], y[rows], upper=False)


def _factorise_panel(a: Tensor, k: int, block: int) -> bool:
    """Columns k to k + block of the factor, and what they take from those after them; False if a pivot is not positive."""
    e = min(k + block, len(a))
    corner = a[k:e, k:e]
    factor, info = torch.linalg.cholesky_ex(corner)  # reads the lower half
    if int(info) > 0:
        return False
    corner.copy_(factor)
    if e == len(a):
        return True
    a[e:, k:e] = torch.linalg.solve_triangular(corner, a[e:, k:e].mT, upper=False).mT
    for j in range(e, len(a), block):  # below the diagonal only
        a[j:, j : j + block].addmm_(a[j:, k:e], a[j : j + block, k:e].mT, alpha=-1)
    return True


def _singular(mu: float, points: Tensor | None) -> ValueError:
    repeated = 0 if points is None else len(points) - len(torch.unique(points, dim=0))
    cause = f"{repeated} of {len(points)} points are repeated" if points is not None and repeated else "it is singular"
    return ValueError(
        f"expected a positive definite kernel matrix at mu = {mu:g}, but {cause}; raise mu, drop repeated points, "
        "or, if points are antipodal, add a bias coordinate: to_sphere(x)"
    )
