"""A study of a theorem: cells from a function of the scale, numbers from a function of a cell's spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from squareloss.lab.runs import Cell, Context, Job, Result


@dataclass(frozen=True)
class Work:
    """What a measurement is given besides its spec.

    Arguments:
        seed: of the job.
        device: where to compute.
        progress: called with the part done, 0 to 1.
    """

    seed: int
    device: str
    progress: Callable[[float], None]

    def generator(self, *salt: int) -> torch.Generator:
        """A generator (on the CPU, so that all devices draw alike) for this seed and some numbers that set it apart."""
        return torch.Generator().manual_seed(seed_of(self.seed, *salt))


@dataclass(frozen=True)
class Theorem:
    """A study whose cells are points or settings of a rate.

    Arguments:
        name, summary, cost: see `lab.runs.Study`.
        specs: from a scale to the cells' specs by name.
        measure: from a spec to metrics: numbers, and lists over replications.
    """

    name: str
    summary: str
    cost: Mapping[str, str]
    specs: Callable[[str], Mapping[str, Mapping[str, Any]]]
    measure: Callable[[Mapping[str, Any], Work], Mapping[str, Any]]
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 1, "paper": 1}  # replications are inside a cell

    def cells(self, scale: str) -> list[Cell]:
        """One per spec; the large ones of the paper's scale ask for a GPU."""
        gpus = 1 if scale == "paper" else 0
        return [Cell(name, {"task": self.name, **spec}, gpus=gpus) for name, spec in self.specs(scale).items()]

    def run(self, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        """Measure job by job."""
        for job in jobs:
            work = Work(job.seed, context.device, lambda part, job=job: context.report(job, part, 1))  # type: ignore[misc]
            with torch.no_grad():
                yield Result(job, self.measure(job.cell.spec, work))


def seed_of(*numbers: int) -> int:
    """One seed from several numbers, far from that of any others."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def replications(count: int, n: int) -> int:
    """So many, but twenty at most beyond n = 10,000: factorising takes n^3 / 3 operations, and large samples differ less."""
    return count if n <= 10_000 else min(count, 20)


def parts(count: int, size: int, device: str) -> Iterator[slice]:
    """Slices of replications, so many at once that arrays of `size` numbers each fit: 64 MB on a CPU, 8 GB on a GPU."""
    step = max(1, (1 << 23 if device == "cpu" else 1 << 30) // size)
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))
