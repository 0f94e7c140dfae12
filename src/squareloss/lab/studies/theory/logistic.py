"""Cross-entropy in the RKHS of h, with or without a hard bound on the outputs: what a wide network trained with it would be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from squareloss.lab.studies.theory.common import parts
from squareloss.lab.studies.theory.sphere import Circle

SHORTER = (1.0, 0.5, 0.25, 0.125, 0.03, 0.0)  # parts of a Newton step that are tried


def circle_logistic(
    circle: Circle, angle: Tensor, y: Tensor, mu: float, test: Tensor, device: str, bound: float | None = None,
    progress: Callable[[float], None] = lambda part: None,
) -> Tensor:  # fmt: skip
    """min sum_i log(1 + exp(-y_i f(x_i))) + mu |g|^2, with f = g in the RKHS, or f = C tanh(g / C) for a bound C.

    Arguments:
        circle: the eigenfunctions.
        angle, y: (R, n) angles, and labels +-1.
        mu: the penalty, beside a sum as for square loss.
        test: (N,) angles.
        device: where.
        bound: C; None for no bound.
        progress: called with the part done.

    Returns: outputs f (R, N), log odds, on the CPU.
    """
    held = circle.features(test.to(device))
    found = []
    for part in parts(len(angle), angle.shape[1] * held.shape[1] * 3, device):
        phi = circle.features(angle[part].to(device))
        weights = logistic(phi, y[part].to(device), mu, bound)
        found.append(bounded(weights @ held.T, bound).cpu())
        progress(part.stop / len(angle))
    return torch.cat(found)


def bounded(g: Tensor, bound: float | None) -> Tensor:
    """C tanh(g / C), or g."""
    return g if bound is None else bound * (g / bound).tanh()


def logistic(phi: Tensor, y: Tensor, mu: float, bound: float | None) -> Tensor:
    """Weights (R, p) of penalised logistic regression on features (R, n, p) and labels (R, n), by Newton's method."""
    weights = phi.new_zeros(len(phi), phi.shape[2])
    for _ in range(60):
        g = (phi @ weights.unsqueeze(2)).squeeze(2)
        slope = 1 - (bounded(g, bound) / bound).square() if bound else torch.ones_like(g)
        chance = torch.sigmoid(bounded(g, bound))
        pull = slope * ((y + 1) / 2 - chance)  # minus the loss's derivative by g
        curve = chance * (1 - chance) * slope.square()
        ascent = (phi.mT @ pull.unsqueeze(2)).squeeze(2) - 2 * mu * weights
        hessian = phi.mT @ (curve.unsqueeze(2) * phi)
        hessian.diagonal(dim1=1, dim2=2).add_(2 * mu)
        step = torch.cholesky_solve(ascent.unsqueeze(2), torch.linalg.cholesky(hessian)).squeeze(2)
        weights = _best(phi, y, mu, bound, weights, step)
        if bool((ascent.square().sum(1).sqrt() < 1e-8 * phi.shape[1]).all()):
            break
    return weights


def _best(phi: Tensor, y: Tensor, mu: float, bound: float | None, weights: Tensor, step: Tensor) -> Tensor:
    """Of the steps tried, each replication's with the lowest objective."""
    tried = torch.stack([weights + part * step for part in SHORTER])  # (S, R, p)
    f = bounded(torch.einsum("rnp,srp->srn", phi, tried), bound)
    value = softplus(-y * f).sum(2) + mu * tried.square().sum(2)
    return tried[value.argmin(0), torch.arange(len(weights), device=weights.device)]
