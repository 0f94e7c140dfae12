"""What image networks and their measures cost, and what the whole of Table 1 comes to."""

from __future__ import annotations

from collections.abc import Sequence

from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views.image_rows import Net, label
from squareloss.lab.report.views.paper_images import REPLICATIONS, TABLE_1

KINDS = {"clean": "accuracy, calibration, noise", "worst": "worst case", "pgd": "PGD", "autoattack": "AutoAttack"}
# seconds of training and of measuring, in those of ResNet-18: docs/images.md says what they rest on
RELATIVE = {"resnet18": (1.0, 1.0), "wrn16_10": (2.2, 3.9), "resnet50": (3.3, 2.0)}


def cost(found: Sequence[Net]) -> Table:
    """GPU seconds of a network and of its measures, and what Table 1 comes to with five seeds."""
    rows = []
    for net in found:
        parts = [_training(net), *(_measuring(net, kind) for kind in KINDS)]
        if any(part is not None for part in parts):
            who = (*label(net.line), net.trained)
            spent = [Entry.number(p, ".0f") for p in (*parts, sum(part or 0.0 for part in parts))]
            rows.append([*(Entry.words(word) for word in who), *spent])
    names = ["data", "network", "loss", "trained", "training", *KINDS.values(), "all"]
    caption = (
        "Seconds of one network, the least over its seeds, since whatever else the chip has to do only adds; "
        "training is a share of that of those side by side."
    )
    return Table("Cost", names, rows, " ".join([caption, *_projected(found)]))


def _projected(found: Sequence[Net]) -> list[str]:
    """Hours for Table 1 with five seeds: of the networks measured so far, and of all of them by operations."""
    complete = {net.line: net for net in found if net.full and net.line in TABLE_1 and _complete(net)}
    if not complete:
        return []
    known = REPLICATIONS * sum(_total(net) for net in complete.values()) / 3600
    if len(complete) == len(TABLE_1):
        return [f"Table 1 with five seeds, measures included: {known:.1f} hours."]
    told = f"Table 1 with five seeds, measures included: {known:.1f} hours for {len(complete)} of its {len(TABLE_1)} networks"
    basis = {net.loss: net for net in complete.values() if net.line.startswith("resnet18-cifar10-")}
    if not {"CE", "SL"} <= set(basis):
        return [told + "; the others are not complete yet."]
    rest = sum(_like(basis[line.split("-")[2]], line) for line in TABLE_1 if line not in complete)
    hours = known + REPLICATIONS * rest / 3600
    return [f"{told}; about {hours:.1f} for all, if the others cost what docs/images.md expects beside these."]


def _like(net: Net, line: str) -> float:
    """Seconds of another line, from those of ResNet-18 with the same loss."""
    training, measuring = RELATIVE[line.split("-")[0]]
    trained = _training(net) or 0.0
    return training * trained + measuring * (_total(net) - trained)


def _complete(net: Net) -> bool:
    return _training(net) is not None and all(_measuring(net, kind) is not None for kind in KINDS)


def _total(net: Net) -> float:
    return (_training(net) or 0.0) + sum(_measuring(net, kind) or 0.0 for kind in KINDS)


def _training(net: Net) -> float | None:
    """Seconds, the least over seeds."""
    return min(_trainings(net).values(), default=None)


def _measuring(net: Net, kind: str) -> float | None:
    """Seconds, the least over seeds; those of "clean" without the training that its job includes."""
    spent, trained = net.seconds.get(kind, {}), _trainings(net) if kind == "clean" else {}
    return min((seconds - trained.get(seed, 0.0) for seed, seconds in spent.items()), default=None)


def _trainings(net: Net) -> dict[int, float]:
    clean = {seed: metrics.get("timings", {}).get("clean", {}) for seed, metrics in net.metrics.items()}
    return {seed: spent["training"] for seed, spent in clean.items() if "training" in spent}
