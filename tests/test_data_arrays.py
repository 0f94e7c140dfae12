"""Arrays in .npz files: tables and images, what is refused."""

import io
import zipfile

import numpy as np
import pytest
import torch

from squareloss.lab.data import load


def _npz(folder, **arrays):
    path = folder / "d.npz"
    np.savez(path, **arrays)
    return path


def test_npz_table(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)), np.repeat(["dog", "cat"], 25)
    data = load(_npz(tmp_path, x=x, y=y))
    assert (data.kind, data.classes, data.name) == ("table", ("cat", "dog"), "d")
    assert (data.train.n, data.validation.n, data.test.n) == (35, 5, 10)
    rows = [np.flatnonzero((x.astype(np.float32) == row.numpy()).all(1))[0] for row in data.test.x]
    assert [data.classes[k] for k in data.test.y] == [y[r] for r in rows]  # labels stay with their rows


def test_names_of_npz_may_be_written_in_capitals(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2
    expected = {False: load(_npz(tmp_path, x=x, y=y)), True: load(_npz(tmp_path, x_train=x, y_train=y, x_test=x, y_test=y))}
    for arrays in (
        {"X": x, "y": y},
        {"X": x, "Y": np.eye(2)[y], "y": y},
        {"x": x, "y": y, "X": x + 1},
        {"X_train": x, "y_train": y, "X_test": x, "Y_test": y},
        {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "X": x + 1, "Y": y},
    ):
        data, like = load(_npz(tmp_path, **arrays)), expected[len(arrays) > 3]
        assert torch.equal(data.train.x, like.train.x) and torch.equal(data.test.y, like.test.y)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NHW"])
def test_npz_images_with_their_own_test_set(tmp_path, layout):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 1 if layout == "NHW" else 3, 5, 6), dtype=np.uint8)
    stored = {"NCHW": images, "NHWC": images.transpose(0, 2, 3, 1), "NHW": images[:, 0]}[layout]
    y = np.arange(30) % 3
    path = _npz(tmp_path, x_train=stored[:20], y_train=y[:20, None], x_test=stored[20:], y_test=y[20:])
    data = load(path)
    assert (data.train.n, data.validation.n, data.test.n) == (20, 0, 10)  # nothing is taken unless asked
    assert torch.equal(data.train.x, torch.from_numpy(images[:20]))
    assert torch.equal(data.test.x, torch.from_numpy(images[20:]))
    assert torch.equal(data.test.y, torch.from_numpy(y[20:]))
    asked = load(path, validation=0.3)
    assert (asked.train.n, asked.validation.n, asked.test.n) == (14, 6, 10)


def test_a_column_of_an_npz_that_varies_by_rounding_alone_is_constant(tmp_path):
    data = load(_npz(tmp_path, x=np.column_stack([np.repeat([0.3, 0.1 + 0.2], 15), np.arange(30)]), y=np.arange(30) % 2))
    assert (data.train.x[:, 0] == 0.3).all() and data.std[0] == 1


def test_the_test_set_of_an_npz_may_spread_less_than_float32_can_tell(tmp_path):
    days, y = np.array([[20200101], [20211231], [20220615], [20231105], [20231106], [20231107]]), np.arange(6) % 2
    data = load(_npz(tmp_path, x_train=days[:4], y_train=y[:4], x_test=days[3:], y_test=y[3:]))
    assert data.test.x.tolist() == days[3:].astype(np.float32).tolist()


def test_npz_that_is_refused(tmp_path):
    x, y = np.zeros((6, 2)), np.arange(6) % 2
    bad = {
        "x_train is missing": {"a": x},
        "y is missing": {"x": x},
        "y_test is missing": {"x_train": x, "y_train": y, "x_test": x},
        "uint8": {"x": np.zeros((6, 3, 4, 4)), "y": y},
        "one label per row": {"x": x, "y": y[:5]},
        "argmax": {"x": x, "y": np.eye(2)[y]},
        "column 1": {"x": np.where(np.eye(6, 2, k=0), x, np.array([0, np.nan])), "y": y},
        "channels": {"x": np.zeros((6, 2, 4, 5), np.uint8), "y": y},
        "expected numbers": {"x": np.full((6, 2), "a"), "y": y},
        "expected a table": {"x": np.zeros(6), "y": y},
        "save text as y.astype.*, numbers as x.astype": {"x": x, "y": np.array(list("ababab"), dtype=object)},
        "x, column 1: .* float32 can tell apart": {"x": 1.7e9 + np.arange(6)[:, None] * [1e9, 1], "y": y},
        "x, column 0: .* got 1700000000 to 1700000005": {
            "x": np.arange(1_700_000_000, 1_700_000_006, dtype=np.int32)[:, None],
            "y": y,
        },
        "x, column 1: .* float32 can tell apart, got 1000000000000000000 to 1000000000000000005": {
            "x": 10**18 + np.arange(6)[:, None] * [10**17, 1],
            "y": y,
        },
        "two classes": {"x": x, "y": np.zeros(6, int)},
    }
    for message, arrays in bad.items():
        with pytest.raises(ValueError, match=message) as error:
            load(_npz(tmp_path, **arrays))
        assert "d.npz" in str(error.value)
    path = tmp_path / "d.npz"
    for content in (b"", b"PK\x03\x04 and then nothing", b"hello"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"d\.npz") as error:
            load(path)
        assert ("it is no .npz file" in str(error.value)) == (not content.startswith(b"PK"))
        assert "pickle" not in str(error.value)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint16])
@pytest.mark.parametrize("top", [255, 1])
def test_advice_on_images_that_are_no_bytes_gives_the_images(tmp_path, dtype, top):
    y, images = np.arange(20) % 2, np.random.default_rng(0).integers(0, 2, (20, 4, 4)) * 255
    images[:, 0, 0] = 100 if top == 255 else 255
    x = (images // (255 // top)).astype(dtype)
    with pytest.raises(ValueError, match=f"got {np.dtype(dtype)}; save ") as error:
        load(_npz(tmp_path, x=x, y=y))
    assert np.array_equal(eval(str(error.value).partition("; save ")[2], {"x": x, "np": np}), images)
    with pytest.raises(ValueError, match="bring the values, now 0 to 510, to 0 to 255, and save"):
        load(_npz(tmp_path, x=2 * images, y=y))


def test_npz_class_that_only_the_test_set_has(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 2))
    path = _npz(tmp_path, x_train=x, y_train=[0, 1, 0, 1, 0, 1], x_test=x, y_test=[0, 1, 2, 0, 1, 2])
    with pytest.raises(ValueError, match=r"got none of '2'; add samples of it, or remove the class \(in Python, "):
        load(path)
    with pytest.raises(ValueError, match="expected at least one training sample, got none; add samples"):
        load(_npz(tmp_path, x=x[:2], y=[0, 1]), validation=0.4, test=0.5)


def _npy(shape, descr="<f8", body=b"\0" * 64):
    """A .npy whose header may promise what the file does not hold."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue() + body


def _zip(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return path


@pytest.mark.parametrize("shape", [(10**14, 3), (10**30, 3), (-1, 3), (100, 3)], ids=["huge", "overflows", "negative", "short"])
def test_npz_that_promises_more_than_it_holds(tmp_path, shape):
    path = _zip(tmp_path / "d.npz", x__npy=_npy(shape), y__npy=_npy((2,), "|u1", b"\0\1"))
    with pytest.raises(ValueError, match=r"d\.npz: expected a \.npz of plain arrays, could not read it"):
        load(path)


def test_npz_that_zipfile_can_not_read(tmp_path):
    whole = _zip(tmp_path / "d.npz", x__npy=_npy((2, 4)), y__npy=_npy((2,), "|u1", b"\0\1")).read_bytes()
    start = whole.index(b"PK\1\2")
    for place, value, message in ((8, 1, "encrypted"), (10, 99, "compression"), (6, 127, "version")):
        damaged = bytearray(whole)
        damaged[start + place] = value
        if place == 8:
            damaged[6] = 1
        (tmp_path / "d.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"d\.npz: expected a \.npz of plain arrays, could not read it: .*{message}"):
            load(tmp_path / "d.npz")
    with pytest.raises(ValueError, match=r"d\.npz: .* x is no array"):
        load(_zip(tmp_path / "d.npz", x=b"hello", y__npy=_npy((2,), "|u1", b"\0\1")))


def test_other_arrays_of_an_npz_are_not_read(tmp_path):
    path = _npz(
        tmp_path, x=np.zeros((20, 2)) + np.arange(20)[:, None], y=np.arange(20) % 2, about=np.array({"by": "me"}, object)
    )
    assert load(path, validation=0, test=0).train.x.shape == (20, 2)
    with pytest.raises(ValueError, match=r"got about; x_train is missing"):
        load(_npz(tmp_path, about=np.array({}, object)))
