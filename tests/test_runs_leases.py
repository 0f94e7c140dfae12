"""Leases: one holder at a time, whoever dies when."""

import json
import os
import random
import subprocess
import sys
import threading
import time

import pytest

from squareloss.lab.runs import leases as module
from squareloss.lab.runs.leases import Leases


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def forge(folder, key, number=0, **changes):
    """A lease file as another process would leave it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{key}.{number}"
    path.write_text(json.dumps({"token": "theirs", **module._identity(), **changes}))
    return path


def age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_one_holder_until_it_is_given_back(tmp_path):
    with Leases(tmp_path / "l") as first, Leases(tmp_path / "l") as second:
        assert first.acquire("job") and not second.acquire("job") and second.acquire("other")
        assert first.mine("job") and not second.mine("job")
        assert second.holder("job") == f"process {os.getpid()} on {module.platform.node()}"
        first.release("job")
        assert second.holder("job") is None and second.acquire("job") and not first.acquire("job")
    assert list((tmp_path / "l").iterdir()) == [], "leaving gives everything back"


def test_a_zombie_holds_nothing(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        forge(tmp_path / "l", "job", pid=process.pid, start=module._process_start(process.pid))
        with Leases(tmp_path / "l") as leases:
            assert not leases.acquire("job")
            process.stdin.close()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
            assert leases.acquire("job")
    finally:
        process.wait()


def test_a_dead_process_of_this_machine_loses_its_lease_at_once(tmp_path):
    forge(tmp_path / "l", "dead", pid=dead_pid())
    forge(tmp_path / "l", "reused", start="12345")  # our number, but it was another process that had it
    with Leases(tmp_path / "l") as leases:
        assert leases.acquire("dead") and leases.acquire("reused")
        leases.release("dead")
        leases.release("reused")
        assert list((tmp_path / "l").iterdir()) == []


@pytest.mark.parametrize("changes", [{"place": ["elsewhere", "x", "y"], "pid": 1}, {"start": None}])
def test_silence_ends_a_lease_that_cannot_be_looked_up(tmp_path, changes):
    path = forge(tmp_path / "l", "job", **changes)
    with Leases(tmp_path / "l", expiry=60.0) as leases:
        age(path, 50)
        assert not leases.acquire("job")
        age(path, 70)
        assert leases.acquire("job")


def test_a_lease_that_was_cut_short_counts_until_it_is_old(tmp_path):
    path = forge(tmp_path / "l", "job")
    path.write_text('{"tok')
    with Leases(tmp_path / "l", expiry=60.0) as leases:
        assert not leases.acquire("job")
        age(path, 70)
        assert leases.acquire("job")


@pytest.mark.parametrize("pid", [None, "self", "../../etc/passwd", []])
def test_a_lease_may_say_anything(tmp_path, pid):
    forge(tmp_path / "l", "job", pid=pid)
    with Leases(tmp_path / "l") as leases:
        assert leases.holder("job") is None and leases.acquire("job")


def test_the_clock_is_the_file_systems(tmp_path, monkeypatch):
    forge(tmp_path / "l", "job", place=["elsewhere"])
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with Leases(tmp_path / "l") as leases:
        assert not leases.acquire("job")
    assert sorted(p.name for p in (tmp_path / "l").iterdir()) == ["job.0"], "and the file it is read from is removed"


def test_a_heartbeat_keeps_a_lease(tmp_path):
    with Leases(tmp_path / "l", heartbeat=0.05) as leases:
        leases.acquire("job")
        age(leases.held["job"], 500)
        deadline = time.monotonic() + 10
        while time.time() - leases.held["job"].stat().st_mtime > 100 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert time.time() - leases.held["job"].stat().st_mtime < 100


def test_who_slept_too_long_knows_that_the_lease_is_lost(tmp_path):
    with Leases(tmp_path / "l") as sleeper, Leases(tmp_path / "l", expiry=60.0) as other:
        sleeper.acquire("job")
        path = sleeper.held["job"]
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "place": ["elsewhere"]}))
        age(path, 70)
        assert other.acquire("job") and other.mine("job") and not sleeper.mine("job")
        sleeper.release("job")
        assert other.mine("job"), "giving back what is lost takes nothing from the new holder"


class Turns:
    """Threads that take turns in an order drawn by a seed, and change at every look at the folder and every change of it."""

    def __init__(self, seed, threads):
        self.draw, self.live, self.parked = random.Random(seed), threads, []
        self.next, self.last, self.changed, self.mine = None, None, threading.Condition(), threading.local()

    def step(self):
        name = getattr(self.mine, "name", None)
        if name is None:
            return
        with self.changed:
            self.parked.append(name)
            self._choose()
            self.changed.wait_for(lambda: self.next == name)
            self.next = None
            self.parked.remove(name)

    def end(self):
        with self.changed:
            self.live -= 1
            self._choose()

    def _choose(self):
        if self.parked and len(self.parked) == self.live:
            if self.last not in self.parked or self.draw.random() < 0.2:  # long runs of one let the others see old things
                self.last = self.draw.choice(sorted(self.parked))
            self.next = self.last
            self.changed.notify_all()


def stepping(turns, function):
    def stepped(*arguments):
        turns.step()
        return function(*arguments)

    return stepped


def compete(folder, seed, pid, monkeypatch, actors=3, tries=4):
    """Actors get the lease, give it back or die with it, in an order drawn by the seed: who held it, and who with others."""
    turns, holders, held, clashes = Turns(seed, actors), [], [], []

    def act(name):
        turns.mine.name, draw = name, random.Random(f"{seed} {name}")
        for _ in range(tries):
            lease = Leases(folder)
            if lease.acquire("job"):
                holders.append(name)
                lease.mine("job")  # a few looks, in which the others have turns
                held.append(name)
                clashes.extend([tuple(holders)] if len(holders) > 1 else [])
                holders.remove(name)
                if draw.random() < 0.5:
                    lease.release("job")
                else:
                    lease.held["job"].write_text(json.dumps({**lease._me, "pid": pid}))
        turns.end()

    with monkeypatch.context() as patch:
        for name in ("_create", "_content", "_number"):  # _number is called before each file that is removed
            patch.setattr(module, name, stepping(turns, getattr(module, name)))
        patch.setattr(Leases, "_all", stepping(turns, Leases._all))
        threads = [threading.Thread(target=act, args=(i,), daemon=True) for i in range(actors)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), f"seed {seed} hangs"
    return held, clashes


def test_no_order_of_events_gives_two_holders(tmp_path, monkeypatch):
    pid, held = dead_pid(), 0
    for seed in range(400):
        folder = tmp_path / str(seed)
        folder.mkdir()
        got, clashes = compete(folder, seed, pid, monkeypatch)
        assert not clashes, f"two held the lease at once with seed {seed}"
        held += len(got)
    assert held > 800, "there must be something to see"
