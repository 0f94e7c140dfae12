"""The engine for Ray, with a cluster that is played: what is asked of it, and what is made of what it says."""

import itertools
import os
import pickle
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from squareloss.lab.runs import map_chunks, ray_engine
from squareloss.lab.runs.engines import Task
from squareloss.lab.runs.ray_engine import Ray


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class RuntimeEnvSetupError(RayError):
    pass


class Played:
    """As much of the ray package as the engine uses. Tasks run when asked for news; `script` is said in their place."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, RuntimeEnvSetupError=RuntimeEnvSetupError)
    cloudpickle = pickle

    def __init__(self, initialized=False, cpus=8.0):
        self.initialized, self.resources = initialized, {"CPU": cpus}
        self.begun, self.asked, self.cancelled, self.waits, self.shared = [], [], [], [], []
        self.script, self.silent, self.ended, self.refuse = None, False, 0, None

    def is_initialized(self):
        return self.initialized

    def init(self, **options):
        self.begun.append(options)
        if self.refuse is not None:
            raise self.refuse

    def shutdown(self):
        self.ended += 1

    def cluster_resources(self):
        return self.resources

    def put(self, value):
        self.shared.append(value)
        return value

    def remote(self, function):
        def start(*arguments):
            return function(*arguments) if self.script is None else (news for news in self.script)

        def options(**given):
            self.asked.append(given)
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def wait(self, tasks, num_returns, timeout):
        assert 0 < num_returns <= len(tasks)
        self.waits.append((num_returns, timeout))
        return ([] if self.silent else tasks[:num_returns]), []

    def get(self, value):
        if isinstance(value, Exception):
            raise value
        return value

    def cancel(self, task, force):
        self.cancelled.append((task, force))

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 8.0}}, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 4.0}}]


@pytest.fixture
def played(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ray = Played()
    monkeypatch.setattr(ray_engine, "import_ray", lambda: ray)
    threads = torch.get_num_threads()
    yield ray
    torch.set_num_threads(threads)


def tell(payload, device, report):
    report("half")
    yield payload, device, torch.get_num_threads()


def leave(payload, device, report):
    yield "first"
    sys.exit("enough")


going = threading.Event()


def pausing(payload, device, report):
    yield "first"
    going.wait(10)
    yield "second"


def drained(engine):
    while engine.busy():
        engine.poll(0.1)


def test_a_task_has_what_it_asks_for_and_its_news_come_in_order(played):
    events = []
    with Ray(tell, events.append) as engine:
        assert not engine.busy()
        engine.submit(Task(7, "payload", cpus=2.5, gpus=0))
        assert engine.busy()
        drained(engine)
    assert [(event.task, event.kind) for event in events] == [(7, kind) for kind in ("started", "reported", "yielded", "ended")]
    assert [event.value for event in events[1:]] == ["half", ("payload", "cpu", 2), None]
    assert played.asked == [{"num_cpus": 2.5, "num_gpus": 0, "max_retries": 0, "num_returns": "streaming"}]
    assert played.ended == 1 and played.cancelled == []


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [(None, 0, 0), (None, 0.5, 0.5), ("cpu", 0.5, 0), ("cuda", 0, 1), ("cuda", 0.5, 0.5)],
)
def test_gpus_that_are_asked_for(played, monkeypatch, device, gpus, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    events = []
    with Ray(tell, events.append, device) as engine:
        engine.submit(Task(0, None, cpus=0.5, gpus=gpus))
        drained(engine)
    assert played.asked[0]["num_gpus"] == expected
    assert [event.value[1:] for event in events if event.kind == "yielded"] == [("cuda" if expected else "cpu", 1)]


def test_a_node_without_a_gpu_does_without(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = [word for news in ray_engine._generate((pickle.dumps(tell), []), Task(0, None, gpus=1)) for word in news]
    assert [value[1] for kind, value in said if kind == "yielded"] == ["cpu"]


def test_news_come_while_the_work_goes_on_and_once():
    going.clear()
    said = []
    for news in ray_engine._generate((pickle.dumps(pausing), []), Task(0, None)):
        said += news
        if said[-1] == ("yielded", "first"):
            going.set()
    assert said[1:] == [("yielded", "first"), ("yielded", "second"), ("ended", None)] and said[0][0] == "started"


def test_work_that_leaves_its_process_fails(played):
    """Its thread alone would end, without a word, and the task never."""
    events = []
    with Ray(leave, events.append) as engine:
        engine.submit(Task(0, None))
        drained(engine)
    assert [event.kind for event in events] == ["started", "yielded", "failed"] and "SystemExit: enough" in events[-1].value


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    [
        ([], "lost", "it ended without a word"),
        ([RayError("gone")], "lost", "its node or process died (RayError)"),
        ([RayTaskError("no such attribute")], "failed", "no such attribute"),
        ([RuntimeEnvSetupError("no pip")], "failed", "no pip"),
    ],
)
def test_what_becomes_of_a_task_without_an_end(played, script, kind, reason):
    events, played.script = [], script
    with Ray(tell, events.append) as engine:
        engine.submit(Task(3, None))
        engine.poll(0.1)
        assert not engine.busy()
    assert events == [(3, kind, reason)]


def test_only_who_connected_disconnects_and_what_runs_is_ended(played):
    played.initialized = played.silent = True
    with Ray(tell, print) as engine:
        engine.submit(Task(0, None))
        (task,) = engine._running
    assert played.cancelled == [(task, True)] and not engine.busy()
    assert played.begun == [] and played.ended == 0


def test_ray_is_started_here_or_reached_at_an_address(played, monkeypatch):
    monkeypatch.setattr(ray_engine, "_check_address", lambda address: None)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    for address, found in ((None, "local"), ("auto", "auto"), (None, "elsewhere:1"), ("here:1", "here:1")):
        if found == "elsewhere:1":
            monkeypatch.setenv("RAY_ADDRESS", found)
        with Ray(tell, print, None, 3, address):
            assert played.begun[-1]["address"] == found
            assert not played.begun[-1]["log_to_driver"] and not played.begun[-1]["configure_logging"]
            assert played.begun[-1].get("num_cpus") == (3 if found == "local" else None), "a cluster has the cores it has"
            assert os.environ.pop("RAY_USAGE_STATS_ENABLED", None) == ("0" if found == "local" else None)
    assert played.begun[0]["object_store_memory"] == 256 << 20 and not played.begun[0]["include_dashboard"]


@pytest.mark.parametrize("address", [None, "auto"])
@pytest.mark.parametrize("error", [ConnectionError("no answer"), RuntimeError("no answer"), ValueError("no answer")])
def test_ray_that_does_not_answer(played, address, error):
    played.refuse, place = error, "at 'auto'" if address else "on this machine"
    with pytest.raises(OSError, match=f"could not reach Ray {place}: no answer; see docs/cluster.md"):
        map_chunks(len, [[1]], "ray", address=address)
    assert played.ended == 0


@pytest.mark.parametrize(
    ("workers", "address", "initialized", "parallel", "limit"),
    [
        (None, None, False, 20, 80),
        (None, "auto", False, 20, 80),
        (3, None, False, 3, 80),  # it has three cores, and tasks that wait in line keep it busy
        (3, "auto", False, 3, 3),
        (3, None, True, 3, 3),
    ],
)
def test_how_many_tasks_a_cluster_has_at_once(played, workers, address, initialized, parallel, limit):
    played.resources, played.initialized = {"CPU": 20.0}, initialized
    with Ray(tell, print, None, workers, address) as engine:
        assert engine.parallel == parallel
        for number in range(limit):
            assert engine.free()
            engine.submit(Task(number, None))
        assert not engine.free()


@pytest.mark.parametrize("resources", [{}, {"CPU": 0.5}])
def test_a_cluster_that_has_no_cores_yet_shall_grow(played, resources):
    played.resources = resources
    with Ray(tell, print, address="auto") as engine:
        assert engine.parallel == 1 and engine._limit == 64


def test_news_are_taken_from_all_that_have_some_and_else_waited_for(played):
    events = []
    with Ray(tell, events.append) as engine:
        for number in range(3):
            engine.submit(Task(number, None))
        engine.poll(0.1)
        assert {event.task for event in events} == {0, 1, 2} and played.waits == [(3, 0)]
        drained(engine)
        engine.submit(Task(3, None))
        engine.submit(Task(4, None))
        played.silent, played.waits = True, []
        engine.poll(0.1)
        assert played.waits == [(2, 0), (1, 0.1)]


@pytest.mark.parametrize(("cpus", "gpus"), [(2, 1), (64, 0)])
def test_what_no_node_has_is_said_once_in_a_while(played, monkeypatch, cpus, gpus):
    now, events = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    played.silent, played.script = True, itertools.repeat([("reported", "half")])
    with Ray(tell, events.append) as engine:
        engine.submit(Task(0, None, cpus=8))
        now[0] = 31.0
        engine.poll(0.1)
        assert events == [], "a node would do, and is busy"
        engine.submit(Task(1, None, cpus=cpus, gpus=gpus))
        engine.submit(Task(2, None, cpus=100, gpus=100))
        for now[0], notes in ((60.0, 0), (62.0, 1), (63.0, 1), (93.0, 2)):
            engine.poll(0.1)
            assert len(events) == notes
        text = f"waiting for a node with {cpus} CPUs and {gpus} GPUs: none of the 1 here has them; add one, or ask for less"
        assert events[0] == (1, "noted", f"{text} (--device cpu)")
        for now[0], played.silent in ((130.0, False), (150.0, True)):
            engine.poll(0.1)
        assert [event.kind for event in events].count("noted") == 2, "there were news meanwhile"


def test_nodes_look_for_modules_where_this_process_does(played, monkeypatch, tmp_path):
    ours = ["", str(tmp_path), f"{sys.prefix}-mine", os.path.join(sys.prefix, "lib"), os.path.join(sys.base_prefix, "lib")]
    monkeypatch.setattr(sys, "path", ours)
    assert ray_engine._own_paths() == [os.getcwd(), str(tmp_path), f"{sys.prefix}-mine"]
    monkeypatch.setattr(sys, "path", ["first"])
    for _ in range(2):
        list(ray_engine._generate((pickle.dumps(tell), [str(tmp_path), str(tmp_path / "none")]), Task(0, None)))
    assert sys.path == ["first", str(tmp_path)], "those that are there, once, after their own"


def test_addresses(monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "create_connection", lambda at, timeout: asked.append((*at, timeout)) or socket.socket())
    for address in ("auto", "host:6379", "[::1]:6379"):
        ray_engine._check_address(address)
    assert asked == [("host", 6379, 10.0), ("::1", 6379, 10.0)]
    with pytest.raises(ValueError, match=r"got 'ray://host:10001': .*submit it as a job"):
        ray_engine._check_address("ray://host:10001")


def test_an_address_that_is_silent(monkeypatch):
    def wait(at, timeout):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", wait)
    with pytest.raises(OSError, match="could not reach a Ray cluster at 'host:6379': timed out; start one"):
        ray_engine._check_address("host:6379")


def test_an_address_where_nothing_answers(played):
    with pytest.raises(OSError, match="could not reach a Ray cluster at '127.0.0.1:1': Connection refused; start one with"):
        map_chunks(len, [[1]], "ray", address="127.0.0.1:1")
    assert played.begun == []
