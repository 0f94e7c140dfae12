"""How fast the eigenvalues of h fall, and with them the entropy of its unit ball and the least eigenvalue of its matrices.

    squareloss reproduce spectrum --scale laptop      15 seconds on one busy core
    squareloss reproduce spectrum --scale paper       37 s on an H200, another study beside it
    expected: eigenvalues fall as j^(-d/(d-1)): -2, -1.5, -1.25 for d = 2, 3, 5; lambda_min about as n^(-2/(d-1))

The eigenvalues are exact, by degree; the least eigenvalue of the kernel matrix of n uniform points is measured. d + 1 pairs of
opposite points make the matrix singular.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.common import Theorem, Work, parts
from squareloss.lab.studies.theory.sphere import gram, uniform
from squareloss.ntk.spectrum import ntk_spectrum, smallest_eigenvalue, zonal_norm

_NS = {"smoke": [10, 20], "laptop": [25, 50, 100, 200, 400], "paper": [25, 50, 100, 200, 400, 800, 1600, 3200]}
_REPLICATIONS = {"smoke": 3, "laptop": 50, "paper": 200}


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """The exact spectrum of each dimension, and the least eigenvalue for each n."""
    found: dict[str, dict[str, Any]] = {
        f"exact-d{d}": {"kind": "exact", "d": d, "degree": 400 if d < 10 else 100} for d in (2, 3, 5, 10)
    }
    for d in (2, 3, 5):
        for n in _NS[scale]:
            count = min(_REPLICATIONS[scale], 80_000 // n)  # eigenvalues of a large matrix take a GPU a fifth of a second
            found[f"least-d{d}-n{n}"] = {"kind": "least", "d": d, "n": n, "replications": count}
        found[f"norms-d{d}"] = {"kind": "norms", "d": d, "degree": 40 if scale == "smoke" else 320}
        found[f"opposite-d{d}"] = {"kind": "opposite", "d": d, "replications": 20}
    return found


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Numbers of one cell."""
    return {"exact": _exact, "least": _least, "opposite": _opposite, "norms": _norms}[spec["kind"]](spec, work)


def _exact(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Index of the last eigenvalue of each degree and its value; entropy by radius; effective dimension by ridge."""
    spectrum = ntk_spectrum(spec["d"], spec["degree"])
    held = spectrum.values > 0
    values, order = spectrum.values[held].sort(descending=True)
    index = spectrum.counts[held][order].cumsum(0)
    chosen = sorted({round(len(values) ** (i / 24)) for i in range(25)})  # some twenty, even on a logarithmic axis
    places = [i - 1 for i in chosen]
    # smaller radii or ridges would reach degrees that are left out
    low = float(values[-1])
    radii = torch.logspace(math.log10(math.sqrt(low) * 1.5), -1.2, 8, dtype=torch.float64).tolist()
    ridges = torch.logspace(math.log10(low * 30), -2, 8, dtype=torch.float64).tolist()
    return {
        "index": rounded(index[places]),
        "eigenvalue": rounded(values[places]),
        "trace": spectrum.trace(),
        "radius": rounded(radii),
        "entropy": rounded([spectrum.entropy(radius) for radius in radii]),
        "ridge": rounded(ridges),
        "effective": rounded([spectrum.effective_dimension(ridge) for ridge in ridges]),
    }


def _least(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    n, d, count = spec["n"], spec["d"], spec["replications"]
    x = uniform(count * n, d, work.generator(d, n)).view(count, n, d)
    found = []
    for part in parts(count, 3 * n * n, work.device):
        found.append(smallest_eigenvalue(gram(x[part].to(work.device))).cpu())
        work.progress(part.stop / count)
    return {"least": rounded(torch.cat(found))}


def _norms(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Squared RKHS norms of functions of x_1 up to some degrees, and their squared L_2 norm in degrees that h has not."""
    d, degree = spec["d"], spec["degree"]
    spectrum = ntk_spectrum(d, degree)
    degrees = [degree // 8, degree // 4, degree // 2, degree]
    found: dict[str, Any] = {"degrees": degrees}
    for name, profile in _profiles(d).items():
        norm = zonal_norm(profile, spectrum, nodes=12 * degree)  # many: some profiles have kinks
        found[name] = {"squared": rounded(norm.squared[degrees]), "outside": rounded(norm.outside)}
    return found


def _profiles(d: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """By name, functions of x_1 whose place is known; powers of s = x_1^2 - 1/d keep its sign."""

    def power(p: float) -> Callable[[Tensor], Tensor]:
        return lambda u: (u**2 - 1 / d).sign() * (u**2 - 1 / d).abs() ** p

    return {
        "s": power(1),
        "sign(s) s^2": power(2),
        "s^3": power(3),
        "sign(s) |s|^(1/2)": power(0.5),
        "x_1 |x_1|": lambda u: u * u.abs(),
    }


def _opposite(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """The least eigenvalue of d and of d + 1 pairs of opposite points: h tells the pairs apart by its linear part alone."""
    d, count = spec["d"], spec["replications"]
    x = uniform(count * (d + 1), d, work.generator(d, 99)).view(count, d + 1, d)
    few, many = x[:, :d], x
    least = {name: smallest_eigenvalue(gram(torch.cat([half, -half], 1))).abs() for name, half in (("d", few), ("more", many))}
    return {name: rounded(value) for name, value in least.items()}


STUDY = Theorem(
    name="spectrum",
    summary="eigenvalues of the NTK, their decay, and the least eigenvalue of its matrices",
    cost={"smoke": "seconds", "laptop": "15 seconds on one busy core", "paper": "37 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
