"""What h, and a network without biases, cannot learn: odd functions of degree three and more; a bias coordinate mends it.

    squareloss reproduce odd_degrees --scale laptop      3 minutes on one busy core
    squareloss reproduce odd_degrees --scale paper       25 s on an H200, another study beside it
    expected: sign(cos 3 theta) is wrong on at least 1/6 of the mass without a bias, on nothing with it, for large n

h(u) = u/4 + u arcsin(u)/(2 pi) is linear plus even, and so is every network sum_r a_r relu(w_r.x). Three looks: the error on
six arcs of a circle against n; noiseless cos k theta, k = 1 to 6; and a network of finite width on the six arcs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.arcs import Arcs
from squareloss.lab.studies.theory.common import Theorem, Work, seed_of
from squareloss.lab.studies.theory.sphere import circle_points, gram, ridge, with_bias
from squareloss.ntk.descent import descend, draw, safe_rate

_NS = {"smoke": [20, 60], "laptop": [25, 50, 100, 200, 400, 800], "paper": [25 * 2**i for i in range(10)]}


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """Each look, without a bias and with one."""
    small, count = scale == "smoke", {"smoke": 2, "laptop": 20, "paper": 100}[scale]
    found: dict[str, dict[str, Any]] = {}
    for bias in (False, True):
        name = "bias" if bias else "plain"
        for n in _NS[scale]:
            found[f"classes-{name}-n{n}"] = {"look": "classes", "bias": bias, "n": n, "gap": 0.15, "replications": count}
        found[f"degrees-{name}"] = {"look": "degrees", "bias": bias, "n": 40 if small else 200, "replications": min(count, 10)}
        found[f"network-{name}"] = {
            "look": "network", "bias": bias, "n": 40 if small else 200, "gap": 0.15, "width": 64 if small else 4096,
            "steps": 20 if small else 2000, "mu": 0.02, "replications": 2 if small else 4,
        }  # fmt: skip
    return found


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Numbers of one cell."""
    return {"classes": _classes, "degrees": _degrees, "network": _network}[spec["look"]](spec, work)


def _lift(spec: Mapping[str, Any], x: Tensor) -> Tensor:
    """The points with a bias coordinate, if the spec asks for one."""
    return with_bias(x) if spec["bias"] else x


def _classes(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Share of the support that is wrong, mu = 1/n."""
    arcs, n = Arcs(3, spec["gap"]), spec["n"]
    x, y = arcs.sample(spec["replications"], n, work.generator(n))
    points, label = arcs.grid()
    fit = ridge(_lift(spec, x), y, 1 / n, _lift(spec, points), work.device, progress=work.progress)
    return {"error": rounded((fit.outputs * label <= 0).double().mean(1))}


def _degrees(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """|f - cos k theta| / |cos k theta| in L_2 for k = 1 to 6, noiseless, mu = 1e-3; a row per degree."""
    n, count = spec["n"], spec["replications"]
    angle = torch.rand(count, n, generator=work.generator(n, 2), dtype=torch.float64) * (2 * math.pi)
    grid = torch.arange(1000, dtype=torch.float64) * (2 * math.pi / 1000)
    degree = torch.arange(1, 7, dtype=torch.float64)
    y = (angle.unsqueeze(2) * degree).cos()  # (R, n, 6)
    x, test = (_lift(spec, circle_points(where)) for where in (angle, grid))
    fit = ridge(x, y, 1e-3, test, work.device)
    error = (fit.outputs - (grid.unsqueeze(1) * degree).cos()).square().mean(1) * 2
    return {"relative": rounded(error.sqrt().T)}


def _network(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """The same six arcs by descent of finite networks, toward their antisymmetric start."""
    arcs, count = Arcs(3, spec["gap"]), spec["replications"]
    x, y = arcs.sample(count, spec["n"], work.generator(spec["n"], 3))
    points, label = arcs.grid()
    x, y, points = (t.to(work.device).float() for t in (_lift(spec, x), y, _lift(spec, points)))
    seeds = [seed_of(work.seed, 6, i) for i in range(count)]
    networks = draw(seeds, spec["width"], x.shape[2], antisymmetric=True, dtype=torch.float32, device=work.device)
    rate = safe_rate(gram(x.double()), spec["mu"])
    at = [round(spec["steps"] * part / 10) for part in range(1, 11)]
    for k in descend(networks, x, y, mu=spec["mu"], rate=rate, at=at, toward="start"):
        work.progress(k / at[-1])
    wrong = networks.outputs(points).cpu() * label <= 0
    return {"error": rounded(wrong.double().mean(1)), "training": rounded(((networks.outputs(x) * y) <= 0).double().mean(1))}


STUDY = Theorem(
    name="odd_degrees",
    summary="odd functions of degree three and more are out of reach of h; a bias coordinate mends it",
    cost={"smoke": "seconds", "laptop": "3 minutes on one busy core", "paper": "25 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
