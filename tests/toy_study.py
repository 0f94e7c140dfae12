"""A study for the tests of the runner: it squares numbers, and fails, dies or is interrupted where it is told to."""

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from squareloss.lab.runs import Cell, Result


@dataclass
class Toy:
    """Squares numbers. Each attempt leaves a line in `log`; `tricks` says what else a cell does."""

    log: Path
    cells_: int = 4
    seconds: float = 0.0
    tricks: tuple = ()
    group: str = ""
    name: str = "toy"
    summary: str = "squares"
    cost = {"smoke": "seconds"}  # noqa: RUF012

    def cells(self, scale):
        return [Cell(f"cell{i}", {"task": "square", "i": i}, group=self.group) for i in range(self.cells_)]

    def run(self, jobs, context):
        with self.log.open("a") as log:
            log.write(f"call {len(jobs)}\n")
        tricks = dict(self.tricks)
        for job in jobs:
            with self.log.open("a") as log:
                log.write(f"{job.name} {os.getpid()}\n")
            trick = tricks.get(job.cell.name)
            if trick == "raise":
                raise ZeroDivisionError(f"no luck with {job.name}")
            if trick == "die" or (trick == "die once" and self.attempts()[job.name] == 1):
                os.kill(os.getpid(), signal.SIGKILL)
            if trick == "interrupt":
                raise KeyboardInterrupt
            if trick == "drop":
                continue
            time.sleep(self.seconds)
            context.report(job, 1, 1, loss=0.5)
            yield Result(job, {"square": job.cell.spec["i"] ** 2 + job.seed, "threads": torch.get_num_threads()})

    def lines(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def attempts(self):
        return Counter(line.split()[0] for line in self.lines() if not line.startswith("call"))
