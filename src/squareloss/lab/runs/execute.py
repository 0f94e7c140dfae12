"""From a study to results: what is done is skipped, the rest is leased, run on an engine, and written by this process alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from squareloss._checks import choose
from squareloss.lab.runs.engines import Engine, Event, Local, Processes, Work, default_workers
from squareloss.lab.runs.interrupts import sigterm_as_interrupt
from squareloss.lab.runs.leases import Leases
from squareloss.lab.runs.live import Listener
from squareloss.lab.runs.ray_engine import Ray
from squareloss.lab.runs.schedule import Failure, Schedule, StudyWork
from squareloss.lab.runs.store import Record, Store
from squareloss.lab.runs.study import Study, expand

ENGINES = ("local", "processes", "ray")
_SHOWN = 10  # errors in a message
_REPORT_EVERY = 0.25  # seconds between two reports of a job that travel from another process


@dataclass(frozen=True)
class Outcome:
    """What became of a study's jobs: the records there are now, how many of them are new, and the jobs that failed."""

    records: list[Record]
    new: int
    failures: list[Failure]

    def message(self) -> str:
        """The errors, one line for all jobs with the same one, and how many more there are; nothing if there are none."""
        alike: dict[str, list[Failure]] = {}
        for failure in self.failures:
            alike.setdefault(failure.error, []).append(failure)
        lines = [
            f"{same[0].job.name}{f' and {len(same) - 1} more' if len(same) > 1 else ''} failed: {error} (see {same[0].log})"
            for error, same in list(alike.items())[:_SHOWN]
        ]
        more = sum(len(same) for same in list(alike.values())[_SHOWN:])
        return "\n".join([*lines, f"and {more} more failed"] if more > 0 else lines)


def execute(
    study: Study, scale: str, seeds: Sequence[int], store: Store | str | Path, engine: str = "local", *, force: bool = False,
    workers: int | None = None, address: str | None = None, device: str | None = None, progress: Listener | None = None,
) -> Outcome:  # fmt: skip
    """Run a study: every cell with every seed, but for those whose result is in the folder.

    Start it again after it was stopped, in whatever way, and it goes on; start it twice at once on one folder, here or on
    another machine, and the two share the work. A job that raises is noted and the others go on. Ctrl-C, and SIGTERM, leave
    what is finished and raise KeyboardInterrupt.

    Arguments:
        study: the study; one whose result for an equal cell lies under another study in the same folder takes it from there.
        scale: "smoke", "laptop" or "paper".
        seeds: the seeds each cell is run with.
        store: the results folder.
        engine: "local" (this process), "processes" (a pool) or "ray" (a cluster).
        force: do all again.
        workers: how many tasks at once. Default: as many as the machine or the cluster has cores, or GPUs, for.
        address: of a Ray cluster; None starts one on this machine.
        device: "cpu" or "cuda" for all jobs; None goes by what each cell asks for.
        progress: told what happens: `live.watch()`; None is quiet.
    """
    check_engine(engine, workers, address)
    store = store if isinstance(store, Store) else Store(store)
    listener, jobs = progress or Listener(), expand(study, scale, seeds)
    schedule = Schedule(study, store, listener, force)
    with listener:
        todo = schedule.plan(jobs)
        listener.began(study.name, len(jobs), todo)
        if todo:
            store.check_writable()
            workers = workers or (default_workers(*_needs(study, scale), device) if engine == "processes" else None)
            work = StudyWork(study, store.scratch, every=0.0 if engine == "local" else _REPORT_EVERY)
            made = make_engine(engine, work, schedule.on_event, workers, address, device)
            with sigterm_as_interrupt(), Leases(store.folder / ".leases") as leases, made:
                schedule.run(todo, made, leases)
    return Outcome([store.read(study.name, j) for j in jobs if store.done(study.name, j)], schedule.new, schedule.failures)


def check_engine(name: str, workers: int | None, address: str | None) -> None:
    """Raise unless the options of an engine go together."""
    choose("engine", name, ENGINES)
    if address is not None and name != "ray":
        raise ValueError(f'expected an address with engine "ray" only, got {address!r} with engine {name!r}')
    if workers is not None and workers < 1:
        raise ValueError(f"expected one worker or more, got {workers}")


def check_device(name: str, *, elsewhere: bool = False) -> None:
    """Raise unless the device is known and, if the jobs do not run elsewhere, there."""
    choose("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not elsewhere and not torch.cuda.is_available():
        raise ValueError("expected a device that is there, got cuda where torch finds no GPU; use --device cpu")


def settled_device(name: str) -> str:
    """ "cpu" or "cuda": the one that is asked for, or by "auto" the best there is; raises if it is not here."""
    check_device(name)
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def make_engine(
    name: str, work: Work, on_event: Callable[[Event], None], workers: int | None, address: str | None, device: str | None
) -> Engine:  # fmt: skip
    """The engine of a name."""
    if name == "local":
        return Local(work, on_event, device)
    return Ray(work, on_event, device, workers, address) if name == "ray" else Processes(work, on_event, device, workers or 1)


def _needs(study: Study, scale: str) -> tuple[float, float]:
    cells = study.cells(scale)
    return max(cell.cpus for cell in cells), max(cell.gpus for cell in cells)
