"""From the options of `squareloss compare` to a study with every "auto" settled, and its header for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from squareloss._checks import whole
from squareloss.attacks._common import eps_text
from squareloss.lab.data import Dataset
from squareloss.lab.report.header import Column, Header
from squareloss.lab.runs.execute import settled_device
from squareloss.lab.runs.facts import command
from squareloss.lab.studies.compare.ingredients import (
    Source,
    check_network,
    fit_recipe,
    learning_rates,
    network_spec,
    noise_levels,
    radii,
    split_losses,
)
from squareloss.lab.studies.compare.study import Compare

# square loss with a temperature is among them: on easy data its own probabilities are too timid, which a temperature mends
DEFAULT_LOSSES = "ce,ce+temperature,simplex,simplex+temperature"
SEEDS, ATTACKED, STEPS = 5, 1000, 20  # unless quick
MANY, HUNDREDS = 100, 200  # classes: from the first on the simplex is not advised, to the second one_hot_15 is
_FITTED = {
    "temperature": "softmax(scores / T), T from validation",
    "asinh": "softmax(a asinh((scores - c) / w)), a, c and w from validation",
}


@dataclass(frozen=True)
class Plan:
    """A comparison with every "auto" settled: the study, its seeds, and its header for the report."""

    study: Compare
    seeds: range
    header: Header
    device: str


def plan(
    data: str = "digits",
    *,
    target: str | None = None,
    size: int | None = None,
    model: str = "auto",
    losses: str = DEFAULT_LOSSES,
    seeds: int | None = None,
    recipe: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    augment: bool | None = None,
    lrs: Sequence[float] | None = None,
    eps: Sequence[float] | None = None,
    attacked: int | None = None,
    device: str = "auto",
    quick: bool = False,
) -> Plan:
    """Read the data and settle what the options leave open. The arguments are the options of `squareloss compare`."""
    names = split_losses(losses)
    counts = {"seeds": seeds, "epochs": epochs, "batch-size": batch_size, "attacked": attacked, "size": size}
    for option, value in counts.items():
        if value is not None:
            whole(f"--{option}", value)
    device = settled_device(device)
    cuda = device == "cuda"
    seeds = (3 if quick else SEEDS) if seeds is None else seeds
    source = Source(data, target, size)
    sample = source.read(0)
    if eps and (sample.kind == "table" or max(eps) > 1):
        got = f"those of the table {sample.name!r}, whose margin needs none" if sample.kind == "table" else f"{max(eps):g}"
        raise ValueError(f"expected --eps for images in [0, 1], such as 2/255, got {got}")
    if augment and sample.kind == "table":
        raise ValueError(f"expected --augment for images, got it for the table {sample.name!r}; leave it out")
    settled = fit_recipe(recipe, sample, quick=quick, epochs=epochs, batch_size=batch_size, augment=augment, cuda=cuda)
    study = Compare(
        source=source,
        content=source.fingerprint(),
        losses=tuple(dict.fromkeys(name.partition("+")[0] for name in names)),
        network=network_spec(model, sample, quick=quick, cuda=cuda),
        recipe=settled,
        lrs=_positive("lrs", lrs or learning_rates(settled, quick)),
        noise=tuple(noise_levels(sample)),
        eps=_positive("eps", eps or radii(sample, quick)) if sample.kind == "image" else (),
        attacked=min(sample.test.n, attacked or (300 if quick else ATTACKED)),
        steps=10 if quick else STEPS,
        together=cuda,
    )  # fmt: skip
    cut = _cut(study, sample, range(seeds), model, recipe, cuda) if quick else []
    return Plan(study, range(seeds), _header(study, sample, names, range(seeds), cut), device)


def _positive(name: str, values: Sequence[float]) -> tuple[float, ...]:
    wrong = [value for value in values if not 0 < value < math.inf]
    if wrong:
        raise ValueError(f"expected --{name} to be numbers > 0, got {wrong[0]:g}")
    return tuple(sorted(set(values)))


def _header(study: Compare, data: Dataset, names: Sequence[str], seeds: range, cut: Sequence[str]) -> Header:
    redrawn = study.source.draws_test()
    return Header(
        study=study.name,
        title=f"Which loss for {data.name}?",
        command=command(),
        seeds=list(seeds),
        rows=list(names),
        hashes={cell.name: cell.hash() for cell in study.cells("laptop")},
        columns=columns(study, data),
        baseline=names[0],
        overlap=data.test.n / data.train.n if redrawn else 0.0,
        facts=_facts(study, data, names, seeds, redrawn),
        cut=cut,
        notes=(*data.notes, *_untested(data, redrawn), *_many_classes(data.num_classes, study.losses)),
    )


def _untested(data: Dataset, redrawn: bool) -> list[str]:
    """A note on the classes of which the test split has no sample, if there are any."""
    counts = [
        torch.bincount(split.y, minlength=data.num_classes).tolist() for split in (data.train, data.validation, data.test)
    ]
    found = [(name, sum(of)) for name, *of in zip(data.classes, *counts, strict=True) if not of[-1]]
    if not found:
        return []
    named = ", ".join(f"{name!r} ({total} in all)" for name, total in found[:3])
    named += f" and {len(found) - 3} more" if len(found) > 3 else ""
    some = " of the first seed" if redrawn and max(total for _, total in found) > 1 else ""
    return [f"no sample of {named} in the test split{some}: the measures do not say how such classes are told; add samples"]


def _many_classes(classes: int, losses: Sequence[str]) -> list[str]:
    """A note where the default coding is compared on more classes than it is for, and the better one is not."""
    better = "one_hot_15" if classes <= HUNDREDS else "scaled_one_hot"
    if classes < MANY or "simplex" not in losses or better in losses:
        return []
    return [
        f"with {classes} classes the simplex can fall far behind, and a temperature reads it badly: try "
        f"--losses ce,ce+asinh,{better},{better}+asinh (docs/many_classes.md)"
    ]


def columns(study: Compare, data: Dataset) -> list[Column]:
    """What is measured on such data."""
    found = [
        Column("accuracy", "accuracy", "higher", percent=True),
        Column("ece", "ECE", "lower", shared=False),
        Column("ece_clipped", "ECE of clipped eta", shared=False),
        Column("outside", "eta outside [0, 1]", percent=True, shared=False),
        Column("brier", "Brier score", "lower", shared=False),
        Column("nll_temperature", "NLL after temperature", "lower"),
    ]
    found += [Column(f"noise_{std:g}", f"accuracy under noise {std:g}", "higher", percent=True) for std in study.noise]
    if data.kind == "table":
        return [*found, Column("margin", "decision margin", "higher", digits=3)]
    return found + [Column(f"robust_{e:g}", f"robust accuracy at {eps_text(e)}", "higher", percent=True) for e in study.eps]


def _facts(study: Compare, data: Dataset, names: Sequence[str], seeds: range, redrawn: bool) -> list[tuple[str, str]]:
    recipe, shape = study.recipe, " x ".join(map(str, data.shape))
    name = study.network["name"]
    sizes = [str(study.network[key]).strip("[]") for key in ("width", "hidden") if key in study.network]
    parameters = check_network(study.network, data)
    attacks = (
        f"PGD-{study.steps} with each loss and the adaptive suite, l_inf, {study.attacked} test points"
        if study.eps
        else f"l_2 distance to the boundary in standardised space, {study.attacked} test points"
    )
    splits = f"{data.train.n} training, {data.validation.n} validation, {data.test.n} test samples; "
    training = f"{recipe.epochs} epoch{'s' * (recipe.epochs > 1)} of SGD, batch {recipe.batch_size}, momentum "
    training += f"{recipe.momentum:g}, weight decay {recipe.weight_decay:g}, {recipe.schedule} schedule"
    training += ", augmented" if recipe.augment else ""
    rates = ", ".join(f"{lr:g}" for lr in study.lrs)
    fitted = [f"with +{name} {how}" for name, how in _FITTED.items() if any(row.endswith(f"+{name}") for row in names)]
    return [
        ("data", f"{data.name}: {data.num_classes} classes, inputs {shape}"),
        ("splits", splits + ("drawn anew by each seed" if redrawn else "the test set is the data's own")),
        ("network", f"{name}{f' of width {sizes[0]}' if sizes else ''}, {parameters:,} parameters"),
        ("training", training),
        ("learning rate", f"of {rates}, the best on the validation split, for each loss and seed"),
        ("seeds", f"{len(seeds)}; each gives all losses the same splits, initial weights, batches, noise and attacked points"),
        ("probabilities", "; ".join(["softmax, or eta projected onto the simplex", *fitted])),
        ("ECE", "top label, 15 equal bins; that of clipped eta and the share outside [0, 1] beside it"),
        ("noise", "Gaussian, in standardised space"),
        ("attacks" if study.eps else "decision margin", attacks),
    ]


def _cut(study: Compare, data: Dataset, seeds: range, model: str, recipe: str | None, cuda: bool) -> list[str]:
    """What `quick` made less than it would be, one phrase each."""
    full = fit_recipe(recipe, data, cuda=cuda)
    pairs = [
        ("seeds", len(seeds), SEEDS),
        ("epochs", study.recipe.epochs, full.epochs),
        ("learning rates", len(study.lrs), len(learning_rates(full, quick=False))),
        ("attacked test points" if study.eps else "test points for the margin", study.attacked, min(data.test.n, ATTACKED)),
        ("radii", len(study.eps), len(radii(data, quick=False))),
        ("steps of PGD", study.steps if study.eps else 0, STEPS),
    ]
    cut = [f"{now} of {before} {what}" for what, now, before in pairs if 0 < now < before]
    if study.network != network_spec(model, data, cuda=cuda):
        cut.append(f"a smaller network ({study.network['name']})")
    return cut
