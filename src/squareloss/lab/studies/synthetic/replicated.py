"""Networks of many cells and replications trained as stacks: what the studies on synthetic data share.

A cell of such a study is one loss, one penalty mu and one reading of the paper; its replications are inside it. On a GPU all
cells of a group that have the same shape train together, split where the memory asks for it; on a CPU one cell after the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.data.replications import Splits, network_seed
from squareloss.lab.data.synthetic import Sample
from squareloss.lab.runs import Context, Job, Result
from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.synthetic.one_output import LOSSES, blended
from squareloss.lab.training import stacked
from squareloss.lab.training.stacked import Stack, forward

PENALTIES = ("sum", "mean")
OPTIONS = {
    "penalty": "sum or mean: mu |W|^2 beside the sum of the losses (the paper's text), or beside their mean",
    "lr": "RMSProp's learning rate; 0.001, or torch's default 0.01",
}
MOST = 10**9  # networks x points x width that train together on a GPU: 240 of the paper's sine networks, some 15 GB
WORTH = 8 * 10**11  # networks x points x width x steps from which compiling a step takes less time than it saves
DIGITS = 4  # significant ones of what is kept of each replication
_EVALUATED = 2 * 10**8  # networks x points x width that are evaluated at once

Draw = Callable[[Job], Splits]


def read_otherwise(penalty: str, lr: float) -> list[dict[str, Any]]:
    """What the paper leaves open, read otherwise, one change at a time: the other penalty, the other learning rate."""
    return [{"penalty": "sum" if penalty == "mean" else "mean"}, {"lr": 0.001 if lr == 0.01 else 0.01}]


@dataclass
class Trained:
    """The networks of one job, one per replication, with their data and training curve.

    Arguments:
        job: the job.
        parameters: weights and biases, (R, out, in) and (R, out).
        data: training, validation and test samples, on the device of the networks.
        steps: at which the curve was noted.
        losses, errors: training loss without penalty, and training error, (R,) for each of these steps.
        seconds: of training, the job's share.
    """

    job: Job
    parameters: list[Tensor]
    data: Splits
    steps: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    errors: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.parameters[0])

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """f (R, n) at points (R, n, 2), or at the same points (n, 2) for all; in float32, part by part."""
        x = x if x.ndim == 3 else x.expand(len(self), *x.shape)
        rows = max(1, _EVALUATED // (x.shape[1] * self.parameters[0].shape[1]))
        parts = [slice(i, i + rows) for i in range(0, len(self), rows)]
        return torch.cat([forward([p[part] for p in self.parameters], x[part]).squeeze(-1) for part in parts])

    def one(self, index: int) -> Callable[[Tensor], Tensor]:
        """One network as a function of points (m, 2)."""
        parameters = [p[index] for p in self.parameters]
        return lambda x: forward(parameters, x).squeeze(-1)

    def result(self, measured: Callable[[Trained], dict[str, Any]]) -> Result:
        """What the job ends in: what is measured of its networks, or "diverged" if outputs of one are not finite."""
        started = time.perf_counter()
        bad = (~self.outputs(self.data.test.x).isfinite()).any(-1)
        metrics = {"diverged": int(bad.sum())} if bad.any() else measured(self)
        status = "diverged" if bad.any() else "done"
        return Result(self.job, metrics, status, seconds=self.seconds + time.perf_counter() - started)

    def error(self, sample: Sample, outputs: Tensor | None = None) -> list[float]:
        """Share of a sample that is classified wrong, by replication."""
        f = self.outputs(sample.x) if outputs is None else outputs
        return rounded(((f > 0) != (sample.y > 0)).float().mean(-1), DIGITS)


def trained(jobs: Sequence[Job], context: Context, draw: Draw, *, products: str, every: int = 0) -> Iterator[Trained]:
    """Train the networks of jobs of equal shape; each job's in turn, ready to be measured.

    Arguments:
        jobs: with the spec's entries loss, mu, penalty, lr, n, width, steps and replications.
        context: device and progress.
        draw: the data of a job's replications.
        products: of training on a GPU, see `stacked.train`; all that is measured is float32.
        every: steps between two notes of the training curve; 0 for none.
    """
    for chunk in chunks(jobs, context.device):
        yield from _together(chunk, context, draw, products, every)
        if context.device.startswith("cuda"):
            torch.cuda.empty_cache()


def chunks(jobs: Sequence[Job], device: str) -> list[list[Job]]:
    """Jobs that train together: of one shape, on a GPU as few stacks as `MOST` allows, of even sizes; on a CPU each alone."""
    shapes: dict[tuple[int, ...], list[Job]] = {}
    for job in sorted(jobs, key=lambda job: (_shape(job), -_size(job))):  # a stable order, whatever was asked for
        shapes.setdefault(_shape(job), []).append(job)
    return [chunk for same in shapes.values() for chunk in (_even(same) if device.startswith("cuda") else [[j] for j in same])]


def _even(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs of one shape, the largest first, each put to the stack that has least: so stacks are alike, and compiled once."""
    found: list[list[Job]] = [[] for _ in range(math.ceil(sum(map(_size, jobs)) / MOST))]
    for job in jobs:
        min(found, key=lambda chunk: sum(map(_size, chunk))).append(job)
    return [chunk for chunk in found if chunk]


def _shape(job: Job) -> tuple[int, ...]:
    return tuple(job.cell.spec[key] for key in ("n", "width", "steps"))


def _size(job: Job) -> int:
    spec = job.cell.spec
    return int(spec["replications"] * spec["n"] * spec["width"])


def _worth(jobs: Sequence[Job]) -> bool:
    """Whether a stack is so much work that its step should be compiled."""
    return bool(sum(_size(job) * job.cell.spec["steps"] for job in jobs) >= WORTH)


def _together(jobs: Sequence[Job], context: Context, draw: Draw, products: str, every: int) -> Iterator[Trained]:
    started = time.perf_counter()
    spec = jobs[0].cell.spec
    data = [_on(draw(job), context.device) for job in jobs]
    numbers = [(job, r) for job in jobs for r in range(job.cell.spec["replications"])]
    stack = Stack((2, spec["width"], spec["width"], 1), [network_seed(r, j.seed) for j, r in numbers], device=context.device)
    x, y = (torch.cat([getattr(split.train, name) for split in data]) for name in ("x", "y"))
    weights = torch.tensor([LOSSES[job.cell.spec["loss"]] for job, _ in numbers], device=context.device)
    steps: list[int] = []
    curves: list[tuple[Tensor, Tensor]] = []

    def watch(step: int, stack: Stack) -> None:
        with torch.no_grad():
            f = stack(x)
            labels = y.to(f.dtype)
            wrong = (f.squeeze(-1) > 0) != (y > 0)
            curves.append((blended(f, labels, weights).mean(-1).cpu(), wrong.float().mean(-1).cpu()))
        steps.append(step)

    def progress(done: int) -> None:
        for job in jobs:
            context.report(job, done, spec["steps"])

    stacked.train(
        stack, x, y, torch.tensor([penalty(job.cell.spec) for job, _ in numbers]), blended, steps=spec["steps"],
        weights=weights, rates=torch.tensor([job.cell.spec["lr"] for job, _ in numbers]), every=every, watch=watch,
        progress=progress, fuse=_worth(jobs), products=products,
    )  # fmt: skip
    seconds = (time.perf_counter() - started) / len(numbers)
    first = 0
    for job, split in zip(jobs, data, strict=True):
        mine = slice(first, first := first + job.cell.spec["replications"])
        losses, errors = ([curve[i][mine] for curve in curves] for i in (0, 1))
        yield Trained(job, [p[mine] for p in stack.parameters], split, steps, losses, errors, seconds * len(split.train.x))


def penalty(spec: Mapping[str, Any]) -> float:
    """mu of mean loss + (mu / n) |W|^2: as it is where the paper's sum of losses is meant, times n where its mean is."""
    return float(spec["mu"] * (spec["n"] if spec["penalty"] == "mean" else 1))


def _on(split: Splits, device: str) -> Splits:
    return Splits(*(Sample(*(tensor.to(device) for tensor in sample)) for sample in split))
