"""Several processes on one results folder, and processes that are interrupted, ended or killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from squareloss.lab.runs import Store, execute
from toy_study import Toy

HERE = Path(__file__).parent


@pytest.fixture
def toy(tmp_path):
    return lambda **options: Toy(tmp_path / "log.txt", **options)


def main(folder, cells, seconds, engine, ctrl_c=True):
    """What the processes below do: as the command line would. If there is a file `hold`, they wait until it is gone."""
    Path(folder, f"ready-{os.getpid()}").touch()
    wait_for(lambda: not Path(folder, "hold").exists())
    if ctrl_c:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome = execute(Toy(Path(folder, "log.txt"), int(cells), float(seconds)), "smoke", [0], Path(folder, "r"), engine)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(1 if outcome.failures else 0)


def start(folder, cells, seconds, engine="local", ctrl_c=True):
    code = f"import test_runs_processes; test_runs_processes.main({str(folder)!r}, {cells}, {seconds}, {engine!r}, {ctrl_c})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=HERE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def finished(folder):
    return sorted((folder / "r").glob("toy/*/seed0.json"))


def test_two_processes_share_the_work(toy, tmp_path):
    (tmp_path / "hold").touch()
    both = [start(tmp_path, 30, 0.05) for _ in range(2)]
    wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    (tmp_path / "hold").unlink()
    assert [process.wait(60) for process in both] == [0, 0], [process.stderr.read() for process in both]
    for process in both:
        process.stderr.close()
    assert len(finished(tmp_path)) == 30 and set(toy().attempts().values()) == {1}
    assert len({line.split()[1] for line in toy().lines() if not line.startswith("call")}) == 2, "both had a part"
    assert list((tmp_path / "r" / ".leases").iterdir()) == []


def content(path):
    """A result but for times and dates, and for what may be changed while the tests run."""
    own = ("seconds", "date", "command", "commit")
    return {key: value for key, value in json.loads(path.read_text()).items() if key not in own}


def test_kill_9_and_the_same_command_again(toy, tmp_path):
    """Nothing done is redone, nothing is lost, and the end is that of a run nobody disturbed."""
    process = start(tmp_path, 20, 0.2)
    wait_for(lambda: len(toy().attempts()) >= 6)  # it is in the middle of the sixth job
    process.kill()
    process.wait()
    process.stderr.close()
    done = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in finished(tmp_path)}
    assert 5 <= len(done) < 20 and list((tmp_path / "r" / ".leases").iterdir()), "it died holding a lease"

    begun = time.monotonic()
    outcome = execute(toy(cells_=20), "smoke", [0], tmp_path / "r")
    assert time.monotonic() - begun < 60, "the dead process's lease must not be waited for"
    assert outcome.new == 20 - len(done)
    assert all((path.read_bytes(), path.stat().st_mtime_ns) == before for path, before in done.items())
    undisturbed = execute(Toy(tmp_path / "other.txt", 20), "smoke", [0], tmp_path / "u")
    assert [content(r.path) for r in outcome.records] == [content(r.path) for r in undisturbed.records]
    attempts = toy().attempts()
    assert sum(attempts.values()) - len(attempts) <= 1, "at most the job that was running is done again"
    assert not list((tmp_path / "r").rglob("*.writing*")) and list((tmp_path / "r" / ".leases").iterdir()) == []


@pytest.mark.parametrize(
    ("engine", "sign"), [("local", signal.SIGINT), ("local", signal.SIGTERM), ("processes", signal.SIGINT)]
)
def test_ctrl_c_and_sigterm_end_the_command_with_130(toy, tmp_path, engine, sign):
    process = start(tmp_path, 100, 0.1, engine)
    wait_for(lambda: len(finished(tmp_path)) >= 2)
    process.send_signal(sign)
    assert process.wait(30) == 130
    assert process.stderr.read() == "", "no traceback of any process"
    process.stderr.close()
    assert 2 <= len(finished(tmp_path)) < 100 and list((tmp_path / "r" / ".leases").iterdir()) == []
    assert len(Store(tmp_path / "r").records()) == len(finished(tmp_path)), "all of them whole"


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_sigterm_ends_a_command_in_the_background_too(toy, tmp_path, engine):
    """A shell's background jobs ignore Ctrl-C; SIGTERM is what ends them, and it must not be turned into what they ignore."""
    process = start(tmp_path, 100, 0.1, engine, ctrl_c=False)
    wait_for(lambda: len(finished(tmp_path)) >= 2)
    process.send_signal(signal.SIGTERM)
    status = process.wait(30)
    process.stderr.close()
    assert status == 130 and len(finished(tmp_path)) < 100 and list((tmp_path / "r" / ".leases").iterdir()) == []


def test_workers_die_with_the_process_that_started_them(toy, tmp_path):
    process = start(tmp_path, 4, 60.0, "processes")
    wait_for(lambda: len(toy().attempts()) == 2)
    workers = {int(line.split()[1]) for line in toy().lines() if not line.startswith("call")}
    assert process.pid not in workers
    process.kill()
    process.wait()
    process.stderr.close()
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and b"spawn" in _cmdline(pid) for pid in workers), 15)


def _cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_thread_may_execute_too(toy, tmp_path):
    # signal handlers can't be set there
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(execute(toy(), "smoke", [0], tmp_path / "r")))
    thread.start()
    thread.join()
    assert outcomes[0].new == 4
