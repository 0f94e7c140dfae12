"""Replications of the paper's synthetic data: each with its own training, validation and test points.

A replication is the same whatever others are drawn with it, and on whatever device it is used: it comes from a CPU generator
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from squareloss.lab.data.synthetic import Sample, sine, spirals


class Splits(NamedTuple):
    """Samples of R replications: training, validation and test."""

    train: Sample
    validation: Sample
    test: Sample


def spirals_split(numbers: Sequence[int], n: int, held_out: int, seed: int = 0) -> Splits:
    """Replications of the spirals by their numbers: n training points, and so many for validation and for testing each."""
    return _joined([Splits(*(spirals(m // 2, 1, g) for m, g in _drawn(r, n, held_out, seed))) for r in numbers])


def sine_split(numbers: Sequence[int], n: int, held_out: int, reading: str, seed: int = 0) -> Splits:
    """Replications of the sine by their numbers; see `synthetic.sine_eta` for the reading."""
    return _joined([Splits(*(sine(m, 1, g, reading=reading) for m, g in _drawn(r, n, held_out, seed))) for r in numbers])


def network_seed(number: int, seed: int = 0) -> int:
    """The seed of a replication's initial weights, the same for every loss and penalty."""
    return 1_000_003 * seed + number


def _drawn(number: int, n: int, held_out: int, seed: int) -> list[tuple[int, torch.Generator]]:
    """How many points, and a generator, for each of the three: so a larger training set leaves the test points as they are."""
    base = 4 * network_seed(number, seed)
    return [(m, torch.Generator().manual_seed(base + i + 1)) for i, m in enumerate((n, held_out, held_out))]


def _joined(splits: Sequence[Splits]) -> Splits:
    def join(samples: Sequence[Sample]) -> Sample:
        return Sample(*(torch.cat(same) for same in zip(*samples, strict=True)))

    return Splits(*(join(same) for same in zip(*splits, strict=True)))
