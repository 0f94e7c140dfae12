"""The schedule: whose job it is, what is waited for, what is tried again, and who is told."""

import os
import platform
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from squareloss.lab.runs import Job, Result, Store, facts, schedule
from squareloss.lab.runs.engines import Event, Local
from squareloss.lab.runs.leases import Leases
from squareloss.lab.runs.live import Listener
from squareloss.lab.runs.schedule import Schedule, StudyWork
from toy_study import Toy


class Told(Listener):
    """Remembers all it is told."""

    def __init__(self):
        super().__init__()
        self.said = []

    def started(self, job, place):
        self.said.append(("started", job.name, place))

    def reported(self, job, step, total, values):
        self.said.append(("reported", job.name, step, total, values))

    def finished(self, job, status):
        self.said.append(("finished", job.name, status))

    def failed(self, job, error):
        self.said.append(("failed", job.name, error))

    def lost(self, job, reason):
        self.said.append(("lost", job.name, reason))

    def note(self, text):
        self.said.append(("note", text))


class Played:
    """An engine with room for so many tasks, that makes of each what `ends` says in turn: kind and value of its last event.

    Every other poll brings nothing.
    """

    def __init__(self, made, ends=(), parallel=1, room=1):
        self.made, self.ends, self.parallel, self.room, self.tasks, self.seen = made, list(ends), parallel, room, [], []
        self.polls = 0

    def free(self):
        return len(self.tasks) < self.room

    def busy(self):
        return bool(self.tasks)

    def submit(self, task):
        assert self.free()
        self.tasks.append(task)
        self.seen.append(task)

    def poll(self, timeout):
        self.polls += 1
        if self.polls % 2:
            return
        task = self.tasks.pop(0)
        kind, value = self.ends.pop(0) if self.ends else ("ended", None)
        if kind == "ended":
            for job in task.payload:
                self.made.on_event(Event(task.number, "yielded", Result(job, {"square": 0})))
        self.made.on_event(Event(task.number, kind, value() if callable(value) else value))


@pytest.fixture
def planned(tmp_path):
    """A schedule and its jobs, and the leases of this process and of another."""
    store = Store(tmp_path / "r")
    with Leases(tmp_path / "r" / ".leases") as ours, Leases(tmp_path / "r" / ".leases") as theirs:

        def make(change=lambda cell, number: cell, **options):
            study = Toy(tmp_path / "log.txt", **options)
            made = Schedule(study, store, Told())
            return made, made.plan([Job(change(cell, i), 0) for i, cell in enumerate(study.cells("smoke"))]), ours, theirs

        yield make
        assert [path for path in (tmp_path / "r" / ".leases").iterdir() if path not in theirs.held.values()] == []


@pytest.fixture
def naps(monkeypatch):
    """Functions that are called in turn while the schedule sleeps, and how long it does; no time passes otherwise."""
    calls, slept = [], []

    def sleep(seconds):
        slept.append(seconds)
        if calls:
            calls.pop(0)()

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: 100.0 + sum(slept), perf_counter=time.perf_counter)
    monkeypatch.setattr(schedule, "time", clock)
    return calls, slept


@pytest.mark.parametrize("done", [False, True])
def test_what_another_process_has_is_waited_for(planned, naps, done):
    made, jobs, ours, theirs = planned(cells_=3)
    assert all(theirs.acquire(job.key) for job in jobs[1:])

    def give_back():
        for job in jobs[1:]:
            if done:
                made.store.write("toy", Result(job, {"square": -1}))
            theirs.release(job.key)

    calls, slept = naps
    calls += [lambda: None, lambda: None, give_back]
    made.run(jobs, Local(StudyWork(made.study, made.store.scratch), made.on_event), ours)
    assert made.new == (1 if done else 3) == len(made.study.attempts()) and made.waiting == []
    notes = [words[1] for words in made.listener.said if words[0] == "note"]
    assert notes == [f"waiting for 2 jobs that process {os.getpid()} on {platform.node()} has"]
    ends = [words[1:] for words in made.listener.said if words[0] == "finished"]
    assert ends == [("cell0/seed0", "done"), *((f"cell{i}/seed0", "done elsewhere" if done else "done") for i in (1, 2))]
    assert 3 <= len(slept) <= 6 and set(slept) == {schedule._WAIT}


def test_a_holder_that_is_just_gone_has_no_name(planned, naps, monkeypatch):
    made, jobs, ours, theirs = planned(cells_=1)
    theirs.acquire(jobs[0].key)
    monkeypatch.setattr(ours, "holder", lambda key: None)
    naps[0].append(lambda: theirs.release(jobs[0].key))
    made.run(jobs, Played(made), ours)
    assert made.listener.said[0] == ("note", "waiting for 1 job that another process has")


def test_nothing_is_waited_for_when_all_was_done_meanwhile(planned, naps):
    made, jobs, ours, _ = planned(cells_=1)
    made.store.write("toy", Result(jobs[0], {"square": -1}))
    made.run(jobs, Played(made), ours)
    assert made.listener.said == [("finished", "cell0/seed0", "done elsewhere")] and naps[1] == [] and made.new == 0


def test_what_was_done_until_the_lease_was_got_is_not_done_again(planned, monkeypatch):
    made, jobs, ours, _ = planned(cells_=1)
    acquire, engine = ours.acquire, Played(made)
    monkeypatch.setattr(ours, "acquire", lambda key: made.store.write("toy", Result(jobs[0], {})) and acquire(key))
    made.run(jobs, engine, ours)
    assert engine.seen == [] and made.listener.said == [("finished", "cell0/seed0", "done elsewhere")]


def test_a_lease_is_given_back_when_the_result_is_written(planned, monkeypatch):
    made, jobs, ours, _ = planned(cells_=1)
    write, held = made.store.write, []
    monkeypatch.setattr(made.store, "write", lambda *result: held.append(ours.mine(jobs[0].key)) or write(*result))
    made.run(jobs, Played(made), ours)
    assert held == [True] and not ours.mine(jobs[0].key)


def test_what_another_process_has_is_not_looked_at_with_every_event(planned, naps, monkeypatch):
    made, jobs, ours, theirs = planned(cells_=6)
    theirs.acquire(jobs[0].key)
    naps[0].append(lambda: theirs.release(jobs[0].key))
    tried, acquire = [], ours.acquire
    monkeypatch.setattr(ours, "acquire", lambda key: tried.append(key) or acquire(key))
    engine = Played(made, room=9)
    made.run(jobs, engine, ours)
    assert made.new == 6 and tried.count(jobs[0].key) <= 4 < engine.polls
    assert made.plan(jobs) == []


def test_a_lost_job_whose_lease_was_taken_over_is_left_to_whoever_has_it(planned, naps):
    made, jobs, ours, theirs = planned(cells_=1)

    def take_over():
        ours.held[jobs[0].key].unlink()
        theirs.acquire(jobs[0].key)
        return "its node died"

    def finish():
        made.store.write("toy", Result(jobs[0], {"square": -1}))
        theirs.release(jobs[0].key)

    naps[0].append(finish)
    engine = Played(made, [("lost", take_over)])
    made.run(jobs, engine, ours)
    assert len(engine.seen) == 1 and made.new == 0 and made.listener.said[-1] == ("finished", "cell0/seed0", "done elsewhere")


@pytest.mark.parametrize("name", ["submit", "write"])
def test_ctrl_c_loses_no_task_that_is_given_and_no_result_that_has_come(planned, monkeypatch, name):
    made, jobs, ours, _ = planned(cells_=1)
    engine = Played(made)
    owner, previous = engine if name == "submit" else made.store, signal.signal(signal.SIGINT, signal.default_int_handler)
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: signal.raise_signal(signal.SIGINT) or real(*arguments))
    try:
        with pytest.raises(KeyboardInterrupt):
            made.run(jobs, engine, ours)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert len(engine.seen) == 1 and made.store.done("toy", jobs[0]) == made.new == (name == "write")
    ours.release(jobs[0].key)


def test_the_listener_is_told_what_happens_to_each_job(planned):
    made, jobs, ours, _ = planned(cells_=2, group="all")
    made.run(jobs, Local(StudyWork(made.study, made.store.scratch), made.on_event), ours)
    told = [[words for words in made.listener.said if words[1] == job.name] for job in jobs]
    assert told == [
        [("started", name, platform.node()), ("reported", name, 1.0, 1.0, {"loss": 0.5}), ("finished", name, "done")]
        for name in ("cell0/seed0", "cell1/seed0")
    ]
    assert made.running == {}


def test_what_an_engine_notes_is_told(planned):
    made, jobs, ours, _ = planned(cells_=1)
    engine = Played(made, [("lost", lambda: made.on_event(Event(1, "noted", "waiting for a GPU")))])
    made.run(jobs, engine, ours)
    assert made.listener.said[:2] == [("note", "waiting for a GPU"), ("lost", "cell0/seed0", "")]


def test_a_job_whose_worker_dies_is_tried_three_times_before_the_others_go_on(planned):
    made, jobs, ours, _ = planned(cells_=2)
    engine = Played(made, [("lost", "its node died")] * 3)
    made.run(jobs, engine, ours)
    assert [task.payload[0].name for task in engine.seen] == ["cell0/seed0"] * 3 + ["cell1/seed0"]
    assert [task.number for task in engine.seen] == [1, 2, 3, 4]
    (failure,) = made.failures
    assert failure.error == "its node died (tried 3 times)" and failure.log.read_text() == "its node died (tried 3 times)\n"
    lost, failed, done = ("lost", "cell0/seed0", "its node died"), ("failed", "cell0/seed0", failure.error), "finished"
    assert made.listener.said == [lost, lost, lost, failed, (done, "cell1/seed0", "done")] and made.new == 1


@pytest.mark.parametrize("kind", ["lost", "failed"])
def test_a_group_that_ends_early_is_done_one_by_one_in_its_order(planned, kind):
    made, jobs, ours, _ = planned(lambda cell, i: replace(cell, cpus=i + 1, gpus=1 - i / 4, group="all" if i < 2 else ""))
    engine = Played(made, [(kind, "no luck"), ("failed", "no luck")])
    made.run(jobs, engine, ours)
    assert [[job.cell.name[-1] for job in task.payload] for task in engine.seen] == [["0", "1"], ["0"], ["1"], ["2"], ["3"]]
    assert [(task.cpus, task.gpus) for task in engine.seen[:3]] == [(2, 1), (1, 1), (2, 0.75)], "a group needs the most of each"
    tries = " (tried 1 times)" if kind == "lost" else ""
    assert [(failure.job.cell.name, failure.error) for failure in made.failures] == [("cell0", f"no luck{tries}")]


def test_results_travel_with_the_machine_they_came_from_and_artefacts_as_bytes(tmp_path, monkeypatch):
    class Noting(Toy):
        def run(self, jobs, context):
            yield Result(jobs[0], {}, artefacts={"note.txt": bytearray(b"abc")})
            yield Result(jobs[1], {}, machine={"of": "its own"})

    monkeypatch.setattr(facts, "machine", lambda device="none": {"of": device})
    study = Noting(tmp_path / "log.txt", cells_=2)
    work = StudyWork(study, tmp_path / ".scratch")
    first, second = work([Job(cell, 0) for cell in study.cells("smoke")], "cuda:1", print)
    assert (first.machine, second.machine) == ({"of": "cuda:1"}, {"of": "its own"})
    assert type(first.artefacts["note.txt"]) is bytes


def test_a_study_that_gives_a_result_twice_is_told(tmp_path):
    class Twice(Toy):
        def run(self, jobs, context):
            yield Result(jobs[0], {})
            yield Result(jobs[0], {})

    study = Twice(tmp_path / "log.txt", cells_=2)
    work = StudyWork(study, tmp_path / ".scratch")([Job(cell, 0) for cell in study.cells("smoke")], "cpu", print)
    next(work)
    with pytest.raises(RuntimeError, match="toy.run gave a result for cell0/seed0, which it had not to do, or twice"):
        next(work)


def test_reports_of_each_job_are_thinned_but_for_the_last(tmp_path, monkeypatch):
    now, reports = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    study = Toy(tmp_path / "log.txt", cells_=2)
    one, other = (Job(cell, 0) for cell in study.cells("smoke"))
    report = StudyWork(study, tmp_path, every=5.0)._reporter(reports.append)
    for now[0], job, step in ((1, one, 1), (2, one, 2), (3, other, 1), (6, one, 3), (10, one, 4), (10.5, one, 5)):
        report(job, step, 5, {"at": now[0]})
    assert reports == [
        (one, 1, 5, {"at": 1}), (other, 1, 5, {"at": 3}), (one, 3, 5, {"at": 6}), (one, 5, 5, {"at": 10.5}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no message"),
        ("its node died\n", "its node died"),
        ("first\nlast", "last"),
        ('Traceback:\n  File "a.py"\n    x = 1\nOops: why\nand how', "Oops: why and how"),
        ('Traceback:\n  File "a.py"\nFirst\n\nAgain:\n  File "b.py"\n    y\n\nOops', "Oops"),
        ('Traceback:\n  File "a.py"\n    x = 1', "x = 1"),
        ('Traceback:\n  File "a.py"\n' + 400 * "x" + "\nmore", 400 * "x" + " ..."),
    ],
)
def test_the_error_of_a_traceback_in_a_line(text, named):
    assert schedule._named(text) == named
