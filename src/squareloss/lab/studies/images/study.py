"""A study of image networks: lines of a table, each trained once and measured in several cells, from cheap to dear."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from squareloss.attacks import Prepared
from squareloss.codings import Coding
from squareloss.lab.report.header import Column
from squareloss.lab.report.views.paper_images import paper_cells
from squareloss.lab.runs import Cell, Context, Job, Result
from squareloss.lab.studies.common import Json
from squareloss.lab.studies.images import beyond, measures
from squareloss.lab.studies.images.costs import trained_part
from squareloss.lab.studies.images.measures import Notes
from squareloss.lab.studies.images.networks import OnEpoch, Trained, Wanted, exists, forget, shelf, train, wanted
from squareloss.lab.studies.images.plan import KINDS, SCALES, Line, cells_of, make_loss
from squareloss.lab.training.loop import Epoch

MEASURES: dict[str, Callable[..., Json]] = {
    "clean": measures.clean,
    "readings": measures.more_readings,
    "beyond": beyond.collapse_and_outside,
    "transfer": beyond.transfer,
    "worst": measures.under_worst_case,
    "pgd": measures.under_pgd,
    "autoattack": measures.under_autoattack,
}


@dataclass(frozen=True)
class ImageStudy:
    """Networks on images, and what is measured of them.

    Training is by far the dearest, so a network is trained once for all its cells, at most `together` side by side on a GPU,
    whole seeds first; then all of them are measured, the cheap measures first. Each result is written at once. A study that is
    stopped goes on in the middle of a training or of a measure, as long as the results folder has its scratch folder.

    Arguments:
        name, summary, cost, seeds, columns: see `Study` and `report.header.Header`.
        lines: of the table.
        readings: show probabilities after a temperature as rows of their own.
        recipe: "paper", "short" (the paper's schedule four times shorter) or "fast" (ours).
        together: how many networks share a GPU.
        attack: the mode of networks while their training images are attacked.
    """

    name: str
    summary: str
    lines: tuple[Line, ...]
    cost: Mapping[str, str]
    columns: Sequence[Column] = ()
    seeds: Mapping[str, int] = field(default_factory=lambda: {"smoke": 1, "laptop": 1, "paper": 5})
    readings: bool = False
    recipe: str = "paper"
    together: int = 4
    attack: str = "train"

    @property
    def options(self) -> Mapping[str, str]:
        """What can be set: fields, each with a help text."""
        attack = "train or eval: how a network is while its training images are attacked; eval takes less time"
        return {
            "recipe": "paper, short (its schedule four times shorter) or fast (ours: 48 epochs at batch 256)",
            "together": "networks that train side by side on a GPU",
            **({"attack": attack} if any(line.adversary for line in self.lines) else {}),
        }

    def cells(self, scale: str) -> list[Cell]:
        """Those of every line at that scale; lines that a recipe makes the same are there once."""
        kept = SCALES[scale].networks
        lines = [line for line in self.lines if not kept or line.network in kept]
        by_name = {line.name(self.recipe): line for line in reversed(lines)}
        return [cell for line in reversed(by_name.values()) for cell in cells_of(line, scale, self.recipe, self.attack)]

    def rows(self, scale: str) -> list[str]:
        """The rows of the report."""
        return [row for cell in self.cells(scale) for row in self._rows(cell)]

    def _rows(self, cell: Cell) -> tuple[str, ...]:
        """One, or one for each reading of probabilities that the cell has."""
        kind = cell.spec["measure"]["kind"]
        if kind == "readings":
            coded = isinstance(make_loss(cell.spec["loss"]).link, Coding)
            return tuple(f"{cell.name}+{way}" for way in ("asinh", "isotonic", *(["renormalised"] if coded else [])))
        return (cell.name, f"{cell.name}+temperature") if kind == "clean" and self.readings else (cell.name,)

    def paper(self, scale: str) -> Mapping[str, Mapping[str, Sequence[float | None]]]:
        """The paper's values, by cell; only under its own recipe are they to be compared."""
        return paper_cells() if scale == "paper" and self.recipe == "paper" else {}

    def run(self, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        """Train what the jobs need, then measure, chunk by chunk."""
        jobs = sorted(jobs, key=lambda job: job.seed)  # stable: whole seeds first, lines in their order
        needed = {one.key: one for job in jobs for one in wanted(job)}
        for job in jobs:
            if _kind(job) == "clean" and _measured(job, context).exists():
                forget(wanted(job)[0], context)  # it is to be done again, from the start
        ready, take = set[str](), shelf(context)
        for chunk in self._chunks(list(needed.values()), context):
            trains = {_first(jobs, one).key for one in chunk if not exists(one, context)}
            train(chunk, context, partial(_reporter, jobs, context))
            ready |= {one.key for one in chunk}
            now = [job for job in jobs if ready.issuperset(one.key for one in wanted(job))]
            jobs = [job for job in jobs if job not in now]
            for job in sorted(now, key=lambda job: KINDS.index(_kind(job))):
                yield _measure(job, context, take, trains=job.key in trains)
                if _kind(job) == "clean":
                    _measured(job, context).touch()

    def _chunks(self, networks: Sequence[Wanted], context: Context) -> list[Sequence[Wanted]]:
        """Those that are there, then the others, as many at a time as train side by side."""
        most = self.together if context.device.startswith("cuda") else 1
        there = [one for one in networks if exists(one, context)]
        missing = [one for one in networks if one not in there]
        chunks: list[Sequence[Wanted]] = [missing[i : i + most] for i in range(0, len(missing), most)]
        return [there, *chunks] if there else chunks


def _kind(job: Job) -> str:
    """Which measure a job is: one of `KINDS`."""
    return str(job.cell.spec["measure"]["kind"])


def _measured(job: Job, context: Context) -> Path:
    """A file that tells that the first measure of a network is done."""
    return wanted(job)[0].folder(context) / "measured"


def _first(jobs: Sequence[Job], one: Wanted) -> Job:
    """The first job that waits for a network: its training is a part of that job."""
    return next(job for job in jobs if one.key in [w.key for w in wanted(job)])


def _reporter(jobs: Sequence[Job], context: Context, one: Wanted) -> OnEpoch:
    """Progress of a training goes to the first job that waits for it."""
    job = _first(jobs, one)
    total = math.ceil(one.cell.spec["recipe"]["epochs"] / trained_part(job.cell.spec))

    def on_epoch(row: Epoch) -> None:
        context.report(job, row.epoch + 1, total, loss=row.loss, accuracy=row.train_accuracy)

    return on_epoch


def _measure(job: Job, context: Context, take: Callable[[Wanted], tuple[Trained, Prepared]], trains: bool) -> Result:
    """One job on a network that is there; `trains` if its training was a part of the job."""
    settings, taken = job.cell.spec["measure"], [take(one) for one in wanted(job)]
    nets, (_, prepared) = [net for net, _ in taken], taken[0]
    kind, began = _kind(job), time.perf_counter()
    trained = sum(net.facts["seconds"] for net in nets) if kind == "clean" else 0.0
    lost = next((net for net in nets if net.facts["diverged"]), None)
    if lost is not None:
        return Result(job, {"diverged": lost.facts["diverged"], "weights": lost.mark}, "diverged", seconds=trained)
    begun = trained_part(job.cell.spec) if trains else 0.0
    notes = Notes(context.scratch(job), lambda share: context.report(job, begun + (1 - begun) * share, 1.0))
    with prepared:
        found = MEASURES[kind](*nets, settings, job.seed, notes) | {"weights": nets[0].mark}
    return Result(job, found, seconds=trained + time.perf_counter() - began)
