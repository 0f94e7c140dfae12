"""Checkpoints of training: a run goes on exactly, and only from one of its own."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import nn

from squareloss import CrossEntropy, SquareLoss, Standardize, _checkpoint
from squareloss.lab.training import checkpoint, loop
from squareloss.lab.training.recipes import Recipe
from training_runs import SMALL, Stop, images, run, same_weights, stop

SCRIPT = """
import sys, time, torch
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
from pathlib import Path
from squareloss.lab.training import loop
from training_runs import run, SMALL
import dataclasses
slow = lambda epoch: time.sleep(0.5)
one = run(recipe=dataclasses.replace(SMALL, epochs=8), path=Path({path!r}), save_every=1, on_epoch=slow)
print("ready", flush=True)
try:
    loop.train(one)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_writes_a_checkpoint_in_the_middle_of_an_epoch(tmp_path):
    path, before = tmp_path / "run.safetensors", signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        loop.train(run(path=path, on_epoch=lambda row: signal.raise_signal(signal.SIGINT)))
    assert path.exists() and signal.getsignal(signal.SIGINT) is before
    again, whole = run(path=path), run()
    curve = loop.train(again)
    with ThreadPoolExecutor(1) as pool:  # where no signal can be caught
        expected = pool.submit(loop.train, whole).result()
    assert same_weights(again.network, whole.network) and not again.network.training
    told = [(row.epoch, row.loss, row.train_accuracy) for row in curve]
    assert told == [(row.epoch, row.loss, row.train_accuracy) for row in expected]


def test_ctrl_c_after_the_last_step_is_not_lost(tmp_path):
    """Whoever trains several networks one after the other wants to stop, and not only this one."""
    path, whole = tmp_path / "run.safetensors", run()
    last = lambda row: signal.raise_signal(signal.SIGINT) if row.epoch == 1 else None
    with pytest.raises(KeyboardInterrupt):
        loop.train(run(path=path, on_epoch=last))
    again = run(path=path)
    assert [row.loss for row in loop.train(again)] == [row.loss for row in loop.train(whole)]
    assert same_weights(again.network, whole.network)


def test_checkpoints_are_written_as_often_as_asked_and_at_the_end(monkeypatch):
    written = []
    monkeypatch.setattr(loop, "save_state", lambda run, optimiser, state: written.append((state.epoch, state.step)))
    loop.train(run(linear(), recipe=dataclasses.replace(SMALL, epochs=5), save_every=2))
    assert written == [(2, 0), (4, 0), (5, 0)]


@pytest.fixture
def ctrl_c():
    """The handler that Python has in the foreground; the tests may run in the background, where Ctrl-C is ignored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, previous)


def test_a_second_ctrl_c_interrupts_at_once_and_none_leaves_the_handler_as_it_was(ctrl_c):
    with loop.interruptible() as interrupted:
        assert signal.getsignal(signal.SIGINT) is not ctrl_c
        signal.raise_signal(signal.SIGINT)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with loop.interruptible():
        pass
    assert signal.getsignal(signal.SIGINT) is ctrl_c


@pytest.mark.parametrize(("name", "code"), [("SIGKILL", -signal.SIGKILL), ("SIGINT", 130)])
def test_a_killed_run_goes_on_to_the_same_weights_bit_for_bit(tmp_path, name, code):
    path = tmp_path / "run.safetensors"
    script = textwrap.dedent(SCRIPT).format(tests=os.path.dirname(__file__), path=str(path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        while not path.exists():
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        assert process.wait(60) == code
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        recipe = dataclasses.replace(SMALL, epochs=8)
        whole, resumed = run(recipe=recipe), run(recipe=recipe, path=path)
        loop.train(whole)
        curve = loop.train(resumed)
    finally:
        torch.set_num_threads(threads)
    assert same_weights(whole.network, resumed.network)
    assert [row.epoch for row in curve] == list(range(8))


def test_tied_weights_are_kept_and_stay_tied(tmp_path):
    def tied():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192), nn.Linear(192, 3))
        layers[3].weight = layers[1].weight
        return layers

    path = tmp_path / "run.safetensors"
    with pytest.raises(Stop):
        loop.train(run(tied(), path=path, save_every=1, on_epoch=stop))
    whole, resumed = run(tied()), run(tied(), path=path)
    loop.train(whole)
    loop.train(resumed)
    assert same_weights(whole.network, resumed.network)
    assert resumed.network[3].weight is resumed.network[1].weight


def test_seconds_go_on_where_they_were(tmp_path):
    one = run(path=tmp_path / "run.safetensors")
    loop.save_state(one, loop.make_optimiser(one.network, one.recipe), loop.State(seconds=1000.0))
    curve = loop.train(run(path=one.path))
    assert 1000 < curve[0].seconds < curve[1].seconds < 1100


def test_dropout_resumes_exactly(tmp_path):
    def dropout():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Dropout(), nn.Linear(20, 3))

    path = tmp_path / "run.safetensors"
    first = dataclasses.replace(SMALL, epochs=4)

    with pytest.raises(Stop):
        loop.train(run(dropout(), recipe=first, path=path, save_every=1, on_epoch=stop))
    whole, resumed = run(dropout(), recipe=first), run(dropout(), recipe=first, path=path)
    loop.train(whole)
    loop.train(resumed)
    assert same_weights(whole.network, resumed.network)


def linear(width=5, after=nn.ReLU):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(192, width), after(), nn.Linear(width, 3))


@pytest.mark.parametrize(
    "other",
    [
        {"network": linear(6)},
        {"network": linear(after=nn.Sigmoid)},
        {"loss": SquareLoss(weight=torch.tensor([1.0, 2.0, 4.0]))},
        {"loss": SquareLoss(weight=torch.tensor([1.0, 2.0, 3.0]), ignore_index=0)},
        {"recipe": dataclasses.replace(SMALL, lr=0.04)},
        {"seed": 1},
        {"preprocess": Standardize([0.0] * 3, [2.0] * 3)},
        {"y": 2 - images()[1]},
        {"x": 255 - images()[0]},
    ],
    ids=["width", "layer", "weight", "ignore_index", "recipe", "seed", "preprocess", "labels", "samples"],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, other):
    path = tmp_path / "run.safetensors"
    same = {"network": linear(), "loss": SquareLoss(weight=torch.tensor([1.0, 2.0, 3.0])), "recipe": SMALL, "path": path}
    first = run(preprocess=Standardize([0.0] * 3, [1.0] * 3), **same)
    loop.train(first)
    again = dataclasses.replace(first, network=linear())
    assert len(loop.train(again)) == 2
    assert same_weights(first.network, again.network)
    with pytest.raises(ValueError, match="the network, loss, recipe, seed or data differ"):
        loop.train(dataclasses.replace(first, **{"network": linear(), **other}))


def test_a_checkpoint_of_another_version_is_said_to_be(tmp_path):
    path = tmp_path / "run.safetensors"
    checkpoint.save(path, {"a": torch.zeros(1)}, {"format": 1, "fingerprint": run().fingerprint, "run": "resnet8"})
    with pytest.raises(ValueError, match="expected a checkpoint of format 2 in .*, got 1, of another version"):
        loop.train(run(path=path))


def test_a_checkpoint_that_can_not_be_written_is_an_error_of_the_system(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="could not write .*: No space left on device; what was there before is intact"):
        loop.train(run(path=tmp_path / "run.safetensors"))
    assert list(tmp_path.iterdir()) == []


def test_tensors_of_the_same_bytes_but_another_shape_or_dtype_are_another_run():
    same = [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.int32)]
    assert len({checkpoint.fingerprint([], [tensor]) for tensor in same}) == 3


def test_two_processes_that_save_at_once_do_not_take_each_others_file(tmp_path, monkeypatch):
    path, write = tmp_path / "run.safetensors", _checkpoint.write_tensors

    def interleaved(*arguments):
        write(*arguments)
        if os.getpid() == 1:
            monkeypatch.setattr(os, "getpid", lambda: 2)
            checkpoint.save(path, {"a": torch.full((1,), 2.0)}, {"fingerprint": "x"})

    monkeypatch.setattr(_checkpoint, "write_tensors", interleaved)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    checkpoint.save(path, {"a": torch.full((1,), 1.0)}, {"fingerprint": "x"})
    assert checkpoint.load(path, "x")[0]["a"] == 1 and list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    path, synced = tmp_path / "run.safetensors", []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append((os.fstat(opened).st_ino, path.exists())))
    checkpoint.save(path, {"a": torch.zeros(1)}, {"fingerprint": "x"})
    assert synced == [(path.stat().st_ino, False)]


def test_checkpoints_can_be_read_by_whom_the_umask_lets(tmp_path):
    path, plain = tmp_path / "run.safetensors", tmp_path / "plain"
    loop.train(run(path=path))
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_bad_checkpoints_and_bad_input(tmp_path):
    path = tmp_path / "run.safetensors"
    loop.train(run(path=path))
    with pytest.raises(ValueError, match="one of resnet8, SquareLoss"):
        loop.train(run(loss=CrossEntropy(), path=path))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged"):
        loop.train(run(path=path))
    for facts in ("[]", "{}", "null", '{"format": [2]}', '{"format": 2, "fingerprint": []}', "{"):
        path.write_bytes(save({"a": torch.ones(1)}, {"facts": facts}))
        with pytest.raises(ValueError, match=r"run\.safetensors, got .*delete (it|the file) to start anew"):
            loop.train(run(path=path))
    with pytest.raises(ValueError, match="batch_size <= 100.*got 101"):
        loop.train(run(recipe=dataclasses.replace(SMALL, batch_size=101)))
    with pytest.raises(ValueError, match="Available: step, cosine, linear, constant"):
        Recipe(epochs=1, batch_size=1, lr=1.0, schedule="exponential")
    with pytest.raises(ValueError, match="lr > 0, got 0"):
        Recipe(epochs=1, batch_size=1, lr=0)
