"""Data drawn from known distributions: the paper's two, and points on the sphere for its theorems.

Everything is batched over R replications and drawn from an explicit generator, on the generator's device: inputs x (R, n, d),
labels y (R, n) int64 in {0, 1}, and the true eta (R, n) = P(y = 1 | x).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

READINGS = ("affine", "clipped", "absolute", "half")
KAPPAS = (0.5, 1.0, 2.0)
_PEAK = 0.9  # largest |2 eta - 1| on the sphere
_RAREST = 1e-3  # least share of the sphere that rejection may keep


class Sample(NamedTuple):
    """Inputs x (R, n, d), labels y (R, n) int64 in {0, 1}, and eta (R, n), the true probability of class 1."""

    x: Tensor
    y: Tensor
    eta: Tensor


def spirals(n_per_class: int, replications: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32) -> Sample:
    """Two interleaved spirals, separable (the paper's appendix on synthetic data).

    P = (rho sin theta + 0.04, rho cos theta) with theta uniform on (0, 4 pi], rho = (theta / 4 pi)^(4/5) + eps and
    eps uniform on [-0.03, 0.03]. Class 0 is drawn from P, class 1 from -P; the first n_per_class rows are class 0.
    x is (R, 2 n_per_class, 2).
    """
    _check_counts(n_per_class=n_per_class, replications=replications)
    u = _uniform((2, replications, 2 * n_per_class), generator, dtype)
    turn = 1 - u[0]  # (0, 1]
    theta = 4 * math.pi * turn
    rho = turn**0.8 + 0.06 * (u[1] - 0.5)
    x = torch.stack([rho * torch.sin(theta) + 0.04, rho * torch.cos(theta)], dim=-1)  # (R, 2n, 2)
    x[:, n_per_class:] *= -1
    y = torch.zeros(replications, 2 * n_per_class, dtype=torch.int64, device=x.device)
    y[:, n_per_class:] = 1
    return Sample(x, y, y.to(dtype))


def sine(
    n: int, replications: int, generator: torch.Generator, *, reading: str = "affine", dtype: torch.dtype = torch.float32
) -> Sample:
    """Points uniform on [-1, 1]^2 with labels Bernoulli(eta), eta a sine of |x| (the paper's non-separable case).

    See `sine_eta` for the four readings of the paper's formula. x is (R, n, 2).
    """
    _check_counts(n=n, replications=replications)
    x = 2 * _uniform((replications, n, 2), generator, dtype) - 1
    eta = sine_eta(x, reading)
    return Sample(x, _bernoulli(eta, generator), eta)


def sine_eta(x: Tensor, reading: str = "affine") -> Tensor:
    """eta (...) at points x (..., 2). The paper's sin(sqrt2 pi |x|) turns negative beyond |x| = 0.707, so it must be read:

    - "affine", ours: 2 eta - 1 = sin(sqrt2 pi |x|). Bayes error 0.165 on the square, as the paper's networks err 0.164, 0.167.
    - "clipped": max(sin(sqrt2 pi |x|), 0). Bayes error 0.079.
    - "absolute": |sin(sqrt2 pi |x|)|. Bayes error 0.193.
    - "half": sin(pi |x| / sqrt2), nowhere negative on the square. Bayes error 0.160.
    """
    radius = torch.linalg.vector_norm(x, dim=-1)
    if reading == "half":
        return torch.sin(math.pi / math.sqrt(2) * radius).clamp_min(0)  # at the corners rounding may leave -1e-8
    wave = torch.sin(math.sqrt(2) * math.pi * radius)
    if reading == "affine":
        return (1 + wave) / 2
    if reading == "clipped":
        return wave.clamp_min(0)
    if reading == "absolute":
        return wave.abs()
    raise ValueError(f"Unknown reading {reading!r}. Available: {', '.join(READINGS)}")


def sphere(
    n: int, replications: int, generator: torch.Generator, *, dim: int, kappa: float, dtype: torch.dtype = torch.float32
) -> Sample:
    """Points on the unit sphere of R^dim, with 2 eta - 1 in the RKHS of the NTK and Tsybakov's exponent kappa:

    P(|2 eta(X) - 1| < t) ~ t^kappa as t -> 0. For kappa 1/2 and 1 the points are uniform; for kappa 2 their density is
    proportional to |s|, s = x_1^2 - 1/dim, drawn exactly by rejection. See `sphere_eta`. x is (R, n, dim).
    """
    _check_counts(n=n, replications=replications)
    _check_sphere(dim, kappa)
    weight = (lambda x: _signed(x).abs()) if kappa == 2 else None
    x = _on_sphere(replications * n, dim, generator, dtype, weight).view(replications, n, dim)
    eta = sphere_eta(x, kappa)
    return Sample(x, _bernoulli(eta, generator), eta)


def sphere_eta(x: Tensor, kappa: float) -> Tensor:
    """eta (...) at points x (..., d) of the sphere. With s = x_1^2 - 1/d and M = max(1/d, 1 - 1/d), which is max |s|:

    2 eta - 1 = 0.9 sign(s) (s / M)^2 for kappa = 1/2, and 0.9 s / M for kappa = 1 and 2. Both are even, which the RKHS
    needs: it holds only linear and even functions. sign(s) |s|^p lies in it iff p > (d-1)/2 or p is an odd integer, so
    kappa = 1/2 asks for d < 5.
    """
    _check_sphere(x.shape[-1], kappa)
    s = _signed(x)
    return (1 + _PEAK * (s * s.abs() if kappa == 0.5 else s)) / 2


def caps(
    n: int, replications: int, generator: torch.Generator, *, dim: int, gamma: float, dtype: torch.dtype = torch.float32
) -> Sample:
    """Two opposite caps of the unit sphere of R^dim, at distance 2 gamma (Euclidean, as the paper measures margins).

    Points are uniform where |x_1| >= gamma; class 1 is x_1 > 0. x is (R, n, dim).
    """
    _check_counts(n=n, replications=replications)
    if dim < 2 or not 0 < gamma < 1:
        raise ValueError(f"expected dim >= 2 and gamma in (0, 1), got dim={dim}, gamma={gamma}")
    x = _on_sphere(replications * n, dim, generator, dtype, lambda x: (x[..., 0].abs() >= gamma).to(dtype))
    y = (x[:, 0] > 0).view(replications, n)
    return Sample(x.view(replications, n, dim), y.long(), y.to(dtype))


def _signed(x: Tensor) -> Tensor:
    """s / M in [-1, 1], zero on the decision boundary x_1^2 = 1/d."""
    dim = x.shape[-1]
    return (x[..., 0] ** 2 - 1 / dim) / max(1 / dim, 1 - 1 / dim)


def _on_sphere(
    count: int, dim: int, generator: torch.Generator, dtype: torch.dtype, weight: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """Points (count, dim) of the sphere with density proportional to weight(x) in [0, 1], uniform if None; by rejection."""
    kept: list[Tensor] = []
    missing, proposals = count, max(2 * count, 10_000)
    while missing > 0:
        x = torch.randn(count if weight is None else proposals, dim, generator=generator, dtype=dtype, device=generator.device)
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        if weight is not None:
            x = x[_uniform((proposals,), generator, dtype) < weight(x)]
            if len(x) < _RAREST * proposals:
                raise ValueError(
                    f"expected more than {_RAREST:.1%} of the sphere of R^{dim} to be kept, got {len(x)} of {proposals}; "
                    "take a smaller gamma or a lower dimension"
                )
        kept.append(x[:missing])
        missing -= len(x)
    return torch.cat(kept)


def _uniform(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)


def _bernoulli(eta: Tensor, generator: torch.Generator) -> Tensor:
    return (_uniform(tuple(eta.shape), generator, eta.dtype) < eta).long()


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"expected {name} >= 1, got {count}")


def _check_sphere(dim: int, kappa: float) -> None:
    if kappa not in KAPPAS:
        raise ValueError(f"Unknown kappa {kappa}. Available: {', '.join(f'{k:g}' for k in KAPPAS)}")
    if dim < 2 or (kappa == 0.5 and dim > 4):
        bound = "2 to 4 for kappa = 1/2, where eta leaves the RKHS beyond" if kappa == 0.5 else "2 or more"
        raise ValueError(f"expected dim of {bound}, got {dim}")
