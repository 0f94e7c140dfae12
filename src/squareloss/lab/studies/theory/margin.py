"""How far the decision boundary keeps from separable classes as n grows: square loss beside cross-entropy.

    squareloss reproduce margin --scale laptop      3 minutes on one busy core
    squareloss reproduce margin --scale paper       29 s on an H200, another study beside it
    expected: the least distance rises with n towards 0.15, the most there can be; it does not shrink

Eight arcs of a circle with gaps of 0.15 rad on either side (`arcs.Arcs`), mu = 1/n. The distance of a replication is the least
over all gaps between a zero of f and the end of an arc, in the plane's l_2 and l_inf norms, and 0 if any point of the support
is wrong. Cross-entropy has the same kernel, sample and penalty; and finite networks are trained by descent with either loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.theory.arcs import Arcs
from squareloss.lab.studies.theory.common import Theorem, Work, seed_of
from squareloss.lab.studies.theory.logistic import circle_logistic
from squareloss.lab.studies.theory.sphere import Circle, circle_points, gram, ridge
from squareloss.ntk.descent import descend, draw, safe_rate

_NS = {"smoke": [20, 60], "laptop": [20, 40, 80, 160, 320, 640, 1280], "paper": [20 * 2**i for i in range(10)]}
_NETWORK_NS = {"smoke": [20], "laptop": [80, 160], "paper": [80, 160, 320, 640, 1280]}
_DEGREE = {"smoke": 64, "laptop": 256, "paper": 1024}
_REPLICATIONS = {"smoke": 3, "laptop": 20, "paper": 100}


def specs(scale: str) -> dict[str, dict[str, Any]]:
    """Both losses at each n, as kernel machines and as networks."""
    networks = {
        f"network-{loss}-n{n}": {
            "loss": loss, "turns": 4, "gap": 0.15, "n": n, "mu": "1/n", "width": 128 if scale == "smoke" else 2048,
            "steps": 20 if scale == "smoke" else 3000, "replications": 2 if scale == "smoke" else 4,
        }
        for loss in ("square", "ce")
        for n in _NETWORK_NS[scale]
    }  # fmt: skip
    kernels = {
        f"{loss}-n{n}": {
            "loss": loss, "turns": 4, "gap": 0.15, "n": n, "mu": "1/n", "degree": _DEGREE[scale],
            "replications": _REPLICATIONS[scale],
        }
        for loss in ("square", "ce")
        for n in _NS[scale]
    }  # fmt: skip
    return {**kernels, **networks}


def measure(spec: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """The least distance from the boundary to the support, in two norms, by replication."""
    n, arcs = spec["n"], Arcs(spec["turns"], spec["gap"])
    x, y = arcs.sample(spec["replications"], n, work.generator(n))
    support, label = arcs.grid()
    gaps = arcs.gaps()
    angles = torch.cat([torch.atan2(support[:, 1], support[:, 0]), gaps.flatten()])
    if "width" in spec:
        f = _network(spec, x, y, circle_points(angles), work)
    elif spec["loss"] == "square":
        f = ridge(x, y, 1 / n, circle_points(angles), work.device, progress=work.progress).outputs
    else:
        angle = torch.atan2(x[..., 1], x[..., 0])
        f = circle_logistic(Circle(spec["degree"]), angle, y, 1 / n, angles, work.device, progress=work.progress)
    right = (f[:, : len(label)] * label > 0).all(1)
    euclid, largest = distances(f[:, len(label) :].view(len(f), *gaps.shape), gaps)
    return {"l2": rounded(euclid * right), "linf": rounded(largest * right), "right": rounded(right.double().mean().item())}


def _network(spec: Mapping[str, Any], x: Tensor, y: Tensor, points: Tensor, work: Work) -> Tensor:
    """Outputs (R, N) of networks of finite width, by descent toward their antisymmetric start."""
    x, y, points = (t.to(work.device).float() for t in (x, y, points))
    seeds = [seed_of(work.seed, 8, i) for i in range(len(x))]
    networks = draw(seeds, spec["width"], 2, antisymmetric=True, dtype=torch.float32, device=work.device)
    loss, faster = ("square", 1.0) if spec["loss"] == "square" else ("logistic", 8.0)
    rate = faster * safe_rate(gram(x.double()), 1 / spec["n"])
    at = [round(spec["steps"] * part / 20) for part in range(1, 21)]
    for k in descend(networks, x, y, mu=1 / spec["n"], rate=rate, at=at, toward="start", loss=loss):
        work.progress(k / at[-1])
    return networks.outputs(points).double().cpu()


def distances(f: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Least l_2 and l_inf distances (R,) from zeros of f (R, gaps, points) within the gaps (gaps, points) to the gaps' ends."""
    found = []
    for values, angle in ((f, gaps), (f.flip(2), gaps.flip(1))):  # from either end
        # the first point whose sign is not that of the end, and the zero before it; no change counts as the far end
        changed = values * values[..., :1].sign() <= 0
        index = torch.where(changed.any(2), changed.double().argmax(2), values.shape[2] - 1).clamp(min=1)
        before, after = (values.gather(2, (index - back).unsqueeze(2)).squeeze(2) for back in (1, 0))
        part = (before / (before - after)).nan_to_num(1.0).clamp(0, 1)
        step = angle[0, 1] - angle[0, 0]
        zero = circle_points(angle[:, 0] + step * (index - 1 + part))  # (R, gaps, 2)
        found.append((zero - circle_points(angle[:, 0])).abs())
    apart = torch.stack(found)  # (2, R, gaps, 2)
    return apart.square().sum(3).sqrt().amin((0, 2)), apart.amax(3).amin((0, 2))


STUDY = Theorem(
    name="margin",
    summary="the distance of the decision boundary from separable classes stays away from zero as n grows",
    cost={"smoke": "seconds", "laptop": "3 minutes on one busy core", "paper": "29 s on an H200, another study beside it"},
    specs=specs,
    measure=measure,
)
