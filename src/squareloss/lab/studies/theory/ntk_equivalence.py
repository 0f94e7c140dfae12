"""A wide network trained by descent with a penalty, beside kernel ridge with h at the same mu: by width and by time.

    squareloss reproduce ntk_equivalence --scale laptop      2 minutes on one busy core
    squareloss reproduce ntk_equivalence --scale paper       13 s on an H200, another study beside it
    expected: decay toward 0 comes near ridge only in a window of times; decay toward W(0) stays near, the wider the nearer

Time is 2 zeta mu k. The paper's penalty pulls W to zero: that erases first f_0, which ridge has not, and then the features of
W(0), which the kernel rests on. A penalty on W - W(0) with an antisymmetric start (f_0 = 0) has neither trouble.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.common import Theorem, Work, seed_of
from squareloss.lab.studies.theory.sphere import Target, gram, ridge, uniform
from squareloss.ntk.descent import Linear, Networks, descend, draw, safe_rate

VARIANTS = {"zero-random": ("zero", False), "zero-antisymmetric": ("zero", True), "start-antisymmetric": ("start", True)}
_WIDTHS = {"smoke": [32, 128], "laptop": [64, 256, 1024, 4096, 16384], "paper": [64 * 4**i for i in range(7)]}
_TIMES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """Each variant at each width."""
    small = scale == "smoke"
    return {
        f"{variant}-m{width}": {
            "variant": variant, "width": width, "n": 10 if small else 30, "d": 3, "mu": 1.0, "xi": 1.0,
            "replications": {"smoke": 2, "laptop": 8, "paper": 20}[scale], "times": _TIMES[:4] if small else _TIMES,
        }
        for variant in VARIANTS
        for width in _WIDTHS[scale]
    }  # fmt: skip


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """By time: root mean square distance to ridge and to the network's own linear limit, and what moved, by replication."""
    n, d, count, mu = spec["n"], spec["d"], spec["replications"], spec["mu"]
    toward, antisymmetric = VARIANTS[spec["variant"]]
    x, y = (t.to(work.device) for t in Target(d).sample(count, n, work.generator(n, d)))
    test = uniform(300, d, work.generator(1)).to(work.device)
    goal = ridge(x, y, mu, test, work.device).outputs.to(work.device)
    seeds = [seed_of(work.seed, 5, i) for i in range(count)]
    networks = draw(seeds, spec["width"], d, xi=spec["xi"], antisymmetric=antisymmetric, device=work.device)
    kernel = gram(x)
    rate = safe_rate(kernel, mu, 0.25)
    limit = Linear.fit(kernel, y, networks.outputs(x), mu=mu, rate=rate, toward=toward)
    cross, first = gram(test.expand(count, -1, -1), x), networks.outputs(test)
    steps = [max(1, round(time / (2 * rate * mu))) for time in spec["times"]]
    rows: dict[str, list[Any]] = {key: [] for key in ("ridge", "limit", "moved", "changed", "kernel")}
    for k in descend(networks, x, y, mu=mu, rate=rate, at=steps, toward=toward):
        f = networks.outputs(test)
        _note(rows, networks, x, kernel, _rms(f - goal), _rms(f - limit.outputs(cross, first, k)))
        work.progress(k / steps[-1])
    return {"steps": steps, "start": rounded(_rms(first)), "size": rounded(_rms(goal)), **rows}


def _note(
    rows: dict[str, list[Any]], networks: Networks, x: Tensor, kernel: Tensor, to_ridge: Tensor, to_limit: Tensor
) -> None:
    """One time's entries; diagnostics as means over replications."""
    gap = torch.linalg.matrix_norm(networks.kernel(x) - kernel, ord=2)
    rows["ridge"].append(rounded(to_ridge))
    rows["limit"].append(rounded(to_limit))
    rows["moved"].append(rounded(networks.moved().mean().item()))
    rows["changed"].append(rounded(networks.changed(x).mean().item()))
    rows["kernel"].append(rounded((gap / torch.linalg.matrix_norm(kernel, ord=2)).mean().item()))


def _rms(values: Tensor) -> Tensor:
    return values.square().mean(1).sqrt()


STUDY = Theorem(
    name="ntk_equivalence",
    summary="descent of a wide network beside kernel ridge at the same penalty, by width and time",
    cost={"smoke": "seconds", "laptop": "2 minutes on one busy core", "paper": "13 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
