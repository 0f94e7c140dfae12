"""Cells, their hashes, and the results folder: what is written is read back, and damage stays where it is."""

import errno
import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file

from squareloss.lab.runs import Cell, Job, Result, Store, StoreError, expand, facts
from squareloss.lab.runs import store as store_module
from squareloss.lab.runs.study import finite, plain, unfinite

CELL = Cell("simplex", {"task": "toy", "lr": 0.1})
JOB = Job(CELL, 0)


# ---- cells -----------------------------------------------------------------------------------------------------------


def test_the_hash_is_of_the_values_alone():
    same = [
        Cell("a", {"task": "t", "lr": 1, "widths": [1, 2]}),
        Cell("b", {"widths": (1, 2.0), "lr": np.float32(1.0), "task": "t"}, group="g", cpus=4, gpus=1),
        Cell("c", {"task": "t", "lr": torch.tensor(1.0), "widths": np.array([1, 2])}),
    ]
    assert len({cell.hash() for cell in same}) == 1
    other = [{"task": "u", "lr": 1, "widths": [1, 2]}, {"task": "t", "lr": 1, "widths": [2, 1]}, {"task": "t", "lr": True}]
    assert len({same[0].hash(), *(Cell("a", spec).hash() for spec in other)}) == 4
    assert Cell("a", {"task": "t", "eps": math.inf}).hash() != Cell("a", {"task": "t", "eps": -math.inf}).hash()


def test_the_hash_stays_what_it_was():
    # results of earlier versions are found by it: it must never change
    assert Cell("a", {"task": "t", "lr": 0.1, "deep": {"b": [1.0, None, "x"]}}).hash() == "30eb80114167"


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "a b", "a\n", "x" * 101, "ü"])
def test_names_that_are_no_file_names_are_refused(name):
    with pytest.raises(ValueError, match="expected a cell's name"):
        Cell(name, {"task": "t"})


def test_specs_must_say_all_in_plain_values():
    with pytest.raises(ValueError, match="'task'"):
        Cell("a", {"lr": 0.1})
    with pytest.raises(TypeError, match="plain JSON values in the spec of cell 'a', got object"):
        Cell("a", {"task": "t", "x": object()})
    with pytest.raises(TypeError, match="names as keys"):
        Cell("a", {"task": "t", "x": {1: 2}})


class Listed:
    name = "listed"

    def __init__(self, *cells):
        self._cells = list(cells)

    def cells(self, scale):
        return self._cells


def test_expand_refuses_what_would_be_one_file():
    assert [job.name for job in expand(Listed(CELL), "smoke", [3, 5])] == ["simplex/seed3", "simplex/seed5"]
    with pytest.raises(ValueError, match="own name, got the same for a"):
        expand(Listed(Cell("a", {"task": "t"}), Cell("a", {"task": "u"})), "smoke", [0])
    with pytest.raises(ValueError, match="own spec, got the same for a, b"):
        expand(Listed(Cell("a", {"task": "t"}), Cell("b", {"task": "t"})), "smoke", [0])
    for seeds in ([1, 1], [-1], [0.5]):
        with pytest.raises(ValueError, match="expected seeds"):
            expand(Listed(CELL), "smoke", seeds)
    with pytest.raises(ValueError, match="Unknown scale 'big'. Available: smoke, laptop, paper"):
        expand(Listed(CELL), "big", [0])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats()
    | st.text(max_size=5).filter(lambda s: s[:1].islower()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_metrics_survive_json(value):
    text = json.dumps(finite(plain(value, "metrics")), allow_nan=False)
    assert repr(unfinite(json.loads(text))) == repr(value)  # repr: NaN is not equal to itself


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path):
    store = Store(tmp_path / "results")
    weights = {"w": torch.arange(3.0)}
    metrics = {"accuracy": torch.tensor(0.5), "nll": math.inf, "curve": np.array([1.0, 2.0]), "note": None}
    result = Result(JOB, metrics, "diverged", 1.25, {"model.safetensors": weights, "log.txt": b"abc"})
    assert not store.done("table1", JOB)
    path = store.write("table1", result)
    assert path == tmp_path / "results" / "table1" / f"simplex-{CELL.hash()}" / "seed0.json"
    record = store.read("table1", JOB)
    assert (
        store.done("table1", JOB) and store.studies() == ["table1"] and store.records("table1") == store.records() == [record]
    )
    assert record.metrics == {"accuracy": 0.5, "nll": math.inf, "curve": [1.0, 2.0], "note": None}
    assert (record.study, record.cell, record.seed, record.status) == ("table1", "simplex", 0, "diverged")
    assert record.seconds == 1.25 and record.spec == CELL.spec and record.hash == CELL.hash()
    assert record.command == facts.command() and record.commit == facts.commit()
    assert record.versions["torch"] == version("torch") and record.hardware["cores"] >= 1 and record.hardware["gpu"] is None
    assert load_file(record.artefact("model.safetensors"))["w"].equal(weights["w"])
    assert record.artefact("log.txt").read_bytes() == b"abc"
    with pytest.raises(ValueError, match="Available: log.txt, model.safetensors"):
        record.artefact("other")
    machine = {"versions": {"torch": "1"}, "hardware": {"gpu": "fast"}}
    store.write("elsewhere", Result(JOB, {}, machine=machine))
    there = store.read("elsewhere", JOB)
    assert {"versions": there.versions, "hardware": there.hardware} == machine, "that of the node it ran on"
    content = json.loads(path.read_bytes(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert content["format"] == 1 and os.path.sep not in content["command"].split()[0]


def test_names_of_studies_and_of_tensors_are_checked(tmp_path):
    store = Store(tmp_path / "new" / "results")
    with pytest.raises(ValueError, match="expected a study's name"):
        store.write("../elsewhere", Result(JOB, {}))
    with pytest.raises(ValueError, match="ends in .safetensors for an artefact of tensors, got 'model.pt'"):
        store.write("study", Result(JOB, {}, artefacts={"model.pt": {"w": torch.zeros(2)}}))
    assert not list(tmp_path.rglob("*.json"))


def test_artefacts_of_any_layout_become_bytes_that_travel():
    for content in (b"ab", bytearray(b"ab"), memoryview(b"ab")):
        encoded = store_module.encode("note.txt", content)
        assert type(encoded) is bytes and encoded == b"ab"
    weights = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    assert load(store_module.encode("w.safetensors", {"w": weights}))["w"].equal(weights)


def test_artefacts_are_not_taken_for_records_nor_lost_to_them(tmp_path):
    store = Store(tmp_path)
    store.write("s", Result(JOB, {}, artefacts={"curve.json": b"[]"}))
    assert [record.artefact("curve.json").read_bytes() for record in store.records()] == [b"[]"]
    store.path("s", JOB).unlink()
    assert store.studies() == store.records() == []
    for name in ("json", "log", "LOG", "json.corrupt"):
        with pytest.raises(
            ValueError, match=f"another file name for an artefact of simplex/seed0 than '{name}', which is taken"
        ):
            Result(JOB, {}, artefacts={name: b""})


def test_what_took_long_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    synced, store = [], Store(tmp_path)
    path = store.write("study", Result(JOB, {}, seconds=0.05))
    path.unlink()

    def sync(descriptor):
        synced.append((os.fstat(descriptor).st_size, [file.name for file in path.parent.glob("[!.]*")]))

    monkeypatch.setattr(os, "fsync", sync)
    store.write("study", Result(JOB, {}, seconds=0.05))
    assert not synced
    path.unlink()
    store.write("study", Result(JOB, {}, seconds=0.2, artefacts={"log.txt": b"abc"}))
    assert synced == [(3, []), (path.stat().st_size, ["seed0.log.txt"])]  # all of the artefact, and then of the record
    path = store.write_log("study", JOB, "why it failed")
    assert path.read_text() == "why it failed"


def test_a_checkout_gives_its_commit():
    source = os.path.dirname(facts.__file__)
    known = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if known.returncode:
        assert facts.commit() is None
    else:
        assert facts.commit().split("-")[0] == known.stdout.strip()


def test_a_write_that_fails_leaves_the_old_result_and_no_litter(tmp_path, monkeypatch):
    store = Store(tmp_path)
    path = store.write("s", Result(JOB, {"x": 1}))
    before = path.read_bytes()
    (store.scratch / JOB.key).mkdir(parents=True)
    monkeypatch.setattr(store_module.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="the disk is full.*Results written before are intact"):
        store.write("s", Result(JOB, {"x": 2}))
    with pytest.raises(StoreError, match="could not write .*seed0.log: the disk is full"):
        store.write_log("s", JOB, "why it failed")
    with pytest.raises(StoreError, match="could not write .*seed0.json: the disk is full"):
        store.adopt("t", JOB, store.read("s", JOB))
    assert path.read_bytes() == before and os.listdir(path.parent) == ["seed0.json"]
    assert os.listdir(store.path("t", JOB).parent) == [] and (store.scratch / JOB.key).exists(), "to go on from"
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="the disk is full"):
        store.write("s", Result(JOB, {"x": 2}))


def test_two_writes_of_one_file_do_not_meet_and_ctrl_c_leaves_nothing_of_one(tmp_path, monkeypatch):
    def meanwhile(descriptor):
        monkeypatch.setattr(os, "fsync", stopped)
        store_module.write_atomically(tmp_path / "file", b"other", sync=False)

    def stopped(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", meanwhile)
    store_module.write_atomically(tmp_path / "file", b"one")
    with pytest.raises(KeyboardInterrupt):
        store_module.write_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one" and os.listdir(tmp_path) == ["file"]


def test_an_error_is_explained_once_and_in_its_own_words_if_there_are_no_better_ones():
    for error, reason in ((OSError(errno.EIO, "Input/output error"), "Input/output error"), (OSError("odd"), "odd")):
        with pytest.raises(StoreError) as told, store_module.explained("write"), store_module.explained("write x"):
            raise error
        assert str(told.value) == f"could not write x: {reason}. Results written before are intact."


def test_a_damaged_file_that_can_not_be_moved_is_told(tmp_path):
    with pytest.raises(StoreError, match="could not rename .*seed0.json: the folder was deleted or moved meanwhile"):
        Store(tmp_path).set_aside("s", JOB)


def test_a_folder_stays_where_it_is_when_a_job_changes_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store("results")
    monkeypatch.chdir("/")
    assert store.folder == tmp_path / "results" and store.scratch == tmp_path / "results" / ".scratch"


DAMAGE = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(b"\0" * 400),
    "a list": lambda path: path.write_text("[1]"),
    "no metrics": lambda path: path.write_text(path.read_text().replace('"metrics"', '"metric"')),
    "no format": lambda path: path.write_text(path.read_text().replace('"format"', '"forma"')),
    "no date": lambda path: path.write_text(re.sub(r'"date": "[^"]*"', '"date": "<b>"', path.read_text())),
    "an artefact elsewhere": lambda path: path.write_text(
        path.read_text().replace('"artefacts": []', '"artefacts": ["/a.png"]')
    ),
    "an artefact without a name": lambda path: path.write_text(path.read_text().replace('"artefacts": []', '"artefacts": [1]')),
    "lists without end": lambda path: path.write_text(path.read_text().replace('"lr": 0.1', f'"lr": {"[" * 700 + "]" * 700}')),
    "another spec": lambda path: path.write_text(path.read_text().replace('"lr": 0.1', '"lr": "0.1"')),
    "deep": lambda path: path.write_text("[" * 100_000),
    "huge": lambda path: path.write_text(re.sub(r'"x": \d+', f'"x": {"9" * 400}', path.read_text())),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path, how):
    store = Store(tmp_path)
    paths = [store.write("s", Result(Job(CELL, seed), {"x": seed})) for seed in (0, 1)]
    DAMAGE[how](paths[0])
    with pytest.warns(UserWarning, match=f"{paths[0]}.*left out"):
        records = store.records()
    assert [record.metrics for record in records] == [{"x": 1}]
    assert not store.done("s", JOB) and store.done("s", Job(CELL, 1))


def test_a_result_of_another_cell_in_its_place_does_not_count(tmp_path):
    store = Store(tmp_path)
    other = Job(Cell("other", {"task": "other"}), 0)
    shutil.copy(store.write("s", Result(other, {})), store.write("s", Result(JOB, {})))
    assert not store.done("s", JOB)


def test_a_file_that_can_not_be_read_is_not_taken_for_damaged(tmp_path):
    store = Store(tmp_path)
    store.path("s", JOB).mkdir(parents=True)
    with pytest.raises(StoreError, match="could not read .*seed0.json: Is a directory"):
        store.done("s", JOB)
    with pytest.warns(UserWarning, match="could not read .*seed0.json: Is a directory; it is left out"):
        assert store.records() == []


def test_a_file_of_a_later_version_is_not_taken_for_damaged(tmp_path):
    store = Store(tmp_path)
    path = store.write("s", Result(JOB, {}))
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="format 2.*upgrade squareloss"):
        store.done("s", JOB)


def test_adopting_a_result_of_another_study(tmp_path):
    store, twin = Store(tmp_path), Job(Cell("twin", {"task": "toy", "lr": 0.1}), 0)
    store.write("first", Result(JOB, {"x": 1}, artefacts={"note.txt": b"abc"}))
    found = store.find_elsewhere("second", twin)
    store.adopt("second", twin, found)
    store.write("first", Result(Job(CELL, 3), {"x": 2}))
    log = store.write_log("second", Job(twin.cell, 3), "why it failed before")
    store.adopt("second", Job(twin.cell, 3), store.find_elsewhere("second", Job(twin.cell, 3)))  # and the folder is there
    assert not log.exists()
    assert [(r.seed, r.metrics) for r in store.records("second")] == [(0, {"x": 1}), (3, {"x": 2})]
    record = store.read("second", twin)
    assert (record.study, record.cell, record.metrics, record.date) == ("second", "twin", {"x": 1}, found.date)
    assert record.artefact("note.txt").read_bytes() == b"abc" and record.artefact("note.txt").parent == record.path.parent
    assert store.find_elsewhere("first", Job(CELL, 1)) is None


def test_two_processes_may_adopt_one_result_at_once(tmp_path, monkeypatch):
    store, twin, link = Store(tmp_path), Job(Cell("twin", {"task": "toy", "lr": 0.1}), 0), os.link
    store.write("first", Result(JOB, {"x": 1}, artefacts={"note.txt": b"abc"}))
    found = store.find_elsewhere("second", twin)

    def slow(source, target):
        assert not store.done("second", twin), "a record that is there is complete"
        monkeypatch.setattr(os, "link", link)
        store.adopt("second", twin, found)  # what the other process does meanwhile
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    path = store.adopt("second", twin, found)
    assert store.read("second", twin).artefact("note.txt").read_bytes() == b"abc"
    assert sorted(file.name for file in path.parent.iterdir()) == ["seed0.json", "seed0.note.txt"], "nothing is left over"


def test_a_result_is_adopted_without_an_artefact_that_was_deleted(tmp_path):
    store = Store(tmp_path)
    store.write("first", Result(JOB, {"x": 1}, artefacts={"note.txt": b"abc"}))
    found = store.find_elsewhere("second", JOB)
    found.artefact("note.txt").unlink()
    path = store.adopt("second", JOB, found)
    assert store.read("second", JOB).metrics == {"x": 1} and os.listdir(path.parent) == ["seed0.json"]


def test_an_artefact_is_adopted_where_there_are_no_links(tmp_path, monkeypatch):
    def unsupported(source, target):
        raise OSError(errno.EPERM, "no links here")

    synced = []
    monkeypatch.setattr(os, "link", unsupported)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    test_adopting_a_result_of_another_study(tmp_path)
    assert synced.count(len(b"abc")) == 2, "the artefact and its copy, before the records that name them"


def test_folders_that_are_not_there(tmp_path):
    assert Store(tmp_path, create=False).records() == []
    with pytest.raises(StoreError, match="found none"):
        Store(tmp_path / "none", create=False)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="got a file"):
        Store(tmp_path / "file")


# ---- disks that refuse -----------------------------------------------------------------------------------------------


@contextmanager
def mounted(folder, options):
    """A small file system in memory at a folder; skips where this process may not mount."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this process may not mount file systems")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


needs_mount = pytest.mark.skipif(shutil.which("mount") is None or sys.platform != "linux", reason="needs Linux's mount")


@needs_mount
def test_a_full_disk(tmp_path):
    with mounted(tmp_path / "disk", "size=64k") as disk:
        store = Store(disk)
        written = store.write("s", Result(JOB, {"x": 1}))
        before = written.read_bytes()
        with pytest.raises(StoreError, match=r"could not write .*seed1.json: the disk is full; free some space"):
            store.write("s", Result(Job(CELL, 1), {}, artefacts={"big.bin": b"\0" * 200_000}))
        assert written.read_bytes() == before and [r.seed for r in store.records()] == [0]
        assert sorted(os.listdir(written.parent)) == ["seed0.json"], "half a file must not stay"
        with pytest.raises(OSError, match="No space"), (disk / "rest").open("wb", buffering=0) as rest:
            while True:
                rest.write(b"\0" * 4096)
        with pytest.raises(StoreError, match="could not write to the results folder .*: the disk is full"):
            store.check_writable()


@needs_mount
def test_a_read_only_folder(tmp_path):
    with mounted(tmp_path / "disk", "size=64k") as disk:
        Store(disk).write("s", Result(JOB, {"x": 1}))
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        store = Store(disk)
        assert [r.metrics for r in store.records()] == [{"x": 1}]
        with pytest.raises(StoreError, match="read-only; choose another folder"):
            store.check_writable()
        with pytest.raises(StoreError, match="read-only; choose another folder"):
            store.write("s", Result(Job(CELL, 1), {}))
        with pytest.raises(StoreError, match="could not make the results folder .*read-only"):
            Store(disk / "new")


def test_a_limit_on_the_size_of_files(tmp_path):
    # as a full disk, for systems without mounts: the write stops half way
    store = Store(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoreError, match="size limit of this process"):
            store.write("s", Result(JOB, {}, artefacts={"big.bin": b"\0" * 200_000}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not store.done("s", JOB) and os.listdir(store.path("s", JOB).parent) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_someone_else(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="not yours to write to"):
            Store(tmp_path).check_writable()
    finally:
        tmp_path.chmod(0o700)


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    store_module.write_atomically(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    assert (tmp_path / "pipe").is_fifo()
    os.close(reader)


def test_a_file_that_is_open_already_is_written_to(tmp_path):
    """As a shell opens it: > file."""
    with (tmp_path / "file").open("wb") as opened:
        for name in ("/dev/fd", "/proc/self/fd"):
            store_module.write_atomically(Path(name, str(opened.fileno())), b"content\n")
    assert (tmp_path / "file").read_bytes() == b"content\ncontent\n"
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert not store_module.is_stream(tmp_path / "link"), "a link between files is none"
    assert not store_module.is_stream(tmp_path), "nor is a folder"
