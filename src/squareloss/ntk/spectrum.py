"""The spectrum of kernels on the sphere S^(d-1): exact eigenvalues, empirical ones, effective dimension, entropy, RKHS norms.

A kernel that depends on the angle alone, k(s, t) = g(s.t), has the spherical harmonics as eigenfunctions under the uniform
distribution: all of degree k share one eigenvalue lambda_k, and there are N(d, k) of them,

    g(u) = sum_k lambda_k N(d, k) P_k(u),

with P_k the Gegenbauer (for d = 2 Chebyshev, for d = 3 Legendre) polynomials, scaled to P_k(1) = 1. The eigenvalues in
decreasing order, each repeated N(d, k) times, are those of Mercer's theorem.

For h, the kernel of a wide one-hidden-layer ReLU network, they are elementary. The step function has the coefficients
a_0 = 1/2, a_k = +-Gamma(d/2) Gamma(k/2) / (2 pi Gamma((k + d)/2)) for odd k and 0 for even k > 0; E step(w.s) step(w.t) has
their squares; and a product with u mixes neighbours:

    lambda_k = k/(2k + d - 2) a_(k-1)^2 + (k + d - 2)/(2k + d - 2) a_(k+1)^2.

So every odd degree from three on has the eigenvalue zero: h knows linear and even functions only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Profile = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues on S^(d-1) by degree, for the uniform distribution.

    Attributes:
        dimension: d, of the space the sphere lies in.
        values: (D + 1,) float64, the eigenvalue of each degree from 0 to D.
        counts: (D + 1,) float64, how many harmonics each degree has; they sum to more than int64 holds for large d.
        missing: sum_j lambda_j over the degrees beyond D, known since all of them sum to g(1).
    """

    dimension: int
    values: Tensor
    counts: Tensor
    missing: float = 0.0

    def sequence(self, most: int) -> Tensor:
        """The `most` largest eigenvalues in decreasing order, each as often as it occurs; zero ones are left out.

        Degrees beyond D are not known, so at most as many come back as lie above the smallest known one that is not zero.
        """
        values, order = self.values[self.values > 0].sort(descending=True)
        counts = self.counts[self.values > 0][order].clamp(max=most).long()
        kept = int((counts.cumsum(0) < most).sum()) + 1
        return values[:kept].repeat_interleave(counts[:kept])[:most]

    def trace(self) -> float:
        """sum_j lambda_j up to degree D, which tends to g(1) (1/2 for h) as degrees are added."""
        return float((self.values * self.counts).sum())

    def effective_dimension(self, ridge: float) -> float:
        """sum_j lambda_j / (lambda_j + ridge): the degrees of freedom of kernel ridge with mu = n ridge.

        Degrees beyond D count as their sum over the ridge, which is right where the ridge is far above their eigenvalues.
        """
        return float((self.counts * self.values / (self.values + ridge)).sum()) + self.missing / ridge

    def entropy(self, radius: float) -> float:
        """sum over sqrt(lambda_j) > radius of log(sqrt(lambda_j) / radius), in nats.

        The unit ball of the RKHS is an ellipsoid with half-axes sqrt(lambda_j) in L_2, and this is the volume bound of its
        entropy: no fewer than exp(entropy) balls of that radius cover it, and the logarithm is of that order.
        """
        axes = self.values.clamp(min=0).sqrt()
        large = axes > radius
        return float((self.counts[large] * (axes[large] / radius).log()).sum())


def ntk_spectrum(dimension: int, degree: int) -> Spectrum:
    """The exact spectrum of h(u) = u (pi - arccos u) / (2 pi) on S^(d-1), degrees 0 to `degree`.

    At d = 2: (k^2 + 1) / (pi^2 (k^2 - 1)^2) for even k, and 1/8 at k = 1.
    """
    d = _dimension(dimension)
    _check_degree(degree)
    k = torch.arange(degree + 1, dtype=torch.float64)
    share = torch.where(k > 0, k / (2 * k + d - 2), 0.0)  # u P_k = share P_(k-1) + (1 - share) P_(k+1)
    square = _step_squared(d, degree + 1)
    below = torch.cat([square.new_zeros(1), square[:degree]])
    values, counts = share * below + (1 - share) * square[1:], multiplicity(d, degree)
    return Spectrum(d, values, counts, max(0.0, 0.5 - float((values * counts).sum())))


def _step_squared(d: int, degree: int) -> Tensor:
    """(degree + 1,) squares of the step function's coefficients a_k."""
    k = torch.arange(degree + 1, dtype=torch.float64)
    odd = k % 2 == 1
    log = math.lgamma(d / 2) + torch.lgamma(torch.where(odd, k, 1.0) / 2) - torch.lgamma((k + d) / 2) - math.log(2 * math.pi)
    square = torch.where(odd, (2 * log).exp(), 0.0)
    square[0] = 0.25
    return square


def zonal_spectrum(profile: Profile, dimension: int, degree: int, nodes: int | None = None) -> Spectrum:
    """The spectrum of any kernel g(s.t) on S^(d-1) by the Funk-Hecke formula,

        lambda_k = c integral_0^pi g(cos theta) P_k(cos theta) sin(theta)^(d-2) d theta,   c = 1 / integral of the sine's power,

    with Gauss-Legendre nodes in the angle: kernels such as h and Laplace's are smooth in it, so that lambda_k is right to
    about 1e-14 g(1). A profile with kinks, such as a step, needs more nodes.

    Arguments:
        profile: g, from cosines (M,) to values (M,), both float64; `kernel.of_cosine` of the kernels of this package.
        dimension: d.
        degree: the highest degree.
        nodes: of the quadrature. Default: 4 degree + 200.
    """
    _check_degree(degree)
    cosine, weight = angles(dimension, nodes or 4 * degree + 200)
    values = polynomials(dimension, degree, cosine) @ (weight * profile(cosine))
    counts = multiplicity(dimension, degree)
    rest = float(profile(torch.ones(1, dtype=torch.float64))[0] - (values * counts).sum())
    return Spectrum(dimension, values, counts, max(0.0, rest))


def angles(dimension: int, nodes: int) -> tuple[Tensor, Tensor]:
    """A quadrature rule: cosines (M,) of x.e for a fixed e and uniform x on S^(d-1), and weights (M,), which sum to one."""
    from scipy.special import roots_legendre

    point, weight = roots_legendre(nodes)
    angle = torch.from_numpy((point + 1) * math.pi / 2)
    weights = torch.from_numpy(weight) * angle.sin() ** (_dimension(dimension) - 2)
    return angle.cos(), weights / weights.sum()


def polynomials(dimension: int, degree: int, cosine: Tensor) -> Tensor:
    """P_0 to P_degree at cosines (M,): (degree + 1, M), by (k + d - 2) P_(k+1) = (2k + d - 2) u P_k - k P_(k-1)."""
    d = _dimension(dimension)
    rows = [torch.ones_like(cosine), cosine]
    for k in range(1, degree):
        rows.append(((2 * k + d - 2) * cosine * rows[k] - k * rows[k - 1]) / (k + d - 2))
    return torch.stack(rows[: degree + 1])


def multiplicity(dimension: int, degree: int) -> Tensor:
    """(degree + 1,) the number of harmonics of each degree, (2k + d - 2)/k binom(k + d - 3, k - 1); one of degree 0."""
    d = _dimension(dimension)
    counts = [1.0] + [(2 * k + d - 2) * math.comb(k + d - 3, k - 1) / k for k in range(1, degree + 1)]
    return torch.tensor(counts, dtype=torch.float64)


@dataclass(frozen=True)
class Norm:
    """The RKHS norm of a function of one angle, f(x) = g(x.e).

    Attributes:
        squared: (D + 1,) the squared norm of the part up to each degree; it levels off if f lies in the RKHS.
        outside: the squared L_2 norm of the part in degrees whose eigenvalue is zero: what no function of the RKHS has.
    """

    squared: Tensor
    outside: float


def zonal_norm(profile: Profile, spectrum: Spectrum, nodes: int | None = None) -> Norm:
    """|f|^2 = sum_k N(d, k) c_k^2 / lambda_k for f(x) = g(x.e), where g = sum_k N(d, k) c_k P_k, up to the spectrum's degree.

    Arguments:
        profile: g, from cosines (M,) to values (M,), float64.
        spectrum: of the kernel.
        nodes: of the quadrature; a profile with kinks needs many. Default: 4 degree + 200.
    """
    degree = len(spectrum.values) - 1
    part = zonal_spectrum(profile, spectrum.dimension, degree, nodes)
    energy = part.counts * part.values**2
    held = spectrum.values > 0
    squared = torch.where(held, energy / torch.where(held, spectrum.values, 1.0), 0.0)
    return Norm(squared.cumsum(0), float(energy[~held].sum()))


def empirical_spectrum(matrix: Tensor) -> Tensor:
    """The eigenvalues of H / n in decreasing order, for a kernel matrix H (..., n, n): estimates of the kernel's own."""
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"expected a square kernel matrix (..., n, n), got {tuple(matrix.shape)}; use kernel.matrix(x)")
    values: Tensor = torch.linalg.eigvalsh(matrix)
    return values.flip(-1) / matrix.shape[-1]


def smallest_eigenvalue(matrix: Tensor) -> Tensor:
    """lambda_min(H), (...,) of kernel matrices (..., n, n): what the width of a network must answer for in assumption 1."""
    return empirical_spectrum(matrix)[..., -1] * matrix.shape[-1]


def _check_degree(degree: int) -> None:
    if degree < 0:
        raise ValueError(f"expected a degree of 0 or more, got {degree}")


def _dimension(d: int) -> int:
    if d < 2:
        raise ValueError(f"expected a dimension of 2 or more (the sphere S^(d-1) lies in R^d), got {d}")
    return d
