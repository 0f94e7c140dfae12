"""Leases: one holder at a time, whoever dies when."""

import json
import os
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


def test_many_take_over_at_once_and_one_gets_it(tmp_path):
    # threads die by leaving their lease behind under the number of a dead process, again and again
    folder, pid, holders, most, rounds = tmp_path / "l", dead_pid(), [0], [0], [0]
    guard, errors = threading.Lock(), []

    def contend():
        with Leases(folder) as mine:
            for i in range(60):
                if not mine.acquire("job"):
                    continue
                with guard:
                    holders[0] += 1
                    rounds[0] += 1
                    most[0] = max(most[0], holders[0])
                if not mine.mine("job"):
                    errors.append("a lease was lost while its holder lived")
                with guard:
                    holders[0] -= 1
                if i % 2:
                    mine.release("job")
                else:
                    path = mine.held.pop("job")
                    path.write_text(json.dumps({**module._identity(), "pid": pid}))

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and most[0] == 1 and rounds[0] > 20
