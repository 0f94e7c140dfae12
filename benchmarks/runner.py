"""What the runner costs: 1,000 cells that do nothing, in this process, in a pool of 2 processes, on Ray with 2 workers.

    python benchmarks/runner.py --rounds 3      about five minutes on 2 cores

The seconds hold everything: starting the engine, leases, results written to files, reading them back. "done before" is the
second start, which finds all results. For comparison, with no leases, no results and no reports: a thousand bare calls
through concurrent.futures, and a thousand bare Ray tasks, each with the start of its workers. Rounds take turns. Bars: under
20 s in this process, under 60 s on Ray. The evidence is in results/benchmarks/runner.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from _evidence import spread, write

from squareloss.lab.runs import Cell, Context, Job, Result, execute

BARS = {"local": 20.0, "ray": 60.0}


class Nothing:
    """Cells that do nothing."""

    name, summary = "nothing", "what the runner itself costs"
    cost: Mapping[str, str] = {"smoke": "seconds"}

    def __init__(self, cells: int) -> None:
        self.count = cells

    def cells(self, scale: str) -> list[Cell]:
        """As many as were asked for."""
        return [Cell(f"cell{i}", {"task": "nothing", "i": i}) for i in range(self.count)]

    def run(self, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        """Do nothing."""
        for job in jobs:
            yield Result(job, {"i": job.cell.spec["i"]})


def with_runner(engine: str, cells: int, times: dict[str, list[float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for label in (engine, f"{engine}, done before"):
            start = time.perf_counter()
            outcome = execute(Nothing(cells), "smoke", [0], Path(folder), engine, workers=2)
            times[label].append(time.perf_counter() - start)
            if len(outcome.records) != cells or outcome.failures:
                raise RuntimeError(outcome.message())


def identity(i: int) -> int:
    return i


def bare_pool(cells: int) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(identity, range(cells)))


def bare_ray(cells: int) -> None:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, address="local", object_store_memory=256 << 20)
    remote = ray.remote(identity)
    ray.get([remote.remote(i) for i in range(cells)])
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=1000)
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    bare: dict[str, Callable[[int], None]] = {"bare calls, 2 processes": bare_pool, "bare Ray tasks": bare_ray}
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        for engine in ("local", "processes", "ray"):
            with_runner(engine, options.cells, times)
        for label, function in bare.items():
            start = time.perf_counter()
            function(options.cells)
            times[label].append(time.perf_counter() - start)
        print(
            f"round {number + 1} of {options.rounds}: " + ", ".join(f"{k} {v[-1]:.1f} s" for k, v in times.items()), flush=True
        )
    rows = [{"what": label, "bar_seconds": BARS.get(label), "seconds": spread(values)} for label, values in times.items()]
    print(write("runner", rows, cells=options.cells, workers=2, load_average=os.getloadavg()))


if __name__ == "__main__":
    main()
