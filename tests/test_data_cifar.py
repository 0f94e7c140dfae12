"""CIFAR in both official layouts, on small files of the same format."""

import hashlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from squareloss.lab.data import cifar, load
from squareloss.lab.data.cifar import File, Layout
from squareloss.lab.data.pickles import read_pickle


def _samples(n, classes, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), np.arange(n) % classes


def _python2_pickle(x, labels, key=b"labels"):
    """A pickle as Python 2 wrote the official files: protocol 2, byte strings everywhere."""

    def string(s):
        return b"U" + bytes([len(s)]) + s if len(s) < 256 else b"T" + struct.pack("<i", len(s)) + s

    def number(i):
        return b"J" + struct.pack("<i", i)

    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R(K\x03" + string(b"|") + b"NNN" + number(-1) * 2 + b"K\x00tb"
    shape = number(x.shape[0]) + number(x.shape[1]) + b"\x86"
    state = b"(K\x01" + shape + dtype + b"\x89" + string(x.tobytes()) + b"t"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R" + state + b"b"
    items = string(b"data") + array + string(key) + b"](" + b"".join(map(number, labels)) + b"e" + string(b"batch_label")
    return b"\x80\x02}(" + items + string(b"a batch") + b"u."


def _binary(x, labels, coarse=False):
    columns = [np.full(len(x), 255)] * coarse + [labels]
    return np.concatenate([np.stack(columns, 1), x], 1).astype(np.uint8).tobytes()


def write_layout(root, name="cifar10", python=False, records=(7, 1501, 3), classes=10):
    """Small files under the official names of a layout; the layout with their own sizes and sums, and the true samples."""
    official = cifar.LAYOUTS[name][python]
    folder = Path(root, official.folder)
    folder.mkdir(parents=True)
    files, samples = [], []
    names = [f.name for f in (*official.train, *official.test)]
    names = names if len(names) < 4 else [*names[:2], names[-1]]
    for i, (file, n) in enumerate(zip(names, records[-len(names) :], strict=True)):
        x, y = _samples(n, classes, i)
        key = b"labels" if name == "cifar10" else b"fine_labels"
        data = _python2_pickle(x, y, key) if python else _binary(x, y, name == "cifar100")
        (folder / file).write_bytes(data)
        algorithm = "md5" if python else "sha1"
        files.append(File(file, n, f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"))
        samples.append((x, y))
    return Layout(official.folder, tuple(files[:-1]), (files[-1],), official.labels), folder, samples


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_layouts_are_read_whole_and_in_order(tmp_path, name, python):
    layout, folder, samples = write_layout(tmp_path, name, python)
    train, test = cifar.read(layout, folder)
    x = np.concatenate([x for x, _ in samples[:-1]]).reshape(-1, 3, 32, 32)
    assert torch.equal(train.x, torch.from_numpy(x))
    assert train.y.tolist() == [int(k) for _, y in samples[:-1] for k in y]
    assert torch.equal(test.x, torch.from_numpy(samples[-1][0].reshape(-1, 3, 32, 32)))
    assert test.y.tolist() == samples[-1][1].tolist()
    assert train.x.is_contiguous()


@pytest.mark.parametrize("python", [False, True])
def test_load_finds_them_by_name_and_by_folder(tmp_path, monkeypatch, python):
    layout, folder, _ = write_layout(tmp_path, python=python)
    layouts = list(cifar.LAYOUTS["cifar10"])
    layouts[python] = layout
    monkeypatch.setitem(cifar.LAYOUTS, "cifar10", tuple(layouts))
    data = load("cifar10", root=tmp_path)
    assert (data.train.n, data.validation.n, data.test.n) == (1508, 0, 3)  # the official split
    assert (data.classes[0], data.classes[-1], data.shape) == ("airplane", "truck", (3, 32, 32))
    asked = load(folder, validation=0.1, seed=5)
    assert (asked.train.n, asked.validation.n) == (1508 - 151, 151)
    assert torch.equal(asked.test.x, data.test.x)
    assert sorted(asked.train.y.tolist() + asked.validation.y.tolist()) == sorted(data.train.y.tolist())
    monkeypatch.setenv("SQUARELOSS_DATA", str(tmp_path))
    assert torch.equal(load("cifar10").train.x, data.train.x)


def test_damaged_binary_files_are_named(tmp_path):
    layout, folder, _ = write_layout(tmp_path)
    path = folder / "data_batch_2.bin"
    whole = path.read_bytes()
    for content, message in [
        (whole[:-1], "truncated"),
        (b"", "truncated"),
        (whole + b"x", "too long"),
        (whole[:5] + bytes([whole[5] ^ 1]) + whole[6:], "expected sha1"),
        (whole[:-1] + bytes([whole[-1] ^ 128]), "expected sha1"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"data_batch_2\.bin: .*{message}.*squareloss data get cifar10"):
            cifar.read(layout, folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_2\.bin"):
        cifar.read(layout, folder)


def test_damaged_files_of_cifar100_are_to_be_fetched_by_that_name(tmp_path):
    layout, folder, _ = write_layout(tmp_path, "cifar100")
    (folder / "test.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="squareloss data get cifar100"):
        cifar.read(layout, folder)


def test_data_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="squareloss data get cifar100"):
        load("cifar100", root=tmp_path)


def test_class_names():
    assert {name: len(set(classes)) for name, classes in cifar.CLASSES.items()} == {"cifar10": 10, "cifar100": 100}
    assert list(cifar.CLASSES["cifar100"]) == sorted(cifar.CLASSES["cifar100"])


# pickles


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", ["python 2", 3, 4])
def test_plain_pickles_agree_with_the_ordinary_reader(protocol, order):
    x, y = _samples(4, 3, 0)
    x = np.asarray(x, order=order)
    plain = {"data": x, "labels": y.tolist(), "batch_label": b"a batch"}
    data = _python2_pickle(x, y) if protocol == "python 2" else pickle.dumps(plain, protocol)
    ordinary = {k if isinstance(k, str) else k.decode(): v for k, v in pickle.loads(data, encoding="bytes").items()}
    found = read_pickle(data, "file")
    assert found.keys() == ordinary.keys() == plain.keys()
    np.testing.assert_array_equal(found["data"], ordinary["data"])
    assert found["labels"] == ordinary["labels"]
    assert found["batch_label"] == ordinary["batch_label"] == b"a batch"


class _Attack:
    def __init__(self, call, *args):
        self.call = (call, args)

    def __reduce__(self):
        return self.call


def _attacks(trace):
    yield pickle.dumps(_Attack(os.system, f"touch {trace}"))
    yield pickle.dumps({"data": _Attack(eval, f"open({str(trace)!r}, 'w')")}, 2)
    yield pickle.dumps({"data": [_Attack(os.mkdir, str(trace))]}, 0)
    yield pickle.dumps({_Attack(np.save, str(trace), 1): 1}, 4)
    yield f"cos\nmkdir\n(V{trace}\ntR.".encode()
    yield f"(V{trace}\nios\nmkdir\n.".encode()
    yield b"\x80\x02cnumpy.core.multiarray\nfromfile\n."


def test_a_malicious_pickle_runs_nothing(tmp_path):
    trace = tmp_path / "trace"
    pickle.loads(next(_attacks(trace)))
    assert trace.exists()  # the attack does work on the ordinary reader
    trace.unlink()
    for data in _attacks(trace):
        with pytest.raises(ValueError, match="bad: refused, not a pickle of plain data: it asks for"):
            read_pickle(data, "bad")
        assert list(tmp_path.iterdir()) == []


def test_a_malicious_batch_with_the_right_sum(tmp_path):
    layout, folder, _ = write_layout(tmp_path, python=True)
    trace = tmp_path / "trace"
    for data in _attacks(trace):
        (folder / "data_batch_1").write_bytes(data)
        with pytest.raises(ValueError, match="data_batch_1: expected md5"):
            cifar.read(layout, folder)
        first = File("data_batch_1", 7, f"md5:{hashlib.md5(data).hexdigest()}")
        fooled = Layout(layout.folder, (first, *layout.train[1:]), layout.test, 0)
        with pytest.raises(ValueError, match="data_batch_1: refused"):
            cifar.read(fooled, folder)
        assert not trace.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        b"\x80\x02",
        pickle.dumps([1]),
        pickle.dumps({"data": np.zeros(3)}, 3),
        pickle.dumps({"data": np.zeros(3, np.int8)}, 3),
    ],
)
def test_other_pickles_are_refused(data):
    with pytest.raises(ValueError, match="^file: "):
        read_pickle(data, "file")


@pytest.mark.parametrize("change", [{"data": [1]}, {"labels": [0]}, {"labels": None}, {"data": np.zeros((7, 5), np.uint8)}])
def test_python_batches_of_another_shape(tmp_path, change):
    layout, folder, samples = write_layout(tmp_path, python=True)
    data = pickle.dumps({"data": samples[0][0], "labels": samples[0][1].tolist(), **change}, 3)
    (folder / "data_batch_1").write_bytes(data)
    first = File("data_batch_1", 7, f"md5:{hashlib.md5(data).hexdigest()}")
    with pytest.raises(ValueError, match="data_batch_1: expected 7 images"):
        cifar.read(Layout(layout.folder, (first, *layout.train[1:]), layout.test, 0), folder)


# the real thing, where it is at hand


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ],
)
def test_official_data(name, mean, std):
    root = os.environ.get("SQUARELOSS_DATA")
    if not root or cifar.find(name, Path(root)) is None:
        pytest.skip("SQUARELOSS_DATA names no folder with the data")
    data = load(name, root=root)
    assert (data.train.n, data.test.n) == (50_000, 10_000)
    assert set(torch.bincount(data.train.y).tolist()) == {50_000 // data.num_classes}
    torch.testing.assert_close(data.mean, torch.tensor(mean), atol=5e-5, rtol=0)
    torch.testing.assert_close(data.std, torch.tensor(std), atol=5e-5, rtol=0)
