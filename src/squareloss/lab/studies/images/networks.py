"""Trained networks: each trained once, several side by side on a GPU, and kept in the scratch folder for every cell.

A network is known by everything that determines it but what is measured. Its folder holds the checkpoint of a training under
way, so that a stopped one goes on, and then the network itself, from which later cells measure without training again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squareloss._checkpoint import digest_of
from squareloss.attacks import EtaScores, Prepared
from squareloss.classifier import Classifier, Standardize
from squareloss.codings import Coding
from squareloss.lab.data import Dataset
from squareloss.lab.runs import Cell, Context, Job
from squareloss.lab.runs.leases import Leases
from squareloss.lab.studies.compare.ingredients import build
from squareloss.lab.studies.images.costs import training
from squareloss.lab.studies.images.data import read
from squareloss.lab.studies.images.plan import make_loss, make_recipe
from squareloss.lab.training import captured, checkpoint
from squareloss.lab.training.loop import Diverged, Epoch, Run, outputs_of
from squareloss.losses import Loss

OnEpoch = Callable[[Epoch], None]


class Wanted(Job):
    """A network that jobs ask for, itself told as a job: a cell whose spec is that of the network alone, and a seed."""

    def folder(self, context: Context) -> Path:
        """Where it is kept."""
        return context.root / "networks" / self.key


def wanted(job: Job) -> list[Wanted]:
    """The networks a job needs: the one it measures, and for transferred examples the one they are made on."""
    spec = dict(job.cell.spec)
    measure = spec.pop("measure")
    specs = [spec, {**spec, "loss": measure["source"]}] if "source" in measure else [spec]
    return [Wanted(Cell("network", own), job.seed) for own in specs]


@dataclass(frozen=True)
class Trained:
    """A network as measures see it.

    Arguments:
        network: outputs (N, width) of standardised images, in eval mode.
        model: the same with standardisation and link: scores (N, K) of images in [0, 1].
        loss, data: what it was trained with, and on.
        facts: curve, how many trained side by side, its share of them by what each is expected to cost, so much of the seconds
            of their steps, and of the wall time of the call that ended it ("wall", with compilation), and, if the loss was no
            longer finite, where: "diverged".
        mark: a hash of the weights, by which results show that they are of the same network.
    """

    network: nn.Module
    model: Classifier
    loss: Loss
    data: Dataset
    facts: Mapping[str, Any]
    mark: str

    @cached_property
    def eta(self) -> EtaScores:
        """The model of a coding with eta as its scores; always the same one, so that it is prepared for attacks once."""
        assert isinstance(self.loss.link, Coding)
        return EtaScores(self.model, self.loss.link).eval()


def shelf(context: Context, most: int = 4) -> Callable[[Wanted], tuple[Trained, Prepared]]:
    """A function that loads a network, with room for what attacks prepare of it, and keeps the last ones asked for.

    So one loading and one preparation serve all measures of a network.
    """
    return lru_cache(maxsize=most)(lambda one: (load(one, context), Prepared()))


def train(networks: Sequence[Wanted], context: Context, on_epoch: Callable[[Wanted], OnEpoch]) -> None:
    """Train those that are not there, side by side on a GPU, and keep them. Two processes never train the same one."""
    with Leases(context.root / "locks") as leases:
        for one in sorted(networks, key=lambda w: w.key):  # in one order everywhere, so that nobody waits in a circle
            while not leases.acquire(one.key):
                time.sleep(0.5)
        missing = [one for one in networks if not exists(one, context)]
        if not missing:
            return
        began, runs = time.perf_counter(), [_run(one, context, on_epoch(one)) for one in missing]
        outcomes = captured.train(runs, context.device)
        wall, costs = time.perf_counter() - began, [training(one.cell.spec) for one in missing]
        for one, run, outcome, cost in zip(missing, runs, outcomes, costs, strict=True):
            share = cost / sum(costs)
            _keep(one, run, outcome, {"side_by_side": len(runs), "share": share, "wall": share * wall}, context)


def load(one: Wanted, context: Context) -> Trained:
    """A network that was trained, on the device."""
    run = _run(one, context, None)
    tensors, facts = checkpoint.load(_path(one, context), run.fingerprint)
    run.network.load_state_dict(tensors)
    network = run.network.to(context.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    model = Classifier(network, run.loss.link, run.preprocess).to(context.device).eval()
    return Trained(network, model, run.loss.to(context.device), read(one.cell.spec["data"]), facts, digest_of(tensors)[:12])


def exists(one: Wanted, context: Context) -> bool:
    """Whether a network is there."""
    return _path(one, context).exists()


def forget(one: Wanted, context: Context) -> None:
    """Remove a network, to be trained anew."""
    shutil.rmtree(one.folder(context), ignore_errors=True)


def _run(one: Wanted, context: Context, on_epoch: OnEpoch | None) -> Run:
    spec = one.cell.spec
    data, recipe = read(spec["data"]), make_recipe(spec["recipe"])
    return Run(
        network=build(dict(spec["network"]), data.shape, data.num_classes, one.seed),
        loss=make_loss(spec["loss"]),
        recipe=recipe,
        seed=one.seed,
        x=data.train.x,
        y=data.train.y,
        preprocess=Standardize(data.mean, data.std),
        path=one.folder(context) / "training.safetensors",
        save_every=max(1, recipe.epochs // 20),
        on_epoch=on_epoch,
    )


def _keep(one: Wanted, run: Run, outcome: list[Epoch] | Diverged, how: dict[str, float], context: Context) -> None:
    """Write the network, then drop the checkpoint of its training."""
    curve = outcome.curve if isinstance(outcome, Diverged) else outcome
    lost = {key: getattr(outcome, key) for key in ("epoch", "step", "lr")} if isinstance(outcome, Diverged) else None
    if (
        lost is None
        and not outputs_of(run.network, read(one.cell.spec["data"]).test.x, preprocess=run.preprocess).isfinite().all()
    ):
        lost = {"epoch": len(curve), "step": 0, "lr": curve[-1].lr}  # in training by the batch's statistics, but not beyond it
    facts = {
        "fingerprint": run.fingerprint,
        "run": run.describe(),
        "curve": [asdict(row) for row in curve],
        "seconds": how["share"] * curve[-1].seconds if curve else 0.0,
        **how,
        "diverged": lost,
    }
    checkpoint.save(_path(one, context), run.network.state_dict(), facts)
    (one.folder(context) / "training.safetensors").unlink(missing_ok=True)


def _path(one: Wanted, context: Context) -> Path:
    return one.folder(context) / "network.safetensors"
