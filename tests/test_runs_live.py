"""What is shown while a study runs: lines, a table, TensorBoard files."""

import io
import math
import time

import pytest
from rich.console import Console

from squareloss.lab.runs import Cell, Job, Result, execute, watch
from squareloss.lab.runs.live import Lines, Listener, Row, Table, duration

JOBS = [Job(Cell(f"cell{i}", {"task": "t", "i": i}), 0) for i in range(4)]


def play(listener):
    """Four jobs, of which one was done before, one is done, one half done, and one has failed."""
    listener.began("toy", 4, 3)
    listener.started(JOBS[0], "here")
    listener.started(JOBS[1], "there [1]")
    listener.finished(JOBS[0], "done", 1.0)
    listener.reported(JOBS[1], 5, 10, {"loss": 0.25})
    listener.failed(JOBS[2], "[boom]")


def test_counts_and_time_left():
    listener = Listener()
    play(listener)
    listener._begun = time.monotonic() - 10
    assert listener.status() == "2/4 done, 1 running, 1 failed, about 2 s left"
    assert listener.left() == pytest.approx(10 * 0.5 / 2.5, rel=0.01), "2.5 of 3 jobs took 10 s"
    row = Row("", since=time.monotonic() - 30, step=3, total=4)
    assert row.left() == pytest.approx(10, rel=0.01) and Row("").left() is None and Row("").fraction() == 0
    assert Listener().left() is None
    assert [duration(s) for s in (45, 720, 12600)] == ["45 s", "12 min", "3.5 h"]


def test_lines_say_at_once_what_matters_and_the_rest_now_and_then():
    stream = io.StringIO()
    play(Lines(stream=stream))
    assert stream.getvalue().splitlines() == ["toy: 4 jobs, 1 of them done before", "cell2/seed0 failed: [boom]"]
    stream = io.StringIO()
    play(Lines(stream=stream, every=0.0))
    assert "toy: 2/4 done, 1 running, about" in stream.getvalue() and "cell1/seed0 5/10 loss 0.25" in stream.getvalue()


def test_the_table_shows_the_jobs_that_run():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    with Table(console=console) as table:
        play(table)
        console.print(table.render())
    text = stream.getvalue()
    for word in ("2/4 done, 1 running, 1 failed", "cell1/seed0", "there [1]", "loss 0.25", "cell2/seed0 failed: [boom]", "━"):
        assert word in text, word
    assert "cell0/seed0" not in text.replace("\x1b", "").rsplit("2/4 done", 1)[1]


def test_a_long_table_is_cut():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    table = Table(console=console)
    for i in range(30):
        table.started(Job(Cell(f"cell{i}", {"task": "t", "i": i}), 0), "here")
    console.print(table.render())
    assert "and 10 more" in console.file.getvalue()


def test_the_listener_fits_the_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert type(watch()) is Lines and type(watch(quiet=True)) is Listener
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert type(watch()) is Table


class Losses:
    name, summary, cost = "losses", "", {"smoke": "seconds"}

    def cells(self, scale):
        return [job.cell for job in JOBS[:2]]

    def run(self, jobs, context):
        for job in jobs:
            for epoch in range(3):
                context.report(job, epoch + 1, 3, loss=1 / (epoch + 1 + job.cell.spec["i"]))
            yield Result(job, {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own
def test_tensorboard_gets_every_value(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    execute(Losses(), "smoke", [0], tmp_path / "r", progress=watch(quiet=True, tensorboard=tmp_path / "tb"))
    for i in range(2):
        events = EventAccumulator(str(tmp_path / "tb" / f"cell{i}" / "seed0")).Reload().Scalars("loss")
        assert [e.step for e in events] == [1, 2, 3]
        assert [e.value for e in events] == pytest.approx([1 / (k + i) for k in (1, 2, 3)])


def test_reports_from_other_processes_are_thinned_but_the_last_comes(tmp_path):
    from squareloss.lab.runs.schedule import StudyWork

    heard = []
    list(StudyWork(Losses(), tmp_path, every=math.inf)(JOBS[:2], "cpu", heard.append))
    assert [(job.name, step) for job, step, _, _ in heard] == [
        ("cell0/seed0", 1), ("cell0/seed0", 3), ("cell1/seed0", 1), ("cell1/seed0", 3),
    ]  # fmt: skip
