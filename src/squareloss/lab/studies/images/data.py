"""The data of the image studies: CIFAR in whole, a part of it for a laptop, or a stand-in where there is none."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import interpolate

from squareloss.lab.data import Dataset, load
from squareloss.lab.data.dataset import Split, SplitPlan, assemble, drawn, take


def read(spec: Mapping[str, Any]) -> Dataset:
    """The data of a spec: {"name": "cifar10"}, with "train" and "test" for so many of its images, or a stand-in.

    The last ones read are kept, and are the same objects, so that networks can train on them side by side.
    """
    return _read(json.dumps(spec, sort_keys=True))


@functools.lru_cache(maxsize=2)
def _read(text: str) -> Dataset:
    spec = json.loads(text)
    if spec["name"] == "stand-in":
        return stand_in(spec["classes"], spec["train"], spec["test"], spec["seed"])
    whole = load(spec["name"])
    if "train" not in spec:
        return whole
    train, test = (take(split, drawn(split.n, spec[part])) for part, split in (("train", whole.train), ("test", whole.test)))
    return assemble(whole.name, "image", whole.classes, SplitPlan(0.0), train, test=test)


def stand_in(classes: int, train: int, test: int, seed: int) -> Dataset:
    """Images (n, 3, 32, 32) of smooth patterns, one per class, at a random contrast, with noise: made, not downloaded."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(classes, 3, 4, 4, generator=generator)
    coarse = coarse + coarse.flip(3)  # a flipped image keeps its class
    patterns = interpolate(coarse, size=(32, 32), mode="bilinear", align_corners=False)
    splits = []
    for count in (train, test):
        y = torch.arange(count) % classes
        contrast = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=generator)
        x = 128 + 30 * contrast * patterns[y] + 20 * torch.randn(count, 3, 32, 32, generator=generator)
        splits.append(Split(x.round().clamp(0, 255).to(torch.uint8), y))
    names = [f"pattern{k}" for k in range(classes)]
    return assemble("stand-in", "image", names, SplitPlan(0.0), splits[0], test=splits[1])
