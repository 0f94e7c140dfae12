"""Where tasks run: in this process, in a pool of processes, or on a Ray cluster (`ray_engine`).

An engine knows nothing of studies. It gets a piece of work, a generator function of a payload, and tasks to do with it; it
tells what happens through one callback: that a task has started, what it yields, how far it is, and how it ends. What to do
about a task that fails or is lost with its worker is decided by whoever gave it.
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import torch

from squareloss.lab.plain import plain_warnings
from squareloss.lab.runs import facts

Report = Callable[[Any], None]
Work = Callable[[Any, str, Report], Iterator[Any]]  # payload, device, report -> what it yields
_GRACE = 10.0  # seconds a worker has to save a checkpoint when it is told to stop


@dataclass(frozen=True)
class Task:
    """One call of the work, with what it needs."""

    number: int
    payload: Any
    cpus: float = 1
    gpus: float = 0


class Event(NamedTuple):
    """What happened to a task.

    kind and value: "started" and where; "yielded" and what; "reported" and what; "noted" and a sentence; and at last one of
    "ended" and None, "failed" and the traceback, "lost" and the reason: its worker died.
    """

    task: int
    kind: str
    value: Any


LAST = ("ended", "failed", "lost")


class Engine(Protocol):
    """A context manager; leaving it stops what still runs."""

    parallel: int  # how many tasks it can use at once, to split groups by

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...

    def free(self) -> bool:
        """Whether it takes another task now."""

    def busy(self) -> bool:
        """Whether it has tasks that have not ended."""

    def submit(self, task: Task) -> None:
        """Take a task."""

    def poll(self, timeout: float) -> None:
        """Wait for news, at most `timeout` seconds, and call back with them."""


def stream(work: Work, task: Task, device: str, report: Report) -> Iterator[tuple[str, Any]]:
    """Do a task, and say what happens: kind and value of each event but reports."""
    yield "started", platform.node()
    try:
        for value in work(task.payload, device, report):
            yield "yielded", value
    except Exception:
        yield "failed", traceback.format_exc()
    else:
        yield "ended", None


class Local:
    """Tasks run one after the other, in this process and thread."""

    parallel = 1

    def __init__(self, work: Work, on_event: Callable[[Event], None], device: str | None = None) -> None:
        self.work, self.on_event, self.device = work, on_event, device
        self._task: Task | None = None

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def free(self) -> bool:
        """Whether no task waits."""
        return self._task is None

    def busy(self) -> bool:
        """Whether a task waits."""
        return self._task is not None

    def submit(self, task: Task) -> None:
        """Keep a task for the next `poll`."""
        self._task = task

    def poll(self, timeout: float) -> None:
        """Do the task, however long it takes."""
        task, self._task = self._task, None
        if task is None:
            return

        def tell(kind: str, value: Any) -> None:
            self.on_event(Event(task.number, kind, value))

        device = self.device or ("cuda" if task.gpus and torch.cuda.is_available() else "cpu")
        # errors of the callback, such as a full disk, are none of the task's: they pass
        for kind, value in stream(self.work, task, device, lambda value: tell("reported", value)):
            tell(kind, value)


class Processes:
    """A pool of worker processes, started as they are needed. One that dies, however it dies, is replaced.

    Arguments:
        work: what to do; it must survive pickling.
        on_event: called with every event.
        device: "cpu" or "cuda" for all (GPUs are dealt out to the workers); None gives a GPU, if there is any, to a task that
            asks for one.
        workers: at most so many at once.
    """

    def __init__(self, work: Work, on_event: Callable[[Event], None], device: str | None, workers: int) -> None:
        self.on_event, self.device, self.parallel = on_event, device, workers
        self._work = pickled(work)
        self._workers: dict[int, _Worker] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.stop()
        deadline = time.monotonic() + _GRACE
        for worker in self._workers.values():
            worker.end(deadline)
        self._workers.clear()

    def free(self) -> bool:
        """Whether a worker is idle or may be started."""
        return len(self._workers) < self.parallel or any(w.task is None for w in self._workers.values())

    def busy(self) -> bool:
        """Whether a worker has a task."""
        return any(w.task is not None for w in self._workers.values())

    def submit(self, task: Task) -> None:
        """Give a task to an idle worker, or to a new one."""
        idle = next((w for w in self._workers.values() if w.task is None and w.process.is_alive()), None)
        if idle is None:
            number = next(i for i in range(len(self._workers) + 1) if i not in self._workers)
            idle = self._workers[number] = _Worker(self._work, number, self.device)
        idle.give(task)

    def poll(self, timeout: float) -> None:
        """Hand on what the workers say, and notice those that died."""
        ears: dict[Any, int] = {w.pipe: number for number, w in self._workers.items()}
        ends: dict[Any, int] = {w.process.sentinel: number for number, w in self._workers.items()}
        for ready in connection.wait([*ears, *ends], timeout):
            number = ears[ready] if ready in ears else ends[ready]
            if number in self._workers:
                self._hear(number, died=ready in ends)

    def _hear(self, number: int, died: bool) -> None:
        worker = self._workers[number]
        task = worker.task
        for kind, value in worker.messages():
            worker.begun = True
            if task is not None:
                worker.task = None if kind in LAST else task
                self.on_event(Event(task.number, kind, value))
        if died or worker.closed:
            worker.end(time.monotonic() + 1)
            del self._workers[number]
            if worker.task is not None:
                self.on_event(Event(worker.task.number, "lost", _how(worker.process.exitcode)))


class _Worker:
    """A process, a pipe to it, and the task it has."""

    def __init__(self, work: bytes, number: int, device: str | None) -> None:
        context = get_context("spawn")  # forking a process that has used torch's threads, or CUDA, may hang it
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, work, number, device), daemon=True)
        with _deaf():
            self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.begun = self.closed = False

    def give(self, task: Task) -> None:
        self.task = task
        with suppress(BrokenPipeError):  # it died just now: its sentinel tells
            self.pipe.send_bytes(pickle.dumps(task))

    def messages(self) -> Iterator[tuple[str, Any]]:
        try:
            while self.pipe.poll():
                yield pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.closed = True

    def stop(self) -> None:
        if self.task is not None and self.process.is_alive():
            if self.begun and os.name == "posix":
                os.kill(self.process.pid or 0, signal.SIGINT)  # as Ctrl-C does: a training loop saves its checkpoint and stops
            else:
                self.process.kill()
        self.pipe.close()  # after the signal: a worker whose pipe is closed leaves, and would hear it on its way out

    def end(self, deadline: float) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _deaf() -> Iterator[None]:
    """Within it Ctrl-C waits; processes that are started here are deaf to it until they say otherwise."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would end it
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _serve(pipe: Connection, work: bytes, number: int, device: str | None) -> None:
    """What a worker process does: tasks, until the pipe closes."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # Ctrl-C in a terminal goes to the parent alone, which tells its workers once
    # by SIGINT, to which they were deaf while they started, and which a parent in the background ignores, and so would they
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    plain_warnings()  # as the command line's own, among whose lines these come

    def send(kind: str, value: Any) -> None:
        pipe.send_bytes(pickle.dumps((kind, value)))

    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            task: Task = pickle.loads(pipe.recv_bytes())
            torch.set_num_threads(max(1, int(task.cpus)))
            for kind, value in stream(
                unpickled(work), task, _device(task, device, number), lambda value: send("reported", value)
            ):
                send(kind, value)


def unpickled(blob: bytes) -> Work:
    """The work; one that can't be read here, say for a module that is missing, fails when called, so that its task says why."""

    def work(payload: Any, device: str, report: Report) -> Iterator[Any]:
        return pickle.loads(blob)(payload, device, report)  # type: ignore[no-any-return]

    return work


def pickled(work: Work, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """The work as bytes that travel."""
    try:
        return dumps(work)
    except Exception as error:
        raise TypeError(
            f"expected work that can be sent to another process, got {work!r}, which can't be pickled ({error}); "
            'define it at the top of a module, or use engine="local"'
        ) from error


def _device(task: Task, device: str | None, number: int) -> str:
    """The device of a worker: the one that is asked for, or its share of the GPUs there are."""
    if device not in (None, "cuda"):
        return device or "cpu"
    count = torch.cuda.device_count() if task.gpus or device == "cuda" else 0
    return f"cuda:{number % count}" if count else device or "cpu"


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        hint = ": perhaps the system ran out of memory" if -code == signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(-code).name}{hint}"
    return f"its process ended with status {code}"


def default_workers(cpus: float, gpus: float, device: str | None = None) -> int:
    """How many tasks of so many cores, or parts of a GPU, this machine can do at once."""
    count = torch.cuda.device_count() if gpus and device != "cpu" else 0
    return max(1, int(count / gpus) if count else int(facts.cores() / max(1.0, cpus)))
