"""Classes on the sphere whose probabilities, and Tsybakov exponent, are known; kernel ridge with h for many samples at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss.lab.studies.theory.common import parts
from squareloss.ntk.kernels import NTK, SNAP
from squareloss.ntk.spectrum import ntk_spectrum

H = NTK()
HEIGHT = 0.9  # the largest |2 eta - 1|
LARGE = 512  # rows: larger matrices are factorised one by one, since a GPU's batched routines are made for small ones


def uniform(count: int, d: int, generator: torch.Generator) -> Tensor:
    """(count, d) points, uniform on S^(d-1), float64."""
    x = torch.randn(count, d, generator=generator, dtype=torch.float64)
    return x / x.square().sum(1, keepdim=True).sqrt()


@dataclass(frozen=True)
class Target:
    """2 eta - 1 = height sign(s) |s/M|^power, s = x_1^2 - 1/d, and a density proportional to |s|^vanish.

    s crosses zero with a slope, so P(|2 eta - 1| < t) is of the order t^kappa with kappa = (1 + vanish) / power. An odd power
    is a polynomial of even degree and lies in the RKHS; power 2 does for d < 5.

    Arguments:
        d: dimension; M is the largest |s|, max(1/d, 1 - 1/d).
        power, vanish: see above.
        height: the largest |2 eta - 1|, reached where x_1^2 is 1 (for d = 2 also 0).
    """

    d: int
    power: float = 1.0
    vanish: float = 0.0
    height: float = HEIGHT

    @classmethod
    def of_exponent(cls, d: int, kappa: float) -> Target:
        """The target with Tsybakov exponent 0.5, 1, 2, 4 or 8, built to stay in the RKHS."""
        if kappa == 0.5:
            return cls(d, 2.0) if d < 5 else cls(d, 3.0, 0.5)
        if kappa in (1, 2, 4, 8):
            return cls(d, 1.0, kappa - 1.0)
        raise ValueError(f"expected kappa 0.5, 1, 2, 4 or 8, got {kappa}")

    def share(self, x: Tensor) -> Tensor:
        """s / M, (...,) of points (..., d)."""
        return (x[..., 0].square() - 1 / self.d) / max(1 / self.d, 1 - 1 / self.d)

    def margin(self, x: Tensor) -> Tensor:
        """2 eta - 1."""
        s = self.share(x)
        return self.height * s.sign() * s.abs() ** self.power

    def weight(self, x: Tensor) -> Tensor:
        """The density, up to a constant, relative to the uniform one; at most 1."""
        return self.share(x).abs() ** self.vanish

    def points(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, d) points of that density, by rejection."""
        if self.vanish == 0:
            return uniform(count, self.d, generator)
        kept: list[Tensor] = []
        while sum(map(len, kept)) < count:
            x = uniform(2 * count, self.d, generator)
            kept.append(x[torch.rand(len(x), generator=generator, dtype=torch.float64) < self.weight(x)])
        return torch.cat(kept)[:count]

    def sample(self, replications: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points (R, n, d) and labels +-1 (R, n)."""
        x = self.points(replications * n, generator).view(replications, n, self.d)
        chance = torch.rand(replications, n, generator=generator, dtype=torch.float64)
        return x, torch.where(chance < (1 + self.margin(x)) / 2, 1.0, -1.0).double()


def penalty(n: int, d: int, c: float) -> float:
    """mu = c n^((d-1)/(2d-1)), as the theorems on data with noise ask for."""
    return float(c * n ** ((d - 1) / (2 * d - 1)))


def gram(x: Tensor, z: Tensor | None = None) -> Tensor:
    """h of points x (R, n, d) with z (R, N, d), or with themselves: (R, n, N)."""
    # cosines next to 1 and -1 count as that, as in the kernel's own matrix: opposite points are then exactly so
    matrix = H.of_cosine((x @ (x if z is None else z).mT) * (1 + SNAP * torch.finfo(x.dtype).eps))
    if z is None:
        matrix.diagonal(dim1=-2, dim2=-1).fill_(H.diagonal)
    return matrix


@dataclass(frozen=True)
class Fit:
    """Kernel ridge of several replications: outputs at test points (R, N, ...) and the squared RKHS norms (R,)."""

    outputs: Tensor
    norm: Tensor


def ridge(
    x: Tensor,
    y: Tensor,
    mu: float,
    test: Tensor,
    device: str,
    *,
    progress: Callable[[float], None] = lambda part: None,
) -> Fit:
    """min sum_i |y_i - f(x_i)|^2 + mu |f|^2 over the RKHS of h, exactly, for each replication; back on the CPU.

    Arguments:
        x: (R, n, d) points of the sphere.
        y: (R, n) targets, or (R, n, K).
        mu: the penalty; 0 interpolates.
        test: (N, d) for all, or (R, N, d).
        device: where.
        progress: called with the part done.
    """
    wide = y if y.ndim == 3 else y.unsqueeze(2)
    found, norms = [], []
    n, count = x.shape[1], test.shape[-2]
    for part in parts(len(x), n * (2 * n + count), device):
        points = x[part].to(device)
        chosen = (test if test.ndim == 2 else test[part]).to(device)
        matrix = gram(points)
        weights = solve(matrix, wide[part].to(device), mu)
        norms.append((weights * (matrix @ weights)).sum((1, 2)).cpu())
        found.append((gram(chosen.expand(len(points), -1, -1), points) @ weights).cpu())
        progress(part.stop / len(x))
    outputs = torch.cat(found)
    return Fit(outputs if y.ndim == 3 else outputs.squeeze(2), torch.cat(norms))


def solve(matrix: Tensor, goal: Tensor, mu: float) -> Tensor:
    """(H + mu I)^-1 goal by Cholesky; by least squares where rounding or repeated points leave H singular."""
    if matrix.shape[-1] > LARGE and len(matrix) > 1:
        return torch.cat([solve(matrix[i : i + 1], goal[i : i + 1], mu) for i in range(len(matrix))])
    shifted = matrix.clone()
    shifted.diagonal(dim1=-2, dim2=-1).add_(mu)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    weights = torch.cholesky_solve(goal, factor)
    for i in failed.nonzero().flatten().tolist():
        weights[i] = torch.linalg.pinv(shifted[i], hermitian=True) @ goal[i]
    return weights


@dataclass(frozen=True)
class Circle:
    """The eigenfunctions of h on the circle up to a degree, so that ridge costs as many unknowns as there are, whatever n.

    Arguments:
        degree: the highest; those beyond have eigenvalues below 1 / (pi degree)^2.
    """

    degree: int

    def features(self, angle: Tensor) -> Tensor:
        """(..., p) with inner products h of angles (...,), up to the degrees left out."""
        spectrum = ntk_spectrum(2, self.degree)
        k = torch.tensor([k for k in range(1, self.degree + 1) if spectrum.values[k] > 0], dtype=torch.float64)
        scale = (2 * spectrum.values[k.long()]).sqrt().to(angle.device)
        turns = angle.unsqueeze(-1) * k.to(angle.device)
        first = torch.full_like(angle, math.sqrt(float(spectrum.values[0]))).unsqueeze(-1)
        return torch.cat([first, scale * turns.cos(), scale * turns.sin()], -1)

    def ridge(self, angle: Tensor, y: Tensor, mu: float, test: Tensor, device: str) -> Tensor:
        """Outputs (R, N) of ridge at test angles (N,), from angles and targets (R, n)."""
        held = self.features(test.to(device))
        found = []
        for part in parts(len(angle), angle.shape[1] * held.shape[1] * 2, device):
            phi = self.features(angle[part].to(device))
            found.append(solve(phi.mT @ phi, phi.mT @ y[part].to(device).unsqueeze(2), mu).squeeze(2) @ held.T)
        return torch.cat(found).cpu()


def circle_points(angle: Tensor) -> Tensor:
    """(..., 2) points of angles (...,)."""
    return torch.stack([angle.cos(), angle.sin()], -1)


def with_bias(x: Tensor) -> Tensor:
    """(x, 1) / sqrt 2: points of an open half of the sphere of one dimension more, where h can learn any function."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1) / math.sqrt(2)
