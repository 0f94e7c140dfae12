"""Tasks on a Ray cluster: each goes where its cores and GPUs are, and what it yields comes back to this process.

A task is a streaming generator, so that results and reports of progress come over one channel and need no helper actor that
could die with its node. Ray is told not to retry: a task may have yielded results already, and only the rest must be redone,
which the giver of the tasks does when it hears "lost".
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from squareloss.lab.runs.engines import LAST, Event, Task, Work, pickled, stream, unpickled

_STORE_BYTES = 256 << 20  # of shared memory for objects, when Ray is started here: results are small
_CONNECT = 10.0  # seconds for an address to answer
_PATIENCE = 30.0  # seconds without a free node before saying what is missing


class Ray:
    """Tasks on a Ray cluster.

    Arguments:
        work: what to do; it must survive pickling, and the nodes must have squareloss installed.
        on_event: called with every event.
        device: "cpu" asks for no GPU, "cuda" for one at least; None asks for what the task needs.
        workers: at most so many tasks at once. Default: four for each core of the cluster, 64 at least, so that a cluster that
            grows by demand sees the demand.
        address: of the cluster: "auto", "host:6379"; None takes it from RAY_ADDRESS, which is set inside a job that was
            submitted to a cluster, and else starts Ray on this machine alone, with `workers` cores.
    """

    def __init__(
        self, work: Work, on_event: Callable[[Event], None], device: str | None = None, workers: int | None = None,
        address: str | None = None,
    ) -> None:  # fmt: skip
        self.work, self.on_event, self.device, self.workers = work, on_event, device, workers
        self.address = address or os.environ.get("RAY_ADDRESS")
        self._running: dict[Any, Task] = {}
        self._news = time.monotonic()  # when something happened last
        self._connected = False

    def __enter__(self) -> Ray:
        self.ray = import_ray()
        work = pickled(self.work, self.ray.cloudpickle.dumps)  # which takes what a script or notebook defines as well
        if not self.ray.is_initialized():
            self._start()
        cores = int(self.ray.cluster_resources().get("CPU", 1))
        self.parallel = self.workers or max(1, cores)
        # a cluster started here has `workers` cores and limits itself; tasks that wait in line keep it busy
        started = self._connected and self.address is None
        self._limit = self.workers if self.workers and not started else max(64, 4 * cores)
        self._shared = self.ray.put((work, _own_paths()))
        self._remote = self.ray.remote(_generate)
        return self

    def _start(self) -> None:
        if self.address is not None:
            _check_address(self.address)
        quiet = {"configure_logging": False, "log_to_driver": False}
        try:
            if self.address is None:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody asked to send them anywhere
                self.ray.init(
                    num_cpus=self.workers, include_dashboard=False, object_store_memory=_STORE_BYTES, address="local", **quiet
                )
            else:
                self.ray.init(address=self.address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            place = "on this machine" if self.address is None else f"at {self.address!r}"
            raise OSError(f"could not reach Ray {place}: {error}; see docs/cluster.md for what a cluster needs") from error
        self._connected = True

    def __exit__(self, *_: object) -> None:
        for running in self._running:
            self.ray.cancel(running, force=True)  # its thread would go on
        self._running.clear()
        if self._connected:
            self.ray.shutdown()

    def free(self) -> bool:
        """Whether fewer tasks are with the cluster than may be."""
        return len(self._running) < self._limit

    def busy(self) -> bool:
        """Whether the cluster has tasks that have not ended."""
        return bool(self._running)

    def submit(self, task: Task) -> None:
        """Hand a task to the cluster, which starts it when its cores and GPUs are free."""
        task = replace(task, gpus=self._gpus(task))
        remote = self._remote.options(num_cpus=task.cpus, num_gpus=task.gpus, max_retries=0, num_returns="streaming")
        self._running[remote.remote(self._shared, task)] = task

    def _gpus(self, task: Task) -> float:
        return 0 if self.device == "cpu" else task.gpus or float(self.device is not None)

    def poll(self, timeout: float) -> None:
        """Hand on what the tasks say, and notice those that were lost with their node."""
        ready, _ = self.ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        if not ready:
            ready, _ = self.ray.wait(list(self._running), num_returns=1, timeout=timeout)
        for generator in ready:
            self._hear(generator)
        if ready:
            self._news = time.monotonic()
        elif time.monotonic() - self._news > _PATIENCE:
            self._complain()

    def _complain(self) -> None:
        """Say, once in a while, what is asked for if no node of the cluster would do."""
        self._news = time.monotonic()
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        for task in self._running.values():
            if not any(node.get("CPU", 0) >= task.cpus and node.get("GPU", 0) >= task.gpus for node in nodes):
                text = (
                    f"waiting for a node with {task.cpus:g} CPUs and {task.gpus:g} GPUs: none of the {len(nodes)} here has "
                    "them; add one, or ask for less (--device cpu)"
                )
                return self.on_event(Event(task.number, "noted", text))

    def _hear(self, generator: Any) -> None:
        task = self._running[generator]
        for kind, value in self._said(generator):
            if kind in LAST:
                del self._running[generator]
            self.on_event(Event(task.number, kind, value))

    def _said(self, generator: Any) -> list[tuple[str, Any]]:
        try:
            return self.ray.get(next(generator))  # type: ignore[no-any-return]
        except StopIteration:
            return [("lost", "it ended without a word")]
        except (self.ray.exceptions.RayTaskError, self.ray.exceptions.RuntimeEnvSetupError) as error:
            return [("failed", str(error))]
        except self.ray.exceptions.RayError as error:
            return [("lost", f"its node or process died ({type(error).__name__})")]


def _generate(shared: tuple[bytes, list[str]], task: Task) -> Iterator[list[tuple[str, Any]]]:
    """Runs on a node. The work is done in a thread, for what it reports must be yielded while it goes on."""
    work, paths = shared
    sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))
    device = "cuda" if task.gpus and torch.cuda.is_available() else "cpu"
    said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            torch.set_num_threads(max(1, int(task.cpus)))
            for kind, value in stream(unpickled(work), task, device, lambda value: said.put(("reported", value))):
                said.put((kind, value))
        except BaseException:  # such as SystemExit: it would end this thread alone, and the task would never end
            said.put(("failed", traceback.format_exc()))

    threading.Thread(target=run, daemon=True).start()
    news = [said.get()]
    while True:
        while not said.empty():  # what has gathered goes together
            news.append(said.get())
        yield news
        if news[-1][0] in LAST:
            return
        news = [said.get()]


def _own_paths() -> list[str]:
    """Where this process finds modules that are not installed, such as a user's own network; nodes look there too."""
    installed = tuple(os.path.join(prefix, "") for prefix in (sys.prefix, sys.base_prefix))
    return [os.path.abspath(path) for path in sys.path if not os.path.abspath(path).startswith(installed)]


def _check_address(address: str) -> None:
    """Raise at once if nobody answers: Ray itself would try for minutes."""
    if "://" in address:
        raise ValueError(
            f'expected the address of a cluster as "auto" or "host:6379", got {address!r}: clients get no results '
            "one by one; run the command on a node of the cluster, or submit it as a job (see docs/cluster.md)"
        )
    host, _, port = address.rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
        except OSError as error:
            raise OSError(
                f"could not reach a Ray cluster at {address!r}: {error.strerror or error}; start one with `ray start --head`, "
                "and see docs/cluster.md"
            ) from error


def import_ray() -> Any:
    """The ray package, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError('engine "ray" needs Ray; install it with: pip install "squareloss[ray]"') from error
    import ray.exceptions

    return ray
