"""Leases: one holder at a time, whoever dies when."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from squareloss.lab.runs import leases as module
from squareloss.lab.runs.leases import Leases
from squareloss.lab.runs.store import StoreError


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


def failing(code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


def test_one_holder_until_it_is_given_back(tmp_path):
    with Leases(tmp_path / "new" / "l") as first, Leases(tmp_path / "new" / "l") as second:
        assert first.acquire("job") and not second.acquire("job") and second.acquire("other")
        assert first.mine("job") and not second.mine("job")
        assert second.holder("job") == f"process {os.getpid()} on {module.platform.node()}"
        first.release("job")
        assert second.holder("job") is None and second.acquire("job") and not first.acquire("job")
    assert list((tmp_path / "new" / "l").iterdir()) == [], "leaving gives everything back"


@pytest.mark.parametrize(
    ("owner", "name", "after"), [(module, "_create", True), (Path, "unlink", False), (Leases, "release", False)]
)
def test_ctrl_c_while_a_lease_is_got_or_given_back_leaves_none(tmp_path, monkeypatch, owner, name, after):
    real, previous = getattr(owner, name), signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(*arguments, **options):
        done = real(*arguments, **options) if after else None
        signal.raise_signal(signal.SIGINT)
        return done if after else real(*arguments, **options)

    try:
        with pytest.raises(KeyboardInterrupt), Leases(tmp_path / "l") as leases:
            assert leases.acquire("first") and leases.acquire("second")
            monkeypatch.setattr(owner, name, interrupted)
            leases.acquire("third")
            if name == "unlink":
                leases.release("first")
    finally:
        signal.signal(signal.SIGINT, previous)
    assert list((tmp_path / "l").iterdir()) == []


def test_the_own_lease_goes_after_the_void_ones(tmp_path, monkeypatch):
    """Were it gone before them, it could be made again by someone who saw them long ago."""
    paths, gone, unlink = [forge(tmp_path / "l", "job", number, pid=dead_pid()) for number in (9, 10)], [], Path.unlink
    with Leases(tmp_path / "l") as leases:
        assert leases.acquire("job")
        found = [leases.held["job"], *paths, paths[0].with_name("job.8")]
        monkeypatch.setattr(leases, "_all", lambda key: found)
        monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: gone.append(path.name) or unlink(path, missing_ok))
        leases.release("job")
    assert gone == ["job.8", "job.9", "job.10", "job.11"], "also if one of them is gone already"


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


def test_silence_ends_a_lease_though_a_clock_was_set_back(tmp_path, monkeypatch):
    path, ahead, now = forge(tmp_path / "l", "job", place=["elsewhere"]), time.time() + 5000, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Leases(tmp_path / "l", expiry=60.0) as leases:
        for now[0], touched in ((0.0, ahead), (50.0, ahead), (70.0, ahead + 10), (129.0, ahead + 10)):
            os.utime(path, (touched, touched))
            assert not leases.acquire("job")
        now[0] = 131.0
        assert leases.acquire("job")


@pytest.mark.parametrize("text", ["", '{"tok', "[1]"])
def test_a_lease_that_was_cut_short_counts_until_it_is_old(tmp_path, text):
    path = forge(tmp_path / "l", "job")
    path.write_text(text)
    with Leases(tmp_path / "l", expiry=60.0) as leases:
        assert not leases.acquire("job")
        age(path, 70)
        assert leases.acquire("job")


def test_a_lease_that_can_not_be_read_counts(tmp_path, monkeypatch):
    forge(tmp_path / "l", "job", pid=dead_pid())
    monkeypatch.setattr(Path, "read_bytes", failing(errno.EACCES))
    with Leases(tmp_path / "l") as leases:
        assert not leases.acquire("job") and leases.holder("job") == "process ? on ?"


def test_the_highest_number_counts_and_other_files_do_not(tmp_path):
    forge(tmp_path / "l", "job", 9, pid=dead_pid())
    (tmp_path / "l" / "job.bak").touch()
    with Leases(tmp_path / "l") as leases:
        latest = forge(tmp_path / "l", "job", 10)
        assert not leases.acquire("job")
        forge(tmp_path / "l", "job", 10, pid=dead_pid())
        assert leases.acquire("job") and leases.held["job"] == latest.with_name("job.11")
    assert [path.name for path in (tmp_path / "l").iterdir()] == ["job.bak"]


def test_a_process_is_known_by_when_it_started_and_where():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert int(module._process_start(process.pid)) > int(module._process_start(os.getpid()))
    finally:
        process.communicate()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert module._identity()["place"] == [module.platform.node(), boot, os.readlink("/proc/self/ns/pid")]


def test_a_system_that_tells_nothing_of_processes_goes_by_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "read_text", failing(errno.ENOENT))
    monkeypatch.setattr(os, "readlink", failing(errno.ENOENT))
    with Leases(tmp_path / "l") as first, Leases(tmp_path / "l", expiry=60.0) as second:
        assert first.acquire("job") and not second.acquire("job")
        age(first.held["job"], 70)
        assert second.acquire("job") and not first.mine("job")


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


def test_a_heartbeat_goes_on_when_leases_are_lost_and_got_meanwhile(tmp_path, monkeypatch):
    leases, touched = Leases(tmp_path, heartbeat=0.0), []

    def touch(path):
        touched.append(path.name)
        if len(touched) == 1:
            leases.acquire("third")
            raise FileNotFoundError(path)
        if path.name == "third.0":
            leases._stop.set()

    monkeypatch.setattr(os, "utime", touch)
    assert leases.acquire("first") and leases.acquire("second")
    leases._beat()
    assert touched == ["first.0", "second.0", "first.0", "second.0", "third.0"]


def test_a_few_missed_beats_and_a_slow_file_system_do_not_void_a_lease():
    assert module.EXPIRY >= 60 + 5 * module.HEARTBEAT


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


def test_who_slept_through_a_change_of_hands_has_nothing_though_the_file_is_called_the_same(tmp_path):
    with Leases(tmp_path / "l") as sleeper, Leases(tmp_path / "l") as other:
        sleeper.acquire("job")
        sleeper.held["job"].unlink()
        assert other.acquire("job") and other.held == sleeper.held and not sleeper.mine("job")
        sleeper.release("job")
        assert other.mine("job")


@pytest.mark.parametrize("seen", [None, {"place": ["elsewhere"]}])
def test_a_lease_that_is_given_back_while_it_is_looked_at(tmp_path, monkeypatch, seen):
    path, real = forge(tmp_path / "l", "job"), module._content

    def content(at):
        found = seen if path.exists() else real(at)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(module, "_content", content)
    with Leases(tmp_path / "l") as leases:
        assert not leases.acquire("job") and leases.holder("job") is None and leases.acquire("job")
        forge(tmp_path / "l", "job")
        assert leases.holder("job") is None


def test_a_disk_that_refuses_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="could not make the folder"), Leases(tmp_path / "file"):
        pass
    descriptors = []

    def write(descriptor, content):
        descriptors.append(descriptor)
        failing(errno.ENOSPC)()

    with Leases(tmp_path / "l") as leases:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            with pytest.raises(StoreError, match=r"could not write .*job.0: the disk is full"):
                leases.acquire("job")
        assert list((tmp_path / "l").iterdir()) == [] and not leases.mine("job")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptors[0])
        forge(tmp_path / "l", "job", place=["elsewhere"])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "touch", failing(errno.EROFS))
            with pytest.raises(StoreError, match="could not write .*: the file system is read-only"):
                leases.acquire("job")


def test_a_lease_that_a_disk_does_not_let_go_is_void_when_its_process_ends(tmp_path, monkeypatch):
    void = [forge(tmp_path / "l", "job", pid=dead_pid()), tmp_path / "l" / "job.1"]
    with monkeypatch.context() as patch, Leases(tmp_path / "l") as leases:
        assert leases.acquire("job")
        patch.setattr(Path, "unlink", failing(errno.EROFS))
        leases.release("job")
        assert not leases.mine("job")
    assert sorted((tmp_path / "l").iterdir()) == void, "and the error that came before is the one that is told"


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
