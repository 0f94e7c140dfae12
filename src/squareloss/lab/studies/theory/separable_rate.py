"""The probability of a single error on separable classes: it falls exponentially in n where the label lies in the RKHS.

    squareloss reproduce separable_rate --scale laptop      2 minutes on one busy core
    squareloss reproduce separable_rate --scale paper       53 s on an H200, another study beside it
    expected: P(any error) about C exp(-0.2 n) for eight arcs; two opposite caps fail more often the larger n, with mu = 1/n

Arcs of a circle of either class by turns, sign(cos 4 theta) with gaps of 0.15 rad on either side of a change; mu = 1/n, or 0.
The counterexample: two opposite caps in R^3, whose label is odd and no function of the RKHS, so that the norm of the fit grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.arcs import Arcs, Caps
from squareloss.lab.studies.theory.common import Theorem, Work
from squareloss.lab.studies.theory.sphere import ridge

_NS = {"smoke": [8, 24], "laptop": [12, 16, 20, 24, 28, 32, 36, 40, 44], "paper": list(range(12, 65, 4))}
_CAP_NS = {"smoke": [10, 20], "laptop": [20, 40, 80, 160, 320], "paper": [20, 40, 80, 160, 320, 640, 1280, 2560]}
_REPLICATIONS = {"smoke": 20, "laptop": 4000, "paper": 100000}
_CAP_REPLICATIONS = {"smoke": 5, "laptop": 100, "paper": 500}


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """Arcs with mu = 1/n and without penalty, caps with mu = 1/n and with mu = 0.1."""
    arcs = {
        f"arcs-{rule}-n{n}": {
            "classes": "arcs",
            "turns": 4,
            "gap": 0.15,
            "mu": rule,
            "n": n,
            "replications": _REPLICATIONS[scale],
        }
        for rule in ("1/n", "0")
        for n in _NS[scale]
    }
    caps = {
        f"caps-{rule}-n{n}": {"classes": "caps", "angle": 1.2, "mu": rule, "n": n, "replications": _CAP_REPLICATIONS[scale]}
        for rule in ("1/n", "0.1")
        for n in _CAP_NS[scale]
    }
    return {name.replace("/", "_over_"): spec for name, spec in {**arcs, **caps}.items()}


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """How many replications err anywhere on the support, the mean error, and quartiles of the squared norm of the fit."""
    n, count = spec["n"], spec["replications"]
    classes = Arcs(spec["turns"], spec["gap"]) if spec["classes"] == "arcs" else Caps(spec["angle"])
    x, y = classes.sample(count, n, work.generator(n))
    points, label = classes.grid()
    mu = 1 / n if spec["mu"] == "1/n" else float(spec["mu"])
    fit = ridge(x, y, mu, points, work.device, progress=work.progress)
    wrong = fit.outputs * label <= 0
    norm = fit.norm.quantile(fit.norm.new_tensor([0.25, 0.5, 0.75]))
    failures = int(wrong.any(1).sum())
    return {"failures": failures, "error": rounded(wrong.double().mean().item()), "norm": rounded(norm)}


STUDY = Theorem(
    name="separable_rate",
    summary="the probability of any error on separable classes falls exponentially, where its assumption holds",
    cost={"smoke": "seconds", "laptop": "2 minutes on one busy core", "paper": "53 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
