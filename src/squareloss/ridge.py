"""Ridge regression in closed form, for a whole path of lambda from one eigendecomposition, with exact leave-one-out.

Both classes solve, for targets y_i (K wide) and weights s_i,

    min over W, b of  sum_i s_i |y_i - W' x_i - b|^2 + lambda |W|^2,

with b free of penalty (or absent). lambda stands beside a sum, as `alpha` does in `sklearn.linear_model.Ridge`. `FeaturePath`
takes features x; `KernelPath` takes their inner products, so that the features may be infinite in number.

Leaving sample i out of a fit moves its own prediction to y_i - (y_i - f_i) / (1 - h_i), where the leverage h_i is the weight of
y_i in its own fitted value f_i. That is exact for every lambda, with weights and with the intercept refitted, so the
leave-one-out predictions of all n samples cost one pass and no refit. Everything is computed in float64.

Where a fit interpolates, residual and 1 - h both go to 0 with lambda, and a difference would be rounding. With no more samples
than features they are therefore taken from the n x n eigenvectors, where lambda cancels. With more, a sample can still be
fitted by itself (the only one that has a certain feature); below 1 - h = 1e-10 its left-out prediction is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from squareloss import _checks

SLACK = 1e-10  # 1 - h as a difference has an error of about 1e-14; below this a left-out prediction would be noise
ROUNDING = 1e-12  # a sample's part in the null space, of at most 1, is taken for 0 up to here


@dataclass(frozen=True)
class FeaturePath:
    """Ridge on features: the eigenvalues and eigenvectors of their scatter, and the targets in that basis.

    Attributes:
        values: (r,) positive eigenvalues of sum_i s_i (x_i - mean)(x_i - mean)', ascending; r is the rank.
        basis: (d, r) their eigenvectors, divided by the scale of the features if there is one.
        cross: (r, K) basis' sum_i s_i (x_i - mean)(y_i - mean_y)'.
        mean, mean_y: (d,), (K,) weighted means; zero without an intercept.
        mass: the sum of the weights; infinity without an intercept, which costs no leverage.
        dual: with n <= d, or n = d + 1 and an intercept: the same path in n x n form, of the samples with a weight > 0.
    """

    values: Tensor
    basis: Tensor
    cross: Tensor
    mean: Tensor
    mean_y: Tensor
    mass: float
    dual: KernelPath | None = None

    @classmethod
    def from_data(cls, x: Tensor, y: Tensor, weight: Tensor | None = None, *, intercept: bool = True) -> FeaturePath:
        """The path of features x (n, d), targets y (n, K) and weights (n,), by the smaller of n x n and d x d."""
        x, y, s = _check_data(x, y, weight)
        if intercept:
            mean, mean_y, mass = s @ x / s.sum(), s @ y / s.sum(), float(s.sum())
        else:
            mean, mean_y, mass = torch.zeros_like(x[0]), torch.zeros_like(y[0]), math.inf
        used = s > 0
        if 0 < int(used.sum()) <= x.shape[1] + intercept:
            x, y, s = x[used] - mean, y[used], s[used]
            dual = KernelPath.from_kernel(x @ x.T, y, s, intercept=intercept).truncated()
            zeros = int((dual.values == 0).sum())
            values, vectors, cross = dual.values[zeros:], dual.vectors[:, zeros:], dual.cross[zeros:]
            basis = (x * s.sqrt().unsqueeze(1)).T @ (vectors / values.sqrt())
            return cls(values, basis, values.sqrt().unsqueeze(1) * cross, mean, mean_y, mass, dual)
        root = s.sqrt().unsqueeze(1)
        x, y = (x - mean) * root, (y - mean_y) * root
        values, basis = scatter_eigen(x.T @ x)
        return cls(values, basis, (x @ basis).T @ y, mean, mean_y, mass)

    @classmethod
    def from_scatter(cls, scatter: Tensor, cross: Tensor, mean: Tensor, mean_y: Tensor, mass: float) -> FeaturePath:
        """The path of sums over samples: scatter (d, d), of which the lower half is read, and cross (d, K); of centred data."""
        values, basis = scatter_eigen(scatter)
        return cls(values, basis, basis.T @ cross, mean, mean_y, mass)

    def unscaled(self, scale: Tensor) -> FeaturePath:
        """The same path for features x, if this one is for x / scale, with a scale (d,)."""
        return replace(self, basis=self.basis / scale.unsqueeze(1), mean=self.mean * scale)

    def solve(self, lam: float) -> tuple[Tensor, Tensor]:
        """The coefficients (d, K) and the intercept (K,) at one lambda."""
        self.check_regular(lam)
        coefficients = self.basis @ (self.cross / (self.values + lam).unsqueeze(1))
        return coefficients, self.mean_y - self.mean @ coefficients

    def project(self, x: Tensor) -> Tensor:
        """Features (m, d) in the basis (m, r), where every lambda is diagonal."""
        return torch.addmm(-(self.mean @ self.basis), x, self.basis)

    def fitted(self, projected: Tensor, lambdas: Sequence[float]) -> Tensor:
        """Predictions (L, m, K) at every lambda, of projected features (m, r)."""
        factors = torch.cat([self.cross / (self.values + lam).unsqueeze(1) for lam in lambdas], 1)  # (r, L K)
        stacked = (projected @ factors).view(len(projected), len(lambdas), -1)
        return stacked.transpose(0, 1) + self.mean_y

    def slack(self, projected: Tensor, weight: Tensor, lambdas: Sequence[float]) -> Tensor:
        """1 - h (L, m) of samples that were fitted, given projected (m, r), at their weights (m,)."""
        shrink = torch.stack([1 / (self.values + lam) for lam in lambdas])  # (L, r)
        return 1 - weight * (shrink @ projected.square().T + 1 / self.mass)

    def grid(self) -> list[float]:
        """The default path: see `default_lambdas`."""
        return default_lambdas(self.values, len(self.mean))

    def check_regular(self, lam: float) -> None:
        """Raise if there is no single solution at this lambda."""
        _checks.not_negative("lambda", lam)
        if lam == 0 and len(self.values) < len(self.mean):
            raise ValueError(
                f"expected lambda > 0 for singular features (rank {len(self.values)} of {len(self.mean)} after centring), "
                "got lambda = 0, which has no single solution; raise lambda or drop dependent features"
            )


@dataclass(frozen=True)
class KernelPath:
    """Ridge in a kernel's space: the eigendecomposition of the centred, weighted kernel matrix.

    Attributes:
        values: (n,) eigenvalues of S^(1/2) K_c S^(1/2), with K_c the centred kernel matrix; (n - 1,) with an intercept, whose
            direction is left out.
        vectors: (n, n) or (n, n - 1) their eigenvectors u.
        cross: vectors' S^(1/2) (y - mean_y), (n or n - 1, K).
        targets: (n, K); weight: (n,), all positive.
        kernel_mean: (n,) the weighted mean of the kernel's columns; mean_y: (K,); zeros without an intercept.
        intercept: whether there is one.
        noise: how wrong eigenvalues may be; left-out predictions are NaN where lambda does not rise above it. 0: never.
    """

    values: Tensor
    vectors: Tensor
    cross: Tensor
    targets: Tensor
    weight: Tensor
    kernel_mean: Tensor
    mean_y: Tensor
    intercept: bool
    noise: float = 0.0

    @classmethod
    def from_kernel(cls, kernel: Tensor, y: Tensor, weight: Tensor | None = None, *, intercept: bool = False) -> KernelPath:
        """The path of a kernel matrix (n, n), targets y (n, K) and positive weights (n,)."""
        if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
            raise ValueError(f"expected a square kernel matrix (n, n), got shape {tuple(kernel.shape)}")
        kernel, y, s = _check_data(kernel, y, weight)
        if not bool((s > 0).all()):
            raise ValueError("expected positive weights, got one <= 0; drop those samples from the kernel matrix")
        if not intercept:
            kernel_mean, mean_y = torch.zeros_like(s), torch.zeros_like(y[0])
        else:
            share = s / s.sum()
            kernel_mean, mean_y = kernel @ share, share @ y
            kernel = kernel - kernel_mean - kernel_mean.unsqueeze(1) + share @ kernel_mean
        root = s.sqrt()
        kernel = root * kernel * root.unsqueeze(1)
        values, vectors = _eigen_beside(root / root.norm(), kernel) if intercept else torch.linalg.eigh(kernel)
        cross = vectors.T @ ((y - mean_y) * root.unsqueeze(1))
        return cls(values.clamp_min(0), vectors, cross, y, s, kernel_mean, mean_y, intercept)

    def solve(self, lam: float) -> tuple[Tensor, Tensor]:
        """The dual coefficients (n, K) and the intercept (K,): f(x) = sum_i k(x, x_i) a_i + b."""
        self.check_regular(lam)
        root = self.weight.sqrt().unsqueeze(1)
        dual = root * (self.vectors @ (self.cross / (self.values + lam).unsqueeze(1)))
        if self.intercept:  # centring the features moves their mean into the coefficients
            dual = dual - (self.weight / self.weight.sum()).unsqueeze(1) * dual.sum(0)
        return dual, self.mean_y - self.kernel_mean @ dual

    def truncated(self) -> KernelPath:
        """The same path with 0 for eigenvalues that are rounding, and for what rounding has put into their eigenvectors.

        Beside repeated samples, others have no part in the null space. 1 / lambda would make much of a part of 1e-16.
        """
        if not len(self.values):  # one sample, and an intercept
            return self
        floor = _threshold(self.values)
        null, noise = self.values <= floor, float(floor) / len(self.values)
        if not bool(null.any()):
            return replace(self, noise=noise)
        part = self.vectors[:, null]
        part = part * (part.norm(dim=1, keepdim=True) > ROUNDING)
        vectors = torch.cat([part, self.vectors[:, ~null]], 1)
        noise = max(noise, float(self.values[null].max()))
        return replace(self, values=self.values.masked_fill(null, 0.0), vectors=vectors, noise=noise)

    def leave_one_out(self, lam: float) -> Tensor:
        """What the fit without sample i predicts for it, (n, K)."""
        self.check_regular(lam)
        return self.leave_one_out_path([lam])[0]

    def leave_one_out_path(self, lambdas: Sequence[float]) -> Tensor:
        """What the fit without sample i predicts for it at every lambda, (L, n, K).

        The residual and 1 - h are both lambda times a sum over eigenvectors, and lambda cancels: no accuracy is lost as it goes
        to 0, where this is the leave-one-out of the interpolant.
        """
        shifted = self.values.unsqueeze(1) + self.values.new_tensor(lambdas)  # (q, L)
        factors = (self.cross.unsqueeze(1) / shifted.unsqueeze(2)).flatten(1)  # (q, L K)
        residual = (self.vectors @ factors).view(len(self.targets), len(lambdas), -1)
        slack = (self.vectors.square() @ (1 / shifted)) * self.weight.sqrt().unsqueeze(1)  # (n, L)
        slack = slack.masked_fill((shifted < 1e3 * self.noise).any(0), math.nan)
        return self.targets - (residual / slack.unsqueeze(2)).transpose(0, 1)

    def grid(self) -> list[float]:
        """The default path: see `default_lambdas`."""
        return default_lambdas(self.values, len(self.values))

    def check_regular(self, lam: float, name: str = "lambda") -> None:
        """Raise if there is no single solution at this lambda, which the caller may have under another name."""
        _checks.not_negative(name, lam)
        if lam == 0 and len(self.values) and bool(self.values.min() <= _threshold(self.values)):
            raise ValueError(
                f"expected {name} > 0 for a singular kernel matrix, got {name} = 0; raise {name} or drop repeated samples"
            )


def left_out(y: Tensor, fitted: Tensor, slack: Tensor) -> Tensor:
    """y - (y - f) / (1 - h): predictions (..., m, K) of fits that left each sample out, from fits that had it.

    NaN for a sample that alone fixes its own fit, up to rounding.
    """
    return y - (y - fitted) / slack.masked_fill(slack < SLACK, math.nan).unsqueeze(-1)


def scatter_eigen(scatter: Tensor) -> tuple[Tensor, Tensor]:
    """The positive eigenvalues (r,) of a scatter matrix (d, d), ascending, and their eigenvectors (d, r)."""
    values, vectors = torch.linalg.eigh(scatter)  # reads the lower half
    zeros = int((values <= _threshold(values)).sum())
    return values[zeros:], vectors[:, zeros:]


def default_lambdas(values: Tensor, dimension: int) -> list[float]:
    """28 values, three to a decade, from 1e-6 to 1e3 times the mean eigenvalue: n times the mean variance of a feature."""
    centre = float(values.sum()) / max(dimension, 1) or 1.0  # constant features: any lambda will do
    return [centre * 10 ** (-6 + step / 3) for step in range(28)]


def _threshold(values: Tensor) -> Tensor:
    """Eigenvalues up to here are rounding."""
    return values.abs().max() * len(values) * torch.finfo(values.dtype).eps


def _eigen_beside(direction: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The n - 1 eigenpairs of a matrix (n, n) that are orthogonal to `direction`, a positive unit eigenvector of value 0.

    A reflection takes the direction to the first axis, which is then cut off: so no eigenvector is mixed with it.
    """
    mirror = direction.clone()
    mirror[0] += 1.0  # away from 0
    mirror = mirror * (2 / mirror.square().sum()).sqrt()
    matrix = matrix - torch.outer(matrix @ mirror, mirror)
    matrix = matrix - torch.outer(mirror, mirror @ matrix)
    values, vectors = torch.linalg.eigh(matrix[1:, 1:])
    return values, torch.cat([vectors.new_zeros(1, len(values)), vectors]) - torch.outer(mirror, mirror[1:] @ vectors)


def _check_data(x: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(f"expected x (n, d) and y (n, K) of the same n, got shapes {tuple(x.shape)} and {tuple(y.shape)}")
    x, y = x.double(), y.to(x.device).double()
    s = torch.ones_like(x[:, 0]) if weight is None else weight.to(x)
    if s.shape != (len(x),):
        raise ValueError(f"expected weights of shape ({len(x)},), one per sample, got {tuple(s.shape)}")
    for name, tensor in (("x", x), ("y", y), ("weights", s)):
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"expected finite {name}, got NaN or infinity; drop or fill those samples first")
    if not bool((s >= 0).all()):
        raise ValueError("expected weights >= 0, got a negative one")
    return x, y, s
