"""What `compare` measures on a trained network: probabilities, noise, attacks, and the bins and curves that figures need."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from squareloss import metrics
from squareloss.attacks.pgd import pgd
from squareloss.attacks.results import AttackResult
from squareloss.attacks.worst_case import worst_case
from squareloss.calibrators import Asinh
from squareloss.classifier import Classifier, Standardize
from squareloss.codings import Coding
from squareloss.lab.data import Dataset
from squareloss.lab.data.dataset import drawn
from squareloss.lab.report.figures import WORST
from squareloss.lab.studies.common import Json, bins, fit_temperature, raw_eta, rounded
from squareloss.lab.studies.compare.distances import distances
from squareloss.lab.training.loop import floats, outputs_of
from squareloss.losses import Loss

BOOTSTRAP = 200  # bootstrap replicates kept with each result, for intervals when there is only one seed
QUANTILES = 41  # points of the distribution of distances kept for the figure


def validation_score(loss: Loss, outputs: Tensor, labels: Tensor) -> tuple[float, float]:
    """What a learning rate is chosen by, (accuracy, NLL after a temperature), the same for every loss and any scale."""
    temperature, _ = fit_temperature(loss, outputs, labels)
    probabilities = temperature.transform(loss.link.scores(outputs))
    return float(metrics.accuracy(probabilities, labels)), float(metrics.nll(probabilities, labels))


def measure(
    network: nn.Module,
    loss: Loss,
    data: Dataset,
    *,
    noise: Sequence[float],
    eps: Sequence[float],
    attacked: int,
    steps: int,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Json:
    """Everything `compare` reports of one network, as plain JSON values.

    Scalars are at the top; "readings" has those that depend on how probabilities are read, "" for the loss's own way,
    "+temperature" for softmax(scores / T) and "+asinh" for `Asinh`, fitted on the validation split; the rest feeds figures.

    Arguments:
        network: outputs (N, width) of standardised inputs, on the device to use.
        loss: what it was trained with; its link reads the outputs.
        data: on the CPU; the validation split fits the calibrators, the test split is measured.
        noise: standard deviations of Gaussian noise in standardised space.
        eps: radii of l_inf attacks on images in [0, 1]; not used for tables.
        attacked: how many test points to attack, or to find the distance to the boundary of.
        steps: of PGD with each loss; the worst case has its own.
        seed: of noise, attacks and bootstrap; the same for all losses, so that they meet the same draws.
        progress: called with the share that is done, now and then.
    """
    device = next(network.parameters()).device
    model = Classifier(network, loss.link, Standardize(data.mean, data.std).to(device)).eval()
    held, outputs = (outputs_of(network, split.x, preprocess=model.preprocess) for split in (data.validation, data.test))
    held_labels, labels = (split.y.to(device) for split in (data.validation, data.test))
    scores = loss.link.scores(outputs)
    temperature, fitted = fit_temperature(loss, held, held_labels)
    softened, bent = (one.transform(scores) for one in (temperature, Asinh().fit(loss.link.scores(held), held_labels)))
    likelihood = softened.double().gather(1, labels[:, None]).squeeze(1).clamp_min(1e-12)
    points = {"accuracy": (loss.link.predict(outputs) == labels).double(), "nll_temperature": -likelihood.log()}
    curve = _noise(model, data, noise, seed)
    points |= {f"noise_{std:g}": row for std, row in zip(noise, curve, strict=True)}
    found: Json = {
        **{name: float(values.mean()) for name, values in points.items()},
        "temperature": float(temperature.state()["temperature"]),
        "temperature_fitted": fitted,
        "readings": {
            "": _reading(loss.probabilities(outputs), labels, seed) | raw_eta(loss, outputs, labels),
            "+temperature": _reading(softened, labels, seed),
            "+asinh": _reading(bent, labels, seed),
        },
        "noise": {"std": list(noise), "accuracy": curve.mean(1).tolist()},
        "replicates": _replicates(points, seed),
    }
    chosen = drawn(len(labels), attacked)
    if data.kind == "table":
        more = _distances(model, data, chosen, seed)
    else:
        more = _attacks(model, data, chosen, eps, steps, seed, progress)
    return {**found, **more, "replicates": found["replicates"] | more["replicates"]}


def _reading(probabilities: Tensor, labels: Tensor, seed: int) -> Json:
    """ECE, Brier score and the bins of a reliability diagram, of one way to read probabilities."""
    evaluation = metrics.evaluate(probabilities, labels, bootstrap=BOOTSTRAP, seed=seed)
    return {
        "ece": float(evaluation["ece"]),
        "ece_noise": float(evaluation["ece"].details["noise"]),
        "brier": float(evaluation["brier"]),
        "reliability": bins(probabilities, labels),
        "replicates": {name: rounded(evaluation.replicates[name]) for name in ("ece", "brier")},
    }


def _noise(model: Classifier, data: Dataset, stds: Sequence[float], seed: int) -> Tensor:
    """Which test points are right, (S, N), under noise of S sizes in standardised space, where columns vary."""
    device = next(model.parameters()).device
    generator, labels, free = torch.Generator().manual_seed(seed), data.test.y.to(device), varying(data).to(device)
    correct = torch.zeros(len(stds), len(labels), dtype=torch.float64, device=device)
    for rows in torch.split(torch.arange(len(labels)), 1000):
        noise = torch.randn(len(rows), *data.shape, generator=generator).to(device) * free
        x = model.preprocess(floats(data.test.x[rows].to(device)))
        for i, std in enumerate(stds):
            predicted = model.link.predict(outputs_of(model.network, x + std * noise))
            correct[i, rows[0] : rows[-1] + 1] = (predicted == labels[rows[0] : rows[-1] + 1]).double()
    return correct


def _attacks(
    model: Classifier,
    data: Dataset,
    rows: Tensor,
    eps: Sequence[float],
    steps: int,
    seed: int,
    progress: Callable[[float], None],
) -> Json:
    """Robust accuracy at each radius: under PGD with each loss alone, and in the worst case over those and the suite."""
    device = next(model.parameters()).device
    coding = model.link if isinstance(model.link, Coding) else None
    x, y = floats(data.test.x[rows].to(device)), data.test.y[rows].to(device)
    names = ["ce", "margin"] + ["angle"] * (data.num_classes > 2) + ["residual"] * (coding is not None)
    lost = {name: torch.zeros(len(x), dtype=torch.bool, device=device) for name in [*names, WORST]}
    standing: dict[str, list[Tensor]] = {name: [] for name in lost}
    for place, radius in enumerate(sorted(eps)):  # what breaks a point breaks it at every larger radius
        for name in names:
            left = (~lost[name]).nonzero().squeeze(1)
            if len(left):
                attack = partial(pgd, model, x[left], y[left], radius, loss=name, steps=steps, coding=coding, seed=seed)
                lost[name][left] = _quietly(attack).broken
        lost[WORST] = torch.stack(list(lost.values())).any(0)
        left = (~lost[WORST]).nonzero().squeeze(1)
        if len(left):
            lost[WORST][left] = worst_case(model, x[left], y[left], radius, report=False, seed=seed).result.broken
        for name, broken in lost.items():
            standing[name].append((~broken).double())
        progress((place + 1) / len(eps))
    points = {f"robust_{radius:g}": values for radius, values in zip(sorted(eps), standing[WORST], strict=True)}
    robust = {name: [float(values.mean()) for values in kept] for name, kept in standing.items()}
    clean = float((model.link.predict(outputs_of(model.network, x, preprocess=model.preprocess)) == y).double().mean())
    return {
        **{name: float(values.mean()) for name, values in points.items()},
        "attacks": {"norm": "linf", "eps": sorted(eps), "points": len(x), "clean": clean, "robust": robust},
        "replicates": _replicates(points, seed),
    }


def _quietly(attack: Callable[[], AttackResult]) -> AttackResult:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the gradient was exactly zero")  # of one loss; the worst case has others
        return attack()


def _distances(model: Classifier, data: Dataset, rows: Tensor, seed: int) -> Json:
    """The decision margin of a table: the l_2 radius in standardised space at which half of the points are lost."""
    device = next(model.parameters()).device
    x, y = model.preprocess(data.test.x[rows].to(device)), data.test.y[rows].to(device)
    reach = distances(lambda z: model.link.scores(model.network(z)), x, y, free=varying(data).to(device)).cpu().double()
    levels = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    quantiles = rounded(torch.quantile(reach, levels, interpolation="lower"))
    return {
        "margin": float(reach.median()),
        "distances": {"norm": "l2", "points": len(reach), "radius": quantiles},
        "replicates": _replicates({"margin": reach}, seed, torch.median),
    }


def varying(data: Dataset) -> Tensor:
    """1 where noise and moves make sense, (D,) or (); all 1 if that is nowhere.

    In a table not in 0/1 columns, which are categories, nor in constant ones, of which training has shown the network nothing.
    """
    if data.kind == "image":
        return torch.ones(())
    x = data.train.x
    still = ((x == 0) | (x == 1)).all(0) | (x == x[0]).all(0)
    return torch.ones(len(still)) if bool(still.all()) else (~still).float()


def _replicates(points: dict[str, Tensor], seed: int, statistic: Callable[[Tensor], Tensor] = torch.mean) -> Json:
    """Bootstrap replicates of the mean of each row of values (N,), of draws that are the same for every loss."""
    generator, total = torch.Generator().manual_seed(seed), len(next(iter(points.values())))
    table = torch.stack([values.cpu() for values in points.values()])  # (M, N)
    drawn = (torch.randint(total, (total,), generator=generator) for _ in range(BOOTSTRAP))
    replicates = torch.stack([torch.stack([statistic(row[rows]) for row in table]) for rows in drawn], 1)  # (M, R)
    return {name: rounded(row) for name, row in zip(points, replicates, strict=True)}
