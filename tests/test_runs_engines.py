"""Engines and chunks of work: where tasks run, on which device, and what comes back in order."""

import multiprocessing
import os
import pickle
import signal
import time
import warnings

import pytest
import torch

from squareloss.lab.runs import chunks, map_chunks
from squareloss.lab.runs import engines as engines_module


def test_device_and_workers_fit_the_machine(monkeypatch):
    task = engines_module.Task(0, None, cpus=2, gpus=0.5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(engines_module.facts, "cores", lambda: 8)
    assert engines_module.default_workers(2, 0.5) == 4 and engines_module._device(task, None, 3) == "cpu"
    assert engines_module.default_workers(16, 0) == 1 and engines_module.default_workers(0, 0) == 8
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert engines_module.default_workers(2, 0.5) == 4 and engines_module.default_workers(2, 1) == 2
    assert engines_module.default_workers(2, 0) == engines_module.default_workers(2, 1, "cpu") == 4, "no GPU is asked for"
    assert engines_module._device(task, None, 3) == "cuda:1" and engines_module._device(task, "cpu", 3) == "cpu"
    assert engines_module._device(engines_module.Task(0, None), None, 0) == "cpu"
    assert engines_module._device(engines_module.Task(0, None), "cuda", 3) == "cuda:1", "GPUs are dealt out"


def test_tasks_in_this_process_have_the_device_they_ask_for(monkeypatch):
    for device, gpus, there, expected in (
        (None, 0, True, "cpu"),
        (None, 1, True, "cuda"),
        (None, 1, False, "cpu"),
        ("cpu", 1, True, "cpu"),
        ("cuda", 0, True, "cuda"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        events = []
        engine = engines_module.Local(lambda payload, device, report: iter([device]), events.append, device)
        engine.submit(engines_module.Task(0, None, gpus=gpus))
        engine.poll(0)
        assert [event.value for event in events if event.kind == "yielded"] == [expected]


def doubled(payload, device, report):
    yield 2 * payload


@pytest.mark.parametrize("after", [0.0, 0.5])  # seconds: before the interpreter hears of it, and in its imports
def test_a_worker_that_starts_does_not_hear_ctrl_c(after):
    """In a terminal it goes to all processes of the group, and workers are in it until they have started."""
    events = []
    with engines_module.Processes(doubled, events.append, "cpu", workers=1) as engine:
        engine.submit(engines_module.Task(0, 21))
        (worker,) = engine._workers.values()
        time.sleep(after)
        os.kill(worker.process.pid, signal.SIGINT)
        wait_for_the_end(engine, events)
    assert [(event.kind, event.value) for event in events if event.kind != "started"] == [("yielded", 42), ("ended", None)]


def warned(payload, device, report):
    warnings.warn(payload, stacklevel=1)
    yield None


def test_warnings_of_workers_are_one_line_each(capfd):
    events = []
    with engines_module.Processes(warned, events.append, "cpu", workers=1) as engine:
        engine.submit(engines_module.Task(0, "a column \x1b[2J"))
        wait_for_the_end(engine, events)
    assert capfd.readouterr().err == "squareloss: a column \\x1b[2J\n"


class PlayedProcess:
    """A process that ends when it is waited for, unless it `stays`; what is done to it is noted."""

    exitcode = -9

    def __init__(self, number, noted, stays=False, sentinel=None):
        self.pid, self.noted, self.stays, self.sentinel, self.alive = number, noted, stays, sentinel, True

    def is_alive(self):
        return self.alive

    def join(self, timeout=None):
        assert timeout is None or timeout <= engines_module._GRACE
        self.noted.append(("join", self.pid))
        self.alive = self.alive and self.stays

    def kill(self):
        self.noted.append(("kill", self.pid))
        self.alive = False


def played_worker(pipe, process):
    worker = object.__new__(engines_module._Worker)
    worker.pipe, worker.process, worker.task, worker.begun, worker.closed = pipe, process, None, False, False
    return worker


@pytest.mark.parametrize("told_by", ["pipe", "sentinel", "both"])
def test_a_worker_that_dies_is_heard_to_the_end_and_its_task_is_lost(told_by):
    """Before it reads its task, without closing its pipe (a process of its own may have it), or just before it gets a task."""
    events, noted, (ours, theirs), (silent, _held) = [], [], multiprocessing.Pipe(), multiprocessing.Pipe()
    sentinel = os.dup((silent if told_by == "pipe" else ours).fileno())
    engine = engines_module.Processes(doubled, events.append, "cpu", workers=1)
    engine._workers[0] = played_worker(ours, PlayedProcess(0, noted, stays=True, sentinel=sentinel))
    theirs.send_bytes(pickle.dumps(("yielded", 1)))
    if told_by == "both":
        theirs.close()
    engine.submit(engines_module.Task(7, None))
    if told_by == "pipe":
        theirs.close()
    engine.poll(0)
    os.close(sentinel)
    assert events == [(7, "yielded", 1), (7, "lost", "its process was killed by SIGKILL: perhaps the system ran out of memory")]
    assert engine.free() and not engine.busy() and ("kill", 0) in noted


def test_leaving_tells_all_workers_to_stop_then_waits_for_each_and_ends_what_stays(monkeypatch):
    noted = []
    monkeypatch.setattr(os, "kill", lambda pid, sign: noted.append((sign.name, pid)))
    with engines_module.Processes(doubled, print, "cpu", workers=3) as engine:
        for number, begun in enumerate((True, True, False, None)):
            pipe, _ = multiprocessing.Pipe()
            worker = engine._workers[number] = played_worker(pipe, PlayedProcess(number, noted, stays=number == 1))
            worker.begun, worker.task = begun, None if begun is None else engines_module.Task(number, None)
    saving = [
        ("SIGINT", 0),
        ("SIGINT", 1),
        ("kill", 2),
    ]  # one that has not begun has nothing to save, nor has one without a task
    assert noted == [*saving, ("join", 0), ("join", 1), ("kill", 1), ("join", 1), ("join", 2), ("join", 3)]
    assert engine._workers == {} and worker.pipe.closed


def wait_for_the_end(engine, events):
    deadline = time.monotonic() + 60
    while not any(event.kind in engines_module.LAST for event in events) and time.monotonic() < deadline:
        engine.poll(0.5)


def total(chunk):
    if chunk == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.tensor(chunk).sum()


def test_chunks_keep_their_order():
    done = []
    parts = map_chunks(total, [[1, 2], [3], [4, 5]], on_done=lambda n, of: done.append((n, of)))
    assert [int(p) for p in parts] == [3, 3, 9] and done == [(1, 3), (2, 3), (3, 3)]
    assert [int(p) for p in map_chunks(total, [[1, 2], [3], [4, 5]], "processes", workers=2)] == [3, 3, 9]
    assert map_chunks(total, []) == []


def test_a_chunk_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(chunks, "ATTEMPTS", 1)
    with pytest.raises(RuntimeError, match=r"chunk 1 of 2 failed: (?s:.*)TypeError: new"):
        map_chunks(total, [[1], "x"])
    with pytest.raises(RuntimeError, match="chunk 0 of 1 failed: its process was killed by SIGKILL"):
        map_chunks(total, ["die"], "processes", workers=1)


def dying(path):
    """Dies at the first call, or ever again if the file is called so; notes each."""
    with path.open("a") as file:
        file.write("called\n")
    if path.name == "ever" or path.read_text().count("called") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def test_a_chunk_whose_worker_died_is_done_again_but_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "ATTEMPTS", 2)
    assert map_chunks(dying, [tmp_path / "once"], "processes", workers=1) == ["once"]
    with pytest.raises(RuntimeError, match="chunk 0 of 1 failed: its process was killed"):
        map_chunks(dying, [tmp_path / "ever"], "processes", workers=1)
    assert (tmp_path / "ever").read_text().count("called") == 2


def test_chunks_go_to_the_engine_that_was_asked_for(monkeypatch):
    made = []

    def engine(name, work, on_event, workers, address, device):
        made.append((name, workers, address, device))
        return engines_module.Local(work, on_event)

    monkeypatch.setattr(chunks, "make_engine", engine)
    monkeypatch.setattr(chunks, "default_workers", lambda cpus, gpus: 10 * cpus + gpus)
    map_chunks(total, [[1]], "processes", cpus=2, gpus=0.5)
    map_chunks(total, [[1]], "processes", workers=3)
    map_chunks(total, [[1]], "ray", address="auto")
    assert made == [("processes", 20.5, None, None), ("processes", 3, None, None), ("ray", None, "auto", None)]
    with pytest.raises(ValueError, match="Unknown engine 'cloud'"):
        map_chunks(total, [[1]], "cloud")


def test_a_chunk_is_tried_three_times_and_done_once_its_result_is_there(monkeypatch):
    asked, ends = [], []

    class Dying(engines_module.Local):
        def poll(self, timeout):
            task, self._task = self._task, None
            asked.append(task)
            for kind, value in ends.pop(0):
                self.on_event(engines_module.Event(task.number, kind, value))

    monkeypatch.setattr(chunks, "make_engine", lambda name, work, on_event, *_: Dying(work, on_event))
    died = ("lost", "its node died")
    ends += [[("started", "here"), died], [("yielded", 1), died], [died], [("yielded", 2), ("failed", "late")]]
    assert map_chunks(total, ["a", "b"], cpus=2, gpus=0.5) == [2, 1]
    assert [(task.payload, task.cpus, task.gpus) for task in asked] == [(name, 2, 0.5) for name in ("a", "b", "a", "a")]
    ends += [[died]] * 3
    with pytest.raises(RuntimeError, match="chunk 0 of 1 failed: its node died"):
        map_chunks(total, ["a"])
    assert ends == [] and (asked[-1].cpus, asked[-1].gpus) == (1, 0)
