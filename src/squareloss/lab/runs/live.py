"""What one sees while a study runs: a live table in a terminal, a line now and then elsewhere, TensorBoard if asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from squareloss._progress import duration
from squareloss.lab.plain import harmless
from squareloss.lab.runs.study import Job

_EVERY = 5.0  # seconds between two lines
_ROWS = 20  # of running jobs in the table


@dataclass
class Row:
    """A job that runs: where, how much of the work it is, and how far it is, by its first report and its last."""

    place: str
    weight: float = 1.0
    step: float = 0.0
    total: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    said: float = 0.0  # when it reported last
    first: tuple[float, float] | None = None  # when it reported first, and the part that was done then

    def report(self, step: float, total: float, values: dict[str, float]) -> None:
        """Note how far it is."""
        self.step, self.total, self.values, self.said = step, total, values, time.monotonic()
        self.first = self.first or (self.said, self.fraction())

    def fraction(self) -> float:
        """The part that is done, in [0, 1]; 0 if the job does not tell."""
        return min(1.0, max(0.0, self.step / self.total)) if self.total else 0.0

    def left(self) -> float | None:
        """Seconds left, if it goes on as it did; None before its second report."""
        pace = self._pace(time.monotonic())
        return None if pace is None else (1 - self.fraction()) * pace

    def begun(self) -> float | None:
        """When it would have begun at the pace of its reports.

        Imports, reading the data and compiling come before the first report and do not count; what a job that goes on from a
        checkpoint did before counts.
        """
        pace = self._pace(self.said)
        return None if pace is None or self.first is None else self.first[0] - self.first[1] * pace

    def _pace(self, now: float) -> float | None:
        """Seconds a whole job takes, by what was done since its first report."""
        since, part = self.first or (0.0, 1.0)
        return (now - since) / (self.fraction() - part) if self.fraction() > part else None


class Listener:
    """Is told what happens, and keeps count. This one shows nothing; `Lines` and `Table` do.

    Arguments:
        tensorboard: folder for TensorBoard event files, one run per job, of the values that jobs report.
    """

    def __init__(self, tensorboard: Path | None = None) -> None:
        self.rows: dict[str, Row] = {}
        self.study, self.jobs, self.skipped, self.done, self.broken = "", 0, 0, 0, 0
        self._work, self._worked = 0.0, 0.0  # weights of the jobs that are to do, and of those that have ended
        self._error = ""  # the last that was told
        self._begun: float | None = None  # when the first job started
        self._pacer: Row | None = None  # the first job that reported, which tells what starting took
        self._board = _Board(tensorboard) if tensorboard else None

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board:
            self._board.close(*self._board.writers)

    def began(self, study: str, jobs: int, todo: Sequence[Job]) -> None:
        """A study of so many jobs begins, of which these are to do."""
        self.study, self.jobs, self.skipped = study, jobs, jobs - len(todo)
        self._work = sum(job.cell.weight for job in todo)
        self.show(f"{study}: {jobs} jobs, {self.skipped} of them done before" if self.skipped else f"{study}: {jobs} jobs")

    def started(self, job: Job, place: str) -> None:
        """A job runs, on a machine of this name."""
        self.rows[job.name] = Row(place, job.cell.weight)
        self._begun = self._begun or time.monotonic()
        self.show()

    def reported(self, job: Job, step: float, total: float, values: dict[str, float]) -> None:
        """A job is at `step` of `total`, with these values."""
        row = self.rows.setdefault(job.name, Row("", job.cell.weight))
        row.report(step, total, values)
        self._pacer = self._pacer or row
        if self._board:
            self._board.add(job, step, values)
        self.show()

    def finished(self, job: Job, status: str) -> None:
        """A job has its result."""
        self._end(job)
        self.done += 1
        if self._board:
            self._board.close(job.name)
        self.show(None if status == "done" else f"{job.name}: {status}")

    def failed(self, job: Job, error: str) -> None:
        """A job has failed."""
        self._end(job)
        self.broken += 1
        self.show(f"{job.name} failed likewise" if error == self._error else f"{job.name} failed: {error}")
        self._error = error

    def _end(self, job: Job) -> None:
        self.rows.pop(job.name, None)
        self._worked += job.cell.weight

    def lost(self, job: Job, reason: str) -> None:
        """A job's worker died; it will be tried again, or reported as failed next."""
        self.rows.pop(job.name, None)
        self.show(f"{job.name}: {reason}")

    def note(self, text: str) -> None:
        """Something worth a line happened."""
        self.show(text)

    def show(self, text: str | None = None) -> None:
        """Called whenever something has changed; `text` is worth a line of its own."""

    def left(self) -> float | None:
        """Seconds left, if it goes on as it did; None before a job has reported twice, or ended."""
        rows = list(self.rows.values())  # a copy: the table is drawn by another thread
        worked = self._worked + sum(row.weight * row.fraction() for row in rows)
        begun = self._pacer.begun() if self._pacer else None
        begun = self._begun if begun is None and self._worked else begun
        if begun is None or not worked:
            return None
        return (time.monotonic() - begun) * (self._work - worked) / worked

    def status(self) -> str:
        """One line: how many jobs are done and run, and how long it will take."""
        parts = [f"{self.skipped + self.done}/{self.jobs} done", f"{len(self.rows)} running"]
        parts += [f"{self.broken} failed"] if self.broken else []
        left = self.left()
        return ", ".join([*parts, *([f"about {duration(left)} left"] if left else [])])


class Lines(Listener):
    """Plain lines on a stream: what is worth one at once, and how far it is every few seconds."""

    def __init__(self, tensorboard: Path | None = None, stream: IO[str] | None = None, every: float = _EVERY) -> None:
        super().__init__(tensorboard)
        self.stream, self.every = stream or sys.stderr, every
        self._last = time.monotonic()

    def show(self, text: str | None = None) -> None:
        """Write a line, if there is reason to."""
        due = time.monotonic() - self._last >= self.every
        if text is None and due:
            name, row = max(self.rows.items(), key=lambda item: item[1].fraction(), default=("", None))
            text = f"{self.study}: {self.status()}" + (f"; {name} {described(row)}" if row and row.total else "")
        if text is not None:
            print(harmless(text), file=self.stream, flush=True)
            self._last = time.monotonic() if due else self._last


class Table(Listener):
    """A live table in a terminal: the jobs that run, how far each is, and how long it will take."""

    def __init__(self, tensorboard: Path | None = None, console: Any = None) -> None:
        super().__init__(tensorboard)
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            console=console or Console(stderr=True), get_renderable=self.render, transient=True, refresh_per_second=4
        )

    def __enter__(self) -> Table:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)
        super().__exit__()

    def show(self, text: str | None = None) -> None:
        """Print a line above the table, which is redrawn by itself."""
        if text is not None:
            self._live.console.print(harmless(text), highlight=False, markup=False)

    def render(self) -> Any:
        """The table as it is now."""
        from rich.markup import escape
        from rich.progress_bar import ProgressBar
        from rich.table import Table as RichTable

        table = RichTable(title=f"{self.study}: {self.status()}", title_justify="left", expand=False)
        for name in ("job", "progress", "left", "on", "values"):
            table.add_column(name, no_wrap=name != "values")
        rows = list(self.rows.items())  # a copy: the table is drawn by another thread
        for name, row in rows[:_ROWS]:
            bar = ProgressBar(total=1.0, completed=row.fraction(), width=20)
            left = row.left()
            words = escape(" ".join(f"{key} {value:.4g}" for key, value in row.values.items()))
            table.add_row(escape(name), bar, duration(left) if left is not None else "", escape(row.place), words)
        if len(rows) > _ROWS:
            table.add_row(f"and {len(rows) - _ROWS} more", "", "", "", "")
        return table


class _Board:
    """TensorBoard event files, one folder per job."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard event files need it: pip install tensorboard") from error
        self._make, self.folder = SummaryWriter, folder
        self.writers: dict[str, Any] = {}

    def add(self, job: Job, step: float, values: dict[str, float]) -> None:
        if job.name not in self.writers:
            self.writers[job.name] = self._make(str(self.folder / job.name))
        for name, value in values.items():
            self.writers[job.name].add_scalar(name, value, int(step))

    def close(self, *names: str) -> None:
        for writer in [self.writers.pop(name) for name in names if name in self.writers]:
            writer.close()


def watch(quiet: bool = False, tensorboard: str | Path | None = None) -> Listener:
    """The listener that fits: a table if standard error is a terminal, lines if not, nothing if `quiet`."""
    folder = Path(tensorboard) if tensorboard is not None else None
    if quiet:
        return Listener(folder)
    return Table(folder) if sys.stderr.isatty() else Lines(folder)


def described(row: Row) -> str:
    """How far a job is, in words: "3/10 loss 0.31"."""
    return " ".join([f"{row.step:g}/{row.total:g}", *(f"{name} {value:.4g}" for name, value in row.values.items())])
