"""Which loss serves these data best? The same network trained with each, alike in everything else, and measured.

    squareloss compare digits --quick          about two minutes on 2 cores
    squareloss compare data.csv --target y     minutes on 2 cores for some thousand rows

A cell is a loss, a job a loss and a seed: it trains one network per learning rate of the grid, keeps the one with the best
validation accuracy (ties: lower NLL after a temperature), and measures that one on the test split. Within a seed all losses
have the same splits, initial weights, order of batches, noise and attacked points.
"""

from __future__ import annotations

import itertools
import shlex
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from squareloss.classifier import Standardize
from squareloss.lab.data import NAMES, Dataset
from squareloss.lab.report import header
from squareloss.lab.report.rows import REPLICATES
from squareloss.lab.runs import Cell, Context, Job, Result, Store
from squareloss.lab.studies.common import thinned
from squareloss.lab.studies.compare.ingredients import LOSSES, Source, build
from squareloss.lab.studies.compare.measure import measure, validation_score
from squareloss.lab.training import captured
from squareloss.lab.training.loop import Diverged, Epoch, Run, outputs_of
from squareloss.lab.training.recipes import Recipe

SIDE_BY_SIDE = 8  # runs that share a GPU


@dataclass
class Compare:
    """The study: what to train and what to measure. Plain values only, so that it can travel to workers.

    Arguments:
        source: the data; content is their fingerprint.
        losses: names in `LOSSES`, each trained once.
        network: spec of the network; see `ingredients.network_spec`.
        recipe: how to train; its learning rate is replaced by each of `lrs`.
        noise, eps, attacked, steps: see `measure`.
        together: train all losses of a seed side by side, on a GPU.
    """

    source: Source
    content: str
    losses: tuple[str, ...]
    network: dict[str, Any]
    recipe: Recipe
    lrs: tuple[float, ...]
    noise: tuple[float, ...]
    eps: tuple[float, ...]
    attacked: int
    steps: int = 20
    together: bool = False
    name: str = "compare"
    summary: str = "which loss serves these data best"
    cost: Mapping[str, str] = field(default_factory=lambda: {"laptop": "minutes", "paper": "minutes to hours"})

    def cells(self, scale: str) -> list[Cell]:
        """One per loss, whatever the scale."""
        recipe = {key: value for key, value in asdict(self.recipe).items() if key != "lr"}
        common = {
            "task": "compare",
            "data": {"content": self.content, "target": self.source.target, "size": self.source.size},
            "network": self.network,
            "recipe": recipe,
            "lrs": list(self.lrs),
            "measured": {"noise": self.noise, "eps": self.eps, "attacked": self.attacked, "steps": self.steps},
        }
        group, gpus = ("together", 1) if self.together else ("", 0)
        return [Cell(loss, {**common, "loss": loss}, group, gpus=gpus) for loss in self.losses]

    def run(self, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        """Train and measure; all losses of a seed side by side if there are several jobs and a GPU."""
        by_seed: dict[int, list[Job]] = defaultdict(list)
        for job in jobs:
            by_seed[job.seed].append(job)
        most = max(1, SIDE_BY_SIDE // len(self.lrs)) if context.device.startswith("cuda") else 1
        for seed, mine in by_seed.items():
            data = self.source.read(seed)
            for start in range(0, len(mine), most):
                yield from self._together(mine[start : start + most], data, context)

    def _together(self, jobs: Sequence[Job], data: Dataset, context: Context) -> Iterator[Result]:
        """Train the jobs side by side, then measure one after the other; the time of training is shared out evenly."""
        started = time.perf_counter()
        runs = {job: self._runs(job, data, context) for job in jobs}
        curves = captured.train([run for mine in runs.values() for run in mine], context.device)
        training = (time.perf_counter() - started) / len(jobs)
        for i, (job, mine) in enumerate(runs.items()):
            started = time.perf_counter()
            result = self._result(job, mine, curves[i * len(mine) : (i + 1) * len(mine)], data, context)
            yield replace(result, seconds=training + time.perf_counter() - started)

    def _runs(self, job: Job, data: Dataset, context: Context) -> list[Run]:
        """One run per learning rate, from the same initial weights."""
        done = itertools.count(1)

        def on_epoch(row: Epoch) -> None:
            context.report(job, next(done), 2 * self._epochs, loss=row.loss, accuracy=row.train_accuracy)

        return [
            Run(
                network=build(self.network, data.shape, data.num_classes, job.seed),
                loss=LOSSES[job.cell.spec["loss"]](data.num_classes),
                recipe=Recipe(**{**vars(self.recipe), "lr": lr}),
                seed=job.seed,
                x=data.train.x,
                y=data.train.y,
                preprocess=Standardize(data.mean, data.std),
                path=context.scratch(job) / f"lr{lr:g}.safetensors",
                on_epoch=on_epoch,
            )
            for lr in self.lrs
        ]

    @property
    def _epochs(self) -> int:
        """Of all learning rates; measuring is taken to last as long."""
        return len(self.lrs) * self.recipe.epochs

    def _result(
        self, job: Job, runs: Sequence[Run], curves: Sequence[list[Epoch] | Diverged], data: Dataset, context: Context
    ) -> Result:
        grid = [_validated(run, curve, data) for run, curve in zip(runs, curves, strict=True)]
        usable = [i for i, row in enumerate(grid) if row["accuracy"] is not None]
        if not usable:
            return Result(job, {"grid": grid}, "diverged")
        best = max(usable, key=lambda i: (grid[i]["accuracy"], -grid[i]["nll"]))
        curve = curves[best]
        assert not isinstance(curve, Diverged)
        found = measure(
            runs[best].network, runs[best].loss, data,
            noise=self.noise, eps=self.eps, attacked=self.attacked, steps=self.steps, seed=job.seed,
            progress=lambda share: context.report(job, (1 + share) * self._epochs, 2 * self._epochs),
        )  # fmt: skip
        replicates = found.pop("replicates")
        for suffix, reading in found["readings"].items():
            replicates |= {f"{key}{suffix}": values for key, values in reading.pop("replicates").items()}
        found |= {"lr": self.lrs[best], "grid": grid, "curve": thinned([asdict(row) for row in curve], most=60, digits=5)}
        return Result(job, found, artefacts={REPLICATES: {key: torch.tensor(values) for key, values in replicates.items()}})


def default_folder(study: Compare) -> Path:
    """Where results lie unless told otherwise: runs/compare-NAME, or runs/compare-NAME-2 if that has those of other data.

    Data are the same if their content is, or their path: a file that was edited stays where it was.
    """
    stem = Path(study.source.data).absolute().stem
    first = Path("runs", f"{study.name}-{stem}")
    if study.source.data in NAMES:
        return first
    others = (Path("runs", f"{study.name}-{stem}-{number}") for number in itertools.count(2))
    candidates = others if stem in NAMES else itertools.chain([first], others)  # digits.csv is not digits
    return next(folder for folder in candidates if not _has_other_data(folder, study))


def check_apart(study: Compare, folder: Path) -> None:
    """Raise if results would lie in the folder of the data, where the next start would take them for a class."""
    data = Path(study.source.data)
    if study.source.data not in NAMES and data.is_dir() and folder.resolve().is_relative_to(data.resolve()):
        raise ValueError(
            f"expected results outside of the data, got {folder} in {data.resolve()}; pass another --out, or start elsewhere"
        )


def _has_other_data(folder: Path, study: Compare) -> bool:
    if not folder.is_dir():
        return False
    store, path = Store(folder, create=False), Path(study.source.data).resolve()
    found = header.read(store, study.name)
    if not found or any(Path(word).resolve() == path for one in found for word in shlex.split(one.command)):
        return False
    return all(record.spec["data"]["content"] != study.content for record in store.records(study.name))


def _validated(run: Run, curve: list[Epoch] | Diverged, data: Dataset) -> dict[str, Any]:
    """How a learning rate did on the validation split; None where training or its outputs were not finite."""
    row: dict[str, Any] = {"lr": run.recipe.lr, "accuracy": None, "nll": None}
    if isinstance(curve, Diverged):
        return row
    outputs = outputs_of(run.network, data.validation.x, preprocess=run.preprocess)
    if outputs.isfinite().all():
        row["accuracy"], row["nll"] = validation_score(run.loss, outputs, data.validation.y.to(outputs.device))
    return row
