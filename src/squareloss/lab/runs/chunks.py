"""One evaluation split over an engine: the attacks on a large test set, chunk by chunk, on cores, GPUs or nodes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from squareloss.lab.runs.engines import Event, Report, Task, default_workers
from squareloss.lab.runs.execute import check_engine, make_engine
from squareloss.lab.runs.schedule import ATTEMPTS

C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True)
class _Call(Generic[C, R]):
    function: Callable[[C], R]

    def __call__(self, chunk: C, device: str, report: Report) -> Iterator[R]:
        yield self.function(chunk)


def map_chunks(
    function: Callable[[C], R], chunks: Sequence[C], engine: str = "local", *, workers: int | None = None,
    address: str | None = None, cpus: float = 1, gpus: float = 0, on_done: Callable[[int, int], None] | None = None,
) -> list[R]:  # fmt: skip
    """`[function(chunk) for chunk in chunks]`, in this process, a pool of processes, or on a Ray cluster.

        attack = functools.partial(attacked, classifier_folder)         # loads the classifier, attacks a slice of the test set
        parts = map_chunks(attack, [(0, 1000), (1000, 2000)], "ray", gpus=1)

    A chunk whose worker or node dies is done again; one that raises stops all, with its traceback in the message.

    Arguments:
        function: of one chunk; it and what it returns must survive pickling, unless the engine is "local".
        chunks: what to map over; results come in the same order.
        engine, workers, address: as in `execute`.
        cpus, gpus: what one chunk needs.
        on_done: called with the number of chunks done and of all, whenever one is done.
    """
    check_engine(engine, workers, address)
    results: dict[int, R] = {}
    todo, lost = deque(range(len(chunks))), Counter[int]()

    def on_event(event: Event) -> None:
        if event.kind == "yielded":
            results[event.task] = event.value
            if on_done is not None:
                on_done(len(results), len(chunks))
        elif event.kind == "lost" and event.task not in results and lost[event.task] < ATTEMPTS - 1:
            lost[event.task] += 1
            todo.append(event.task)
        elif event.kind in ("failed", "lost") and event.task not in results:
            raise RuntimeError(f"chunk {event.task} of {len(chunks)} failed: {event.value}")

    workers = workers or (default_workers(cpus, gpus) if engine == "processes" else None)
    work: Any = _Call(function)
    with make_engine(engine, work, on_event, workers, address, None) as made:
        while todo or made.busy():
            while todo and made.free():
                number = todo.popleft()
                made.submit(Task(number, chunks[number], cpus, gpus))
            made.poll(0.5)
    return [results[i] for i in range(len(chunks))]
