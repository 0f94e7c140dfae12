"""Data drawn from known distributions: the paper's spirals and its sine.

Everything is batched over R replications and drawn from an explicit generator, on the generator's device: inputs x (R, n, d),
labels y (R, n) int64 in {0, 1}, and the true eta (R, n) = P(y = 1 | x).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from squareloss._checks import choose

READINGS = ("affine", "clipped", "absolute", "half")


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
    x = 2 * _uniform((replications, n, 2), generator, dtype) - 1
    eta = sine_eta(x, reading)
    y = (_uniform((replications, n), generator, dtype) < eta).long()
    return Sample(x, y, eta)


def sine_eta(x: Tensor, reading: str = "affine") -> Tensor:
    """eta (...) at points x (..., 2). The paper's sin(sqrt2 pi |x|) turns negative beyond |x| = 0.707, so it must be read:

    - "affine", ours: 2 eta - 1 = sin(sqrt2 pi |x|). Bayes error 0.165 on the square, as the paper's networks err 0.164, 0.167.
    - "clipped": max(sin(sqrt2 pi |x|), 0). Bayes error 0.079.
    - "absolute": |sin(sqrt2 pi |x|)|. Bayes error 0.193.
    - "half": sin(pi |x| / sqrt2), nowhere negative on the square. Bayes error 0.160.
    """
    choose("reading", reading, READINGS)
    radius = torch.linalg.vector_norm(x, dim=-1)
    if reading == "half":
        return torch.sin(math.pi / math.sqrt(2) * radius).clamp_min(0)  # at the corners rounding may leave -1e-8
    wave = torch.sin(math.sqrt(2) * math.pi * radius)
    if reading == "affine":
        return (1 + wave) / 2
    if reading == "clipped":
        return wave.clamp_min(0)
    return wave.abs()  # "absolute"


def _uniform(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)
