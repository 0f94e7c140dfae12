"""What is shown while a study runs: lines, a table, TensorBoard files."""

import io
import math

import pytest
from rich.console import Console

from squareloss._progress import duration
from squareloss.lab.runs import Cell, Job, Result, execute, watch
from squareloss.lab.runs.live import Lines, Listener, Row, Table

JOBS = [Job(Cell(f"cell{i}", {"task": "t", "i": i}), 0) for i in range(4)]


def play(listener):
    """Four jobs, of which one was done before, one is done, one half done, and one has failed."""
    listener.began("toy", 4, JOBS[:3])
    listener.started(JOBS[0], "here")
    listener.started(JOBS[1], "there [1]")
    listener.finished(JOBS[0], "done")
    listener.reported(JOBS[1], 5, 10, {"loss": 0.25})
    listener.failed(JOBS[2], "[boom]")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr("squareloss.lab.runs.live.time.monotonic", lambda: now[0])
    return now


def test_counts_and_time_left(clock):
    listener = Listener()
    listener.began("toy", 4, JOBS[:3])
    clock[0] += 7  # workers start
    listener.started(JOBS[0], "here")
    listener.started(JOBS[1], "there")
    clock[0] += 8
    listener.finished(JOBS[0], "done")
    listener.reported(JOBS[1], 5, 10, {"loss": 0.25})
    clock[0] += 2
    listener.failed(JOBS[2], "[boom]")
    assert listener.status() == "2/4 done, 1 running, 1 failed, about 2 s left"
    assert listener.left() == pytest.approx(10 * 0.5 / 2.5), "2.5 of 3 jobs took 10 s"
    assert Listener().left() is None and Row("").left() is None and Row("").fraction() == 0


def test_seconds_in_words():
    words = {45: "45 s", 89: "89 s", 91: "2 min", 720: "12 min", 5340: "89 min", 5400: "1.5 h", 12600: "3.5 h"}
    assert {seconds: duration(seconds) for seconds in words} == words


def test_time_left_goes_by_what_jobs_weigh(clock):
    long, short = (Job(Cell(f"w{w}", {"task": "t", "w": w}, weight=w), 0) for w in (9.0, 1.0))
    listener = Listener()
    listener.began("toy", 3, [long, short])
    listener.started(long, "here")
    listener.started(short, "here")
    for step in (1, 2, 3):
        clock[0] += 9
        listener.reported(long, step, 9, {})
    assert listener.left() == pytest.approx(63), "3 of 10 took 27 s"
    clock[0] += 54
    listener.finished(long, "done")
    assert listener.left() == pytest.approx(9)
    with pytest.raises(ValueError, match="weight of cell 'w0'"):
        Cell("w0", {"task": "t"}, weight=0)


def test_what_comes_before_the_first_report_is_not_taken_for_work(clock):
    listener = Listener()
    listener.began("toy", 3, JOBS[:3])
    listener.started(JOBS[0], "here")
    clock[0] += 9  # imports, data, compilation; then 1 s a step
    for step in (1, 2, 3, 4):
        clock[0] += 1
        listener.reported(JOBS[0], step, 10, {})
        row = listener.rows[JOBS[0].name]
        if step == 1:
            assert listener.left() is None and row.left() is None, "one report tells no pace"
        else:
            assert (listener.left(), row.left()) == (pytest.approx(30 - step), pytest.approx(10 - step))
    clock[0] += 6
    listener.finished(JOBS[0], "done")
    assert listener.left() == pytest.approx(20)


def test_a_job_that_goes_on_from_a_checkpoint_has_the_pace_of_what_is_new(clock):
    listener = Listener()
    listener.began("toy", 1, JOBS[:1])
    listener.started(JOBS[0], "here")
    for step in (81, 82, 83):
        clock[0] += 2
        listener.reported(JOBS[0], step, 100, {})
    assert listener.left() == listener.rows[JOBS[0].name].left() == pytest.approx(34)


def test_lines_say_at_once_what_matters_and_the_rest_now_and_then():
    stream = io.StringIO()
    play(Lines(stream=stream))
    assert stream.getvalue().splitlines() == ["toy: 4 jobs, 1 of them done before", "cell2/seed0 failed: [boom]"]
    stream = io.StringIO()
    play(Lines(stream=stream, every=0.0))
    assert "toy: 2/4 done, 1 running, about" in stream.getvalue() and "cell1/seed0 5/10 loss 0.25" in stream.getvalue()


def test_the_same_error_is_not_told_twice_in_a_row():
    stream = io.StringIO()
    lines = Lines(stream=stream)
    for job, error in zip(JOBS, ("no data", "no data", "no disk", "no data"), strict=True):
        lines.failed(job, error)
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        "failed: no data", "failed likewise", "failed: no disk", "failed: no data",
    ]  # fmt: skip


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
