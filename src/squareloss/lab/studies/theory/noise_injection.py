"""From separable to non-separable by Gaussian noise: the lemma's factor, the boundary as noise vanishes, the rate by margin.

    squareloss reproduce noise_injection --scale laptop      a minute on one busy core
    squareloss reproduce noise_injection --scale paper       44 s on an H200, another study beside it
    expected: P(|2 eta - 1| < t) has the factor v/gamma, not v^2/gamma; error falls as exp(-c n) with c above gamma/7

On the line all is in closed form. Two points at +-gamma with noise v: P = Phi((gamma + x_t)/v) - Phi((gamma - x_t)/v), where
x_t = v^2/(2 gamma) log((1 + t)/(1 - t)). In the plane the lemma's reduction to two points fails: XOR has t log(1/t) for t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.arcs import Arcs
from squareloss.lab.studies.theory.common import Theorem, Work
from squareloss.lab.studies.theory.sphere import ridge

_NS = {"smoke": [8, 24], "laptop": [12, 20, 28, 36, 44, 52, 60], "paper": list(range(12, 101, 8))}
_GAPS = (0.05, 0.1, 0.15, 0.2, 0.25)


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """The closed forms, and the error by margin and n."""
    count = {"smoke": 10, "laptop": 1500, "paper": 50000}[scale]
    rate = {
        f"gap{gap:g}-n{n}": {"look": "rate", "turns": 4, "gap": gap, "n": n, "replications": count}
        for gap in _GAPS[:: 2 if scale == "smoke" else 1]
        for n in _NS[scale]
    }
    return {"lemma": {"look": "lemma"}, "xor": {"look": "xor"}, "boundary": {"look": "boundary"}, **rate}


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Numbers of one cell."""
    return {"lemma": _lemma, "xor": _xor, "boundary": _boundary, "rate": _rate}[spec["look"]](spec, work)


def near_half(t: Tensor, v: Tensor) -> Tensor:
    """P(|2 eta - 1| < t) for two points at +-1 with noise v, exactly; by logarithms, for tails of any size."""
    x = v.square() * t.atanh()
    low: Tensor = torch.special.log_ndtr((-x - 1) / v)
    high: Tensor = torch.special.log_ndtr((x - 1) / v)
    return -high.exp() * (low - high).expm1()


def corrected(t: Tensor, v: Tensor) -> Tensor:
    """The bound that holds: sqrt(2/pi) v/gamma exp(-gamma^2 / (2 v^2)) artanh(t) / sqrt(1 - t^2), here for gamma = 1."""
    return math.sqrt(2 / math.pi) * v * (-1 / (2 * v**2)).exp() * t.atanh() / (1 - t**2).sqrt()


def _lemma(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Exact P over each bound, gamma = 1, for noise from 1 down to 0.05."""
    v = torch.logspace(0, math.log10(0.05), 14, dtype=torch.float64)
    found: dict[str, Any] = {"noise": rounded(v)}
    for chance in (0.05, 0.2, 0.5):
        t = torch.full_like(v, chance)
        exact = near_half(t, v)
        stated = v.square() * (-1 / (2 * v.square())).exp() * t
        found[f"over-stated-t{chance:g}"] = rounded(exact / stated)
        found[f"over-corrected-t{chance:g}"] = rounded(exact / corrected(t, v))
    return found


def _xor(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """P(|2 eta - 1| < t) / t for points at (+-1, +-1), class by the product's sign, noise 0.5: grows as log(1/t).

    2 eta - 1 = tanh(x/v^2) tanh(y/v^2) with x and y independent, so P = E_x F(t / |tanh(x/v^2)|) with F that of two points.
    """
    v = torch.tensor(0.5, dtype=torch.float64)
    t = torch.logspace(-1, -6, 11, dtype=torch.float64)
    # x by its logarithm: the integrand changes over all scales down to t v^2
    log = torch.linspace(math.log(1e-12), math.log(1 + 10 * float(v)), 40001, dtype=torch.float64)
    x = log.exp()
    density = sum((-((x - centre) ** 2) / (2 * v**2)).exp() for centre in (1, -1)) / math.sqrt(2 * math.pi) / v
    inside = t.unsqueeze(1) / (x / v**2).tanh()
    chance = torch.where(inside < 1, near_half(inside.clamp(max=1 - 1e-12), v.expand_as(inside)), 1.0)
    plane = torch.trapezoid(chance * density * x, log, dim=1)
    return {"t": rounded(t), "xor": rounded(plane / t), "two-points": rounded(near_half(t, v.expand_as(t)) / t)}


def _boundary(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """An interval [-3, -1] against a point at 1, each with half the mass: where the noisy classes are equally likely.

    As the noise vanishes, that place tends to the middle of the gap, 0, and eta to 1 and 0 on the classes.
    """
    v = torch.logspace(0, -2, 13, dtype=torch.float64)
    low, high = torch.full_like(v, -1.0), torch.full_like(v, 1.0)
    for _ in range(80):
        middle = (low + high) / 2
        positive = _log_odds(middle, v) > 0
        low, high = torch.where(positive, low, middle), torch.where(positive, middle, high)
    interval = torch.linspace(-3, -1, 401, dtype=torch.float64)
    wrong = torch.sigmoid(_log_odds(interval.unsqueeze(1), v)).amax(0)
    point = 1 - torch.sigmoid(_log_odds(torch.ones_like(v), v))
    return {"noise": rounded(v), "boundary": rounded(low), "largest": rounded(torch.maximum(wrong, point))}


def _log_odds(x: Tensor, v: Tensor) -> Tensor:
    """log density of the point's noisy class minus that of the interval's."""
    point = -((x - 1) ** 2) / (2 * v**2) - v.log() - math.log(2 * math.pi) / 2
    # log(Phi(b) - Phi(a)) of the interval's ends, from the side where the tails are small: b <= 0 there for x >= -1
    far, near = (-3 - x) / v, (-1 - x) / v
    flip = near > 0
    a, b = torch.where(flip, -near, far), torch.where(flip, -far, near)
    log_b: Tensor = torch.special.log_ndtr(b)
    interval = log_b + torch.log1p(-(torch.special.log_ndtr(a) - log_b).exp()) - math.log(2)
    return point - interval


def _rate(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Mean error on the support by replication (as mean and standard error) and how many err at all, mu = 1/n."""
    arcs, n, count = Arcs(spec["turns"], spec["gap"]), spec["n"], spec["replications"]
    x, y = arcs.sample(count, n, work.generator(n, round(100 * spec["gap"])))
    points, label = arcs.grid()
    wrong = ridge(x, y, 1 / n, points, work.device, progress=work.progress).outputs * label <= 0
    error = wrong.double().mean(1)
    spread = float(error.std()) / math.sqrt(count)
    return {"error": rounded(error.mean().item()), "spread": rounded(spread), "failures": int(wrong.any(1).sum())}


STUDY = Theorem(
    name="noise_injection",
    summary="Gaussian noise on separable classes: the lemma's factor, the boundary's limit, the rate by margin",
    cost={"smoke": "seconds", "laptop": "a minute on one busy core", "paper": "44 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
