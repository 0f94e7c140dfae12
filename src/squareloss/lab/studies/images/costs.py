"""About how long a network trains, and how long each measure of it takes: for the time left that is shown, not for results.

Seconds of an H200, of ResNet-18 on CIFAR-10 where it was measured (docs/images.md). What counts is how they compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squareloss.lab.report.views.image_cost import RELATIVE
from squareloss.lab.report.views.paper_images import LEVELS

_EPOCH = 1.22  # of 50,000 images at batch 32
_LARGE = 0.55  # of that at batch 128 and more
_ATTACK = {"train": 0.75, "eval": 0.6}  # of a training step: one of PGD in it, in a mode
# of 10,000 images, at three radii where there are any: of softmax, of codings
_MEASURES = {
    "clean": (2.0, 2.0),
    "readings": (1.0, 1.0),
    "beyond": (2.0, 2.0),
    "transfer": (6.0, 6.0),
    "worst": (11.0, 11.0),
    "pgd": (36.0, 96.0),
    "autoattack": (20.0, 60.0),
}


# the same of networks trained on adversarial examples, at one radius: there many images stand, and are attacked to the end
_ROBUST = {"worst": (16.0, 14.0), "pgd": (25.0, 36.0), "autoattack": (145.0, 165.0)}


def training(spec: Mapping[str, Any]) -> float:
    """Seconds to train the network of a cell's spec."""
    recipe = spec["recipe"]
    adversary = recipe["adversary"] or {"steps": 0}
    passes = 1 + _ATTACK[adversary.get("mode", "train")] * adversary["steps"]
    batches = _LARGE if recipe["batch_size"] >= 128 else 1.0
    share = spec["data"].get("train", 50_000) / 50_000
    return float(_EPOCH * recipe["epochs"] * share * passes * batches * _relative(spec)[0])


def measuring(spec: Mapping[str, Any]) -> float:
    """Seconds of the measure of a cell's spec, on a network that is there."""
    measure = spec["measure"]
    kind, robust = measure["kind"], spec["recipe"]["adversary"] and measure["kind"] in _ROBUST
    seconds = (_ROBUST if robust else _MEASURES)[kind]["radius" in spec["loss"] or spec["loss"]["name"] == "one_hot"]
    share = measure.get("points", spec["data"].get("test", 10_000)) / 10_000
    share *= len(measure.get("levels", LEVELS)) / (1 if robust else len(LEVELS))
    share *= measure["steps"] / 100 if kind == "pgd" else 1.0
    return float(seconds * share * _relative(spec)[1])


def trained_part(spec: Mapping[str, Any]) -> float:
    """Which part of a job that trains its network first is training."""
    return training(spec) / (training(spec) + measuring(spec))


def _relative(spec: Mapping[str, Any]) -> tuple[float, float]:
    name = spec["network"]["name"]
    return RELATIVE.get("wrn16_10" if name == "wide_resnet" else name, (1.0, 1.0))
