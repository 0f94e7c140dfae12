"""Probabilities of K classes from simplex coding: the proposition's formula is exact, and kernel ridge comes to it as n grows.

    squareloss reproduce simplex_probability --scale laptop      20 seconds on one busy core
    squareloss reproduce simplex_probability --scale paper       40 s on an H200, another study beside it
    expected: the identity to rounding; the squared error falls about as n^(-d/(2d-1)), -0.6 for d = 3, or faster

eta_k(x) = (1 + 0.9 q_k(x)) / K with q_k(x) = (w_k.x)^2 less its mean over k, for K directions w_k in R^3: quadratic, so in the
RKHS. Ridge has one penalty for all outputs, mu = c n^((d-1)/(2d-1)).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from squareloss.codings import Simplex
from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.common import Theorem, Work, replications
from squareloss.lab.studies.theory.excess_risk import C
from squareloss.lab.studies.theory.sphere import penalty, ridge, uniform

D = 3
_NS = {"smoke": [30, 60], "laptop": [100, 200, 400, 800, 1600], "paper": [100 * 2**i for i in range(9)]}
_REPLICATIONS = {"smoke": 3, "laptop": 15, "paper": 50}
CODING = Simplex(radius=1)


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """Each number of classes at each n."""
    return {
        f"K{k}-n{n}": {
            "K": k,
            "n": n,
            "c": C,
            "replications": replications(_REPLICATIONS[scale], n),
            "points": 20000 if scale == "paper" else 2000,
        }
        for k in (3, 5, 10)
        for n in _NS[scale]
    }


def probabilities(x: Tensor, classes: int) -> Tensor:
    """eta (..., K) of points (..., 3); directions spread evenly over a half of the sphere."""
    i = torch.arange(classes, dtype=torch.float64)
    height = (i + 0.5) / classes
    turn = i * (torch.pi * (3 - 5**0.5))  # the golden angle
    radius = (1 - height.square()).sqrt()
    square = (x @ torch.stack([radius * turn.cos(), radius * turn.sin(), height])).square()
    return (1 + 0.9 * (square - square.mean(-1, keepdim=True))) / classes


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Squared and largest error of eta by replication, the share outside [0, 1], and how exact the identity is."""
    classes, n, count = spec["K"], spec["n"], spec["replications"]
    generator = work.generator(classes, n)
    x = uniform(count * n, D, generator)
    label = torch.multinomial(probabilities(x, classes), 1, generator=generator).squeeze(1)
    vertices = CODING.encode(torch.eye(classes, dtype=torch.float64), classes)  # (K, K), rows v_k of norm 1
    codes = vertices[label].view(count, n, classes)
    test = uniform(spec["points"], D, work.generator(7))
    truth = probabilities(test, classes)
    f = ridge(x.view(count, n, D), codes, penalty(n, D, spec["c"]), test, work.device, progress=work.progress).outputs
    eta = CODING.eta(f.flatten(0, 1)).view(f.shape)
    best = truth @ vertices  # the minimiser of the expected loss, E[v_y | x]
    stated = ((classes - 1) * best @ vertices.T + 1) / classes
    return {
        "squared": rounded((eta - truth).square().sum(2).mean(1)),
        "largest": rounded((eta - truth).abs().amax((1, 2))),
        "outside": rounded(((eta < 0) | (eta > 1)).double().mean().item()),
        "sum": float((eta.sum(2) - 1).abs().max()),
        "identity": float((stated - truth).abs().max()),
        "ours": float((CODING.eta(best) - truth).abs().max()),
    }


STUDY = Theorem(
    name="simplex_probability",
    summary="the probabilities of K classes from simplex-coded outputs, exactly and from samples",
    cost={"smoke": "seconds", "laptop": "20 seconds on one busy core", "paper": "40 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
