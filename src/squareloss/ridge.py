"""Ridge regression in closed form, for a whole path of lambda from one eigendecomposition, with exact leave-one-out.

Both classes solve, for targets y_i (K wide) and weights s_i,

    min over W, b of  sum_i s_i |y_i - W' x_i - b|^2 + lambda |W|^2,

with b free of penalty (or absent). lambda stands beside a sum, as `alpha` does in `sklearn.linear_model.Ridge`. `FeaturePath`
takes features x; `KernelPath` takes their inner products, so that the features may be infinite in number.

Leaving sample i out of a fit moves its own prediction to y_i - (y_i - f_i) / (1 - h_i), where the leverage h_i is the weight of
y_i in its own fitted value f_i. That is exact for every lambda, with weights and with the intercept refitted, so the
leave-one-out predictions of all n samples cost one pass and no refit. Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeaturePath:
    """Ridge on features: the eigenvalues and eigenvectors of their scatter, and the targets in that basis.

    Attributes:
        values: (r,) positive eigenvalues of sum_i s_i (x_i - mean)(x_i - mean)', ascending; r is the rank.
        basis: (d, r) their eigenvectors, divided by the scale of the features if there is one.
        cross: (r, K) basis' sum_i s_i (x_i - mean)(y_i - mean_y)'.
        mean, mean_y: (d,), (K,) weighted means; zero without an intercept.
        mass: the sum of the weights; infinity without an intercept, which costs no leverage.
    """

    values: Tensor
    basis: Tensor
    cross: Tensor
    mean: Tensor
    mean_y: Tensor
    mass: float

    @classmethod
    def from_data(cls, x: Tensor, y: Tensor, weight: Tensor | None = None, *, intercept: bool = True) -> FeaturePath:
        """The path of features x (n, d), targets y (n, K) and weights (n,), by the smaller of n x n and d x d."""
        x, y, s = _check_data(x, y, weight)
        mean, mean_y, mass = (s @ x / s.sum(), s @ y / s.sum(), float(s.sum())) if intercept else _no_means(x, y)
        root = s.sqrt().unsqueeze(1)
        x, y = (x - mean) * root, (y - mean_y) * root
        values, basis = scatter_eigen(x.T @ x) if len(x) >= x.shape[1] else factor_eigen(x)
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

    def leave_one_out(self, x: Tensor, y: Tensor, lam: float, weight: Tensor | None = None) -> Tensor:
        """What the fit without sample i predicts for it (m, K), for samples x (m, d), y (m, K) that were fitted."""
        self.check_regular(lam)
        x, y, s = _check_data(x, y, weight)
        projected = self.project(x)
        return left_out(y, self.fitted(projected, [lam])[0], self.slack(projected, s, [lam])[0])

    def grid(self) -> list[float]:
        """The default path: see `default_lambdas`."""
        return default_lambdas(self.values, len(self.mean))

    def check_regular(self, lam: float) -> None:
        """Raise if there is no single solution at this lambda."""
        check_lambda(lam)
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
    """

    values: Tensor
    vectors: Tensor
    cross: Tensor
    targets: Tensor
    weight: Tensor
    kernel_mean: Tensor
    mean_y: Tensor
    intercept: bool

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
        values, vectors = torch.linalg.eigh(root * kernel * root.unsqueeze(1))
        if intercept:
            values, vectors = _without(root / root.norm(), values, vectors)
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

    def leave_one_out(self, lam: float) -> Tensor:
        """What the fit without sample i predicts for it, (n, K).

        The residual and 1 - h are both lambda times a sum over eigenvectors, and lambda cancels: no accuracy is lost as it goes
        to 0, where this is the leave-one-out of the interpolant.
        """
        self.check_regular(lam)
        shrink = 1 / (self.values + lam)
        residual = self.vectors @ (self.cross * shrink.unsqueeze(1))
        slack = self.vectors.square() @ shrink
        return self.targets - residual / (slack * self.weight.sqrt()).unsqueeze(1)

    def grid(self) -> list[float]:
        """The default path: see `default_lambdas`."""
        return default_lambdas(self.values, len(self.values))

    def check_regular(self, lam: float) -> None:
        """Raise if there is no single solution at this lambda."""
        check_lambda(lam)
        if lam == 0 and bool(self.values.min() <= _threshold(self.values)):
            raise ValueError(
                "expected lambda > 0 for a singular kernel matrix, got lambda = 0; raise lambda or drop repeated samples"
            )


def left_out(y: Tensor, fitted: Tensor, slack: Tensor) -> Tensor:
    """y - (y - f) / (1 - h): predictions (..., m, K) of fits that left each sample out, from fits that had it."""
    floor = torch.finfo(slack.dtype).eps  # a sample that alone fixes its own fit has no left-out prediction
    return y - (y - fitted) / slack.clamp_min(floor).unsqueeze(-1)


def scatter_eigen(scatter: Tensor) -> tuple[Tensor, Tensor]:
    """The positive eigenvalues (r,) of a scatter matrix (d, d), ascending, and their eigenvectors (d, r)."""
    values, vectors = torch.linalg.eigh(scatter)  # reads the lower half
    zeros = int((values <= _threshold(values)).sum())
    return values[zeros:], vectors[:, zeros:]


def factor_eigen(factor: Tensor) -> tuple[Tensor, Tensor]:
    """`scatter_eigen` of factor' factor, for a factor (n, d) with n < d: through its n x n matrix."""
    values, vectors = scatter_eigen(factor @ factor.T)
    return values, factor.T @ vectors / values.sqrt()


def default_lambdas(values: Tensor, dimension: int) -> list[float]:
    """28 values, three to a decade, from 1e-6 to 1e3 times the mean eigenvalue: n times the mean variance of a feature."""
    centre = float(values.sum()) / dimension or 1.0  # constant features: any lambda will do
    return [centre * 10 ** (-6 + step / 3) for step in range(28)]


def check_lambda(lam: float) -> None:
    """Raise unless lambda is a finite number >= 0."""
    if not (lam >= 0 and math.isfinite(lam)):
        raise ValueError(f"expected a finite lambda >= 0, got {lam}")


def _threshold(values: Tensor) -> Tensor:
    """Eigenvalues up to here are rounding."""
    return values.abs().max() * len(values) * torch.finfo(values.dtype).eps


def _without(direction: Tensor, values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs orthogonal to `direction`, an eigenvector of value 0 that may be mixed with others of value 0."""
    null = values.abs() <= _threshold(values)
    if int(null.sum()) <= 1:
        keep = torch.arange(len(values), device=values.device) != (vectors.T @ direction).abs().argmax()
        return values[keep], vectors[:, keep]
    space = vectors[:, null] - torch.outer(direction, direction @ vectors[:, null])
    rest = torch.linalg.svd(space, full_matrices=False).U[:, :-1]
    return torch.cat([values[null][1:], values[~null]]), torch.cat([rest, vectors[:, ~null]], 1)


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


def _no_means(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
    return torch.zeros_like(x[0]), torch.zeros_like(y[0]), math.inf
