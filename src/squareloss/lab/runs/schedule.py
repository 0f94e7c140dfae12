"""The schedule of one execution: which jobs are next, who has them, and what becomes of them."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten

from squareloss.lab.runs import facts
from squareloss.lab.runs.engines import Engine, Event, Report, Task
from squareloss.lab.runs.interrupts import whole
from squareloss.lab.runs.leases import Leases
from squareloss.lab.runs.live import Listener
from squareloss.lab.runs.store import Damaged, Store, encode
from squareloss.lab.runs.study import Context, Job, Result, Study

ATTEMPTS = 3  # of a job whose worker or node dies
_POLL = 0.5  # seconds
_WAIT = 1.0  # seconds between two looks at what other processes hold


@dataclass(frozen=True)
class Failure:
    """A job that failed: its error in a line, and the file with all of it."""

    job: Job
    error: str
    log: Path


@dataclass(frozen=True)
class StudyWork:
    """A study's `run` as work for an engine: of jobs, yielding results that can travel.

    `every` is the least number of seconds between two reports of a job, but for its last.
    """

    study: Study
    scratch: Path
    every: float = 0.0

    def __call__(self, jobs: Sequence[Job], device: str, report: Report) -> Iterator[Result]:
        """Yield the result of each job, with the time it took and the machine it ran on; raise unless each has just one."""
        missing, started = {job.key: job for job in jobs}, time.perf_counter()
        context = Context(device, self._root(), self._reporter(report))
        for result in self.study.run(jobs, context):
            if missing.pop(result.job.key, None) is None:
                raise RuntimeError(
                    f"{self.study.name}.run gave a result for {result.job.name}, which it had not to do, or twice"
                )
            took, started = time.perf_counter() - started, time.perf_counter()
            artefacts = {name: encode(name, content) for name, content in result.artefacts.items()}
            seconds = took if result.seconds is None else result.seconds
            yield replace(result, seconds=seconds, artefacts=artefacts, machine=result.machine or facts.machine(device))
        if missing:
            names = ", ".join(job.name for job in missing.values())
            raise RuntimeError(f"{self.study.name}.run ended without a result for {names}")

    def _reporter(self, report: Report) -> Callable[[Job, float, float, dict[str, float]], None]:
        last: dict[str, float] = {}

        def on_report(job: Job, step: float, total: float, values: dict[str, float]) -> None:
            now = time.monotonic()
            if step >= total or now - last.get(job.key, -math.inf) >= self.every:
                last[job.key] = now
                report((job, step, total, values))

        return on_report

    def _root(self) -> Path:
        """The folder for scratch; on a node of a cluster that does not share the results folder, one of its own."""
        return self.scratch if self.scratch.parent.is_dir() else Path(tempfile.gettempdir(), "squareloss-scratch")


@dataclass
class Schedule:
    """Which jobs are to do, which run, and how they ended. `plan`, then `run`."""

    study: Study
    store: Store
    listener: Listener
    force: bool = False
    todo: deque[list[Job]] = field(default_factory=deque)  # those of one list may run together
    waiting: list[Job] = field(default_factory=list)  # leased by another process
    running: dict[int, list[Job]] = field(default_factory=dict)  # by number of the task, those without a result yet
    failures: list[Failure] = field(default_factory=list)
    new: int = 0  # results written
    _lost: Counter[str] = field(default_factory=Counter)  # how often the worker of a job died, by its key
    _stamps: dict[str, tuple[int, int] | None] = field(default_factory=dict)  # under `force`, of the results before
    _tasks: int = 0  # given to the engine
    _said: bool = False  # that it waits for others

    def plan(self, jobs: Sequence[Job]) -> list[Job]:
        """Find what is to do. Results of equal cells of other studies are taken over."""
        self._stamps = {job.key: self._stamp(job) for job in jobs} if self.force else {}
        return [job for job in jobs if not self._settled(job)]

    def run(self, jobs: Sequence[Job], engine: Engine, leases: Leases) -> None:
        """Do the jobs that `plan` found, and wait for those that another process has."""
        self.engine, self.leases = engine, leases
        self.todo.extend(_batches(jobs, engine.parallel))
        looked = 0.0
        while self.todo or self.waiting or engine.busy():
            if self.waiting and time.monotonic() - looked > _WAIT:
                looked = time.monotonic()
                self.todo.extend([job] for job in self.waiting)
                self.waiting = []
            while self.todo and engine.free():
                with whole():
                    self._start(self.todo.popleft())
            if engine.busy():
                engine.poll(_POLL)
            elif self.waiting:
                self._wait()

    @whole()
    def on_event(self, event: Event) -> None:
        """Hear from the engine."""
        jobs = self.running[event.task]
        if event.kind == "started":
            for job in jobs:
                self.listener.started(job, event.value)
        elif event.kind == "reported":
            self.listener.reported(*event.value)
        elif event.kind == "noted":
            self.listener.note(event.value)
        elif event.kind == "yielded":
            self._finish(event.value)
            jobs[:] = [job for job in jobs if job.key != event.value.job.key]
        else:
            del self.running[event.task]
            self._end(jobs, event.kind, event.value)

    def _wait(self) -> None:
        """Nothing is left but what others have; say so once."""
        if not self._said:
            self._said, count = True, len(self.waiting)
            holder = self.leases.holder(self.waiting[0].key) or "another process"
            self.listener.note(f"waiting for {count} job{'s' * (count > 1)} that {holder} has")
        time.sleep(_WAIT)

    def _start(self, batch: list[Job]) -> None:
        jobs = [job for job in batch if self._claim(job)]
        if not jobs:
            return
        self._tasks += 1
        self.running[self._tasks] = list(jobs)
        cpus, gpus = max(job.cell.cpus for job in jobs), max(job.cell.gpus for job in jobs)
        self.engine.submit(Task(self._tasks, jobs, cpus, gpus))

    def _claim(self, job: Job) -> bool:
        """Whether the job is ours to do now."""
        if not self.leases.mine(job.key) and not self.leases.acquire(job.key):
            self.waiting.append(job)
            return False
        if self._settled(job, leased=True):  # by whoever held the lease before us
            self.leases.release(job.key)
            self.listener.finished(job, "done elsewhere")
            return False
        if self.force:  # a checkpoint of an earlier run is not to be gone on from
            shutil.rmtree(self.store.scratch / job.key, ignore_errors=True)
        return True

    def _settled(self, job: Job, leased: bool = False) -> bool:
        """Whether the job has a result: its own, or that of an equal cell of another study. Damaged files are set aside."""
        try:
            self.store.read(self.study.name, job)
        except FileNotFoundError:
            other = None if self.force else self.store.find_elsewhere(self.study.name, job)
            if other is not None:
                self.store.adopt(self.study.name, job, other)
            return other is not None
        except Damaged as error:
            if leased:  # or another process might be just replacing it
                self.listener.note(f"{error}; moved aside to {self.store.set_aside(self.study.name, job).name}, done again")
            return False
        return not self.force or self._stamp(job) != self._stamps[job.key]

    def _stamp(self, job: Job) -> tuple[int, int] | None:
        """Which version of a result is there: under `force`, only one that came after the plan counts."""
        try:
            found = self.store.path(self.study.name, job).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _finish(self, result: Result) -> None:
        if self.leases.mine(result.job.key) or not self._settled(result.job):
            self.store.write(self.study.name, result)
            self.new += 1
        self.leases.release(result.job.key)
        self.listener.finished(result.job, result.status)

    def _end(self, jobs: list[Job], kind: str, value: str | None) -> None:
        """What to do about jobs without a result when their task is over."""
        if kind == "lost":
            self._lost.update(job.key for job in jobs)
            for job in jobs:
                self.listener.lost(job, value or "")
        # one of a group may have taken the others down: alone, each shows what it does
        again = [job for job in jobs if self._lost[job.key] < ATTEMPTS and (kind == "lost" or len(jobs) > 1)]
        self.todo.extendleft([job] for job in reversed(again))
        for job in jobs:
            if job not in again:
                self._fail(job, value or "")

    def _fail(self, job: Job, text: str) -> None:
        tries = f" (tried {self._lost[job.key]} times)" if self._lost[job.key] else ""
        error = _named(text) + tries
        failure = Failure(job, error, self.store.write_log(self.study.name, job, f"{text}{tries}\n"))
        self.leases.release(job.key)
        self.failures.append(failure)
        self.listener.failed(job, error)


def _named(text: str) -> str:
    """The error of a traceback in a line: torch's go on over several, the last of which is advice."""
    lines = text.strip().splitlines() or ["no message"]
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    if not frames:
        return lines[-1]
    first = next((i for i in range(frames[-1], len(lines)) if lines[i][:1].strip()), len(lines) - 1)
    return shorten(" ".join(lines[first:]), max(300, len(lines[first]) + len(" ...")), placeholder=" ...")


def _batches(jobs: Sequence[Job], parallel: int) -> list[list[Job]]:
    """Jobs of one group together, the others alone; groups are split if there would be less to do than workers."""
    groups: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        groups[job.cell.group or f"/{job.key}"].append(job)
    parts = math.ceil(parallel / max(1, len(groups)))
    return [group[i::parts] for group in groups.values() for i in range(min(parts, len(group)))]
