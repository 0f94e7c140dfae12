"""Beyond the paper: neural collapse, out-of-distribution detection, and whether adversarial examples carry over."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from squareloss.attacks._common import ascend, project
from squareloss.attacks._network import prepare
from squareloss.attacks.losses import objective
from squareloss.lab.studies.common import Json
from squareloss.lab.studies.images.data import read
from squareloss.lab.studies.images.measures import Notes, points
from squareloss.lab.studies.images.networks import Trained
from squareloss.lab.training.loop import outputs_of


def collapse_and_outside(net: Trained, settings: Mapping[str, Any], seed: int, notes: Notes) -> Json:
    """Neural collapse on the training images, and how well other images are told from the test images."""
    notes.total = 2
    nc = notes.once("collapse", lambda: _collapse(net, notes))
    ood = notes.once("outside", lambda: _outside(net, settings["outside"]))
    timings = {"collapse": nc["seconds"], "outside": ood["seconds"]}
    return {key: value for part in (nc, ood) for key, value in part.items() if key != "seconds"} | {"timings": timings}


def _collapse(net: Trained, notes: Notes) -> Json:
    features = outputs_of(_Features(net.network), net.data.train.x, preprocess=net.model.preprocess, progress=notes.part)
    linear = net.network.linear
    assert isinstance(linear, nn.Linear)
    with torch.no_grad():
        predicted = net.loss.link.predict(linear(features))
    return neural_collapse(features, net.data.train.y.to(features.device), linear.weight.detach(), predicted)


class _Features(nn.Module):
    """A network without its last layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)  # a new module is in training mode, and would leave the network in it

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network.features(x)  # type: ignore[operator]
        return found


def neural_collapse(features: Tensor, labels: Tensor, weight: Tensor, predicted: Tensor) -> dict[str, float]:
    """The four measures of Papyan, Han and Donoho (2020); all go to zero as a network collapses.

    With class means mu_k about the global mean, M = (mu_1, ..., mu_K), and W the last layer's rows about their mean:

    - nc1, variability: tr(Sigma_W Sigma_B^+) / K, the covariance within classes over that between their means.
    - nc2_norms, equal norms: std |mu_k| / mean |mu_k|; nc2_angles: the mean of |cos(mu_j, mu_k) + 1/(K-1)| over pairs.
    - nc3, self-duality: |W / |W| - M / |M||, Frobenius norms.
    - nc4, nearest mean: the share of samples whose class is not that of the nearest class mean.

    Arguments:
        features: of the training samples, (N, d).
        labels: their classes (N,), every class among them.
        weight: of the last layer, (K, d).
        predicted: the classes that the network gives them, (N,).
    """
    features, weight = features.double(), weight.double()
    classes = len(weight)
    counts = torch.bincount(labels, minlength=classes).double()
    means = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    means = means.index_add(0, labels, features) / counts[:, None]
    centred = means - means.mean(0)
    norms = torch.linalg.vector_norm(centred, dim=1)
    cosines = (centred @ centred.T) / (norms[:, None] * norms)
    apart = ~torch.eye(classes, dtype=torch.bool, device=features.device)
    rows = weight - weight.mean(0)
    dual = torch.linalg.norm(rows / torch.linalg.norm(rows) - centred / torch.linalg.norm(centred))
    nearest = torch.cdist(features, means).argmin(1)
    return {
        "nc1": _variability(features - means[labels], centred),
        "nc2_norms": float(norms.std(correction=0) / norms.mean()),
        "nc2_angles": float((cosines[apart] + 1 / (classes - 1)).abs().mean()),
        "nc3": float(dual),
        "nc4": float((nearest != predicted).double().mean()),
    }


def _variability(within: Tensor, centred: Tensor) -> float:
    """tr(Sigma_W Sigma_B^+) / K along the K - 1 directions that the means span: sum_i var(u_i . h) / lambda_i / K."""
    classes = len(centred)
    _, sizes, directions = torch.linalg.svd(centred / classes**0.5, full_matrices=False)
    kept = min(classes - 1, len(sizes))
    spread = (within @ directions[:kept].T).square().mean(0)
    return float((spread / sizes[:kept].square()).sum() / classes)


def _outside(net: Trained, spec: Mapping[str, Any]) -> Json:
    """AUROC of the largest probability, and of the largest score about the mean, between test images and others."""
    values = []
    for x in (net.data.test.x, read(spec).test.x):
        outputs = outputs_of(net.network, x, preprocess=net.model.preprocess)
        scores = net.loss.link.scores(outputs)
        values.append((net.loss.probabilities(outputs).amax(1), (scores - scores.mean(1, keepdim=True)).amax(1)))
    inside, outside = values
    return {
        "auroc_probability": auroc(inside[0], outside[0]),
        "auroc_score": auroc(inside[1], outside[1]),
        "outside_images": len(outside[0]),
    }


def auroc(higher: Tensor, lower: Tensor) -> float:
    """The chance that a value of `higher` (N,) exceeds one of `lower` (M,), ties counted half: the area under the ROC curve."""
    above = torch.searchsorted(lower.double().sort().values, higher.double())
    upto = torch.searchsorted(lower.double().sort().values, higher.double(), right=True)
    return float((above + upto).double().mean() / (2 * len(lower)))


def transfer(net: Trained, source: Trained, settings: Mapping[str, Any], seed: int, notes: Notes) -> Json:
    """Accuracy on examples made on another network, at each radius, of the images that both have right."""
    x, y = points(net, settings["points"])
    notes.total = len(settings["levels"])
    right = _right(net.model, x, y) & _right(source.model, x, y)
    x, y = x[right], y[right]
    found: Json = {"points": len(y), "timings": {}}
    for level in settings["levels"] if len(y) else ():
        one = notes.once(str(level), partial(_carried, net, source, x, y, level / 255, settings["steps"]))
        found |= {f"transfer_{level}": one["standing"], f"source_{level}": one["source"]}
        found["timings"][f"{level}/255"] = one["seconds"]
    return found


def _carried(net: Trained, source: Trained, x: Tensor, y: Tensor, eps: float, steps: int) -> Json:
    moved = strongest(source.model, x, y, eps, steps)
    return {
        "standing": float(_right(net.model, moved, y).double().mean()),
        "source": float(_right(source.model, moved, y).double().mean()),
    }


def strongest(model: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int) -> Tensor:
    """Examples (N, ...) that go on after they have won: l_inf PGD on the margin, all steps, from the images themselves.

    Attacks stop where a class is lost, just beyond the boundary of their own network; such examples carry over to few others.
    """
    network, goal = prepare(model, x, y), objective("margin")
    moved = x
    for _ in range(steps):
        _, _, gradient = network.gradient(moved, goal, y, y)
        moved = project(ascend(moved, gradient, 2.5 * eps / steps, "linf"), x, eps, "linf")
    return moved


@torch.no_grad()
def _right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([model(images).argmax(1) for images in torch.split(x, 1000)]) == y
