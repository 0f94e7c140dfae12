"""The largest error of the probability (f + 1)/2, against n^(-1/(4d-2)); and cross-entropy, with and without bounded outputs.

    squareloss reproduce calibration_rate --scale laptop      2 minutes on one busy core
    squareloss reproduce calibration_rate --scale paper       46 s on an H200, another study beside it
    expected: slopes near -d/(4d-2), steeper than the bound -1/(4d-2); cross-entropy with |f| <= C stops at 1 - sigmoid(C)

2 eta - 1 = 0.9 s/M of `sphere.Target` for the rate; for cross-entropy d = 2 and height 1, so that eta touches 0 and 1: a bound
C on the log odds then costs 1 - sigmoid(C), and without the bound no such floor shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.common import Theorem, Work, replications
from squareloss.lab.studies.theory.excess_risk import NS, C
from squareloss.lab.studies.theory.logistic import circle_logistic
from squareloss.lab.studies.theory.sphere import Circle, Target, circle_points, penalty, ridge, uniform

_BOUNDED_NS = {"smoke": [50, 100], "laptop": [500, 2000, 8000, 32000], "paper": [500 * 2**i for i in range(11)]}
_REPLICATIONS = {"smoke": 3, "laptop": 20, "paper": 50}
LOSSES = {"square": None, "ce": None, "ce-bound1": 1.0, "ce-bound2": 2.0}


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """The rate for three dimensions; square loss and cross-entropies on the circle."""
    rate = {
        f"rate-d{d}-n{n}": {
            "loss": "square", "d": d, "n": n, "height": 0.9, "c": C,
            "replications": _REPLICATIONS[scale] if d == 2 else replications(_REPLICATIONS[scale], n),
            "degree": 512 if n > 200_000 else 128, "points": 20000 if scale == "paper" else 3000,
        }
        for d, ns in NS[scale].items()
        for n in ns
    }  # fmt: skip
    losses = {
        f"{loss}-n{n}": {
            "loss": loss, "d": 2, "n": n, "height": 1.0, "c": C, "replications": 2 if scale == "smoke" else 10,
            # mu weighs more beside the flatter loss of cross-entropy: 64 degrees are enough for it to 1e-5
            "degree": 256 if loss == "square" else 64,
        }
        for loss in LOSSES
        for n in _BOUNDED_NS[scale]
    }  # fmt: skip
    return {**rate, **losses}


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """The largest error of the probability over a fine set of points, by replication."""
    d, n, count = spec["d"], spec["n"], spec["replications"]
    target = Target(d, height=spec["height"])
    x, y = target.sample(count, n, work.generator(d, n, round(10 * spec["height"])))
    mu = penalty(n, d, spec["c"])
    if d == 2:
        grid = torch.arange(2000, dtype=torch.float64) * (2 * math.pi / 2000)
        test = circle_points(grid)
        chance = _on_circle(spec, torch.atan2(x[..., 1], x[..., 0]), y, mu, grid, work)
    else:
        axes = torch.cat([torch.eye(d), -torch.eye(d)]).double()
        test = torch.cat([axes, uniform(spec["points"], d, work.generator(d, 7))])
        chance = (ridge(x, y, mu, test, work.device, progress=work.progress).outputs + 1) / 2
    error = (chance - (target.margin(test) + 1) / 2).abs()
    return {"largest": rounded(error.amax(1)), "mean": rounded(error.mean(1))}


def _on_circle(spec: Mapping[str, Any], angle: Tensor, y: Tensor, mu: float, grid: Tensor, work: Work) -> Tensor:
    circle = Circle(spec["degree"])
    if spec["loss"] == "square":
        return (circle.ridge(angle, y, mu, grid, work.device) + 1) / 2
    bound = LOSSES[spec["loss"]]
    return torch.sigmoid(circle_logistic(circle, angle, y, mu, grid, work.device, bound, work.progress))


STUDY = Theorem(
    name="calibration_rate",
    summary="the largest error of the probability falls with n; cross-entropy's stops where its outputs are bounded",
    cost={"smoke": "seconds", "laptop": "2 minutes on one busy core", "paper": "46 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
