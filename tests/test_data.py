"""Splits, standardisation, arrays and folders of images."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from squareloss import Standardize
from squareloss.lab.data import Dataset, Split, default_root, load
from squareloss.lab.data.dataset import SplitPlan, encode_labels, moments, stratified_rows


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(12, 60), min_size=2, max_size=6),
    validation=st.floats(0, 0.3),
    test=st.floats(0, 0.3),
    seed=st.integers(0, 5),
)
def test_every_part_holds_its_share_of_every_class(counts, validation, test, seed):
    y = torch.cat([torch.full((m,), k) for k, m in enumerate(counts)])
    parts = stratified_rows(y, validation, test, seed)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(y)))  # a partition
    n = len(y)
    assert [len(p) for p in parts] == [n - round(validation * n) - round(test * n), round(validation * n), round(test * n)]
    tested, validated = len(parts[2]), len(parts[1])
    for k, m in enumerate(counts):
        found = [int((y[rows] == k).sum()) for rows in parts]
        assert abs(found[2] - m * tested / n) <= 1 + 1e-9
        assert abs(found[1] - (m - found[2]) * validated / (n - tested)) <= 1 + 1e-9


def test_the_largest_remainder_is_rounded_up():
    for counts, expected in (([10, 16], [2, 4]), ([14, 12], [3, 3])):  # of 2.31 and 3.69, of 3.23 and 2.77
        y = torch.repeat_interleave(torch.arange(2), torch.tensor(counts))
        test = stratified_rows(y, 0, 6 / 26, 0)[2]
        assert torch.bincount(y[test]).tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_small_classes_stay_in_training_where_they_can(seed):
    y = torch.tensor([*range(20), *[20] * 100])  # twenty classes of one
    train, validation, test = stratified_rows(y, 0.1, 0.2, seed)
    assert y[train].unique().tolist() == list(range(21))
    assert (len(validation), len(test)) == (12, 24)
    singles = stratified_rows(torch.arange(10), 0.4, 0.4, seed)  # here they cannot, but the sizes still hold
    assert [len(part) for part in singles] == [2, 4, 4]


def test_splits_depend_on_the_seed_and_on_nothing_else():
    first, again, other = load("digits", seed=3), load("digits", seed=3), load("digits", seed=4)
    torch.rand(7)
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(first, part).x, getattr(again, part).x)
        assert torch.equal(getattr(first, part).y, getattr(again, part).y)
    assert not torch.equal(first.test.x, other.test.x)


def test_digits_are_those_of_scikit_learn():
    data = load("digits", validation=0, test=0)
    pixels, labels = load_digits(return_X_y=True)
    assert data.kind == "image"
    assert data.shape == (1, 8, 8)
    assert torch.equal(data.train.y, torch.from_numpy(labels))
    back = torch.round(data.train.x.double() * 16 / 255).flatten(1)  # no two of the 17 grey levels fell together
    assert torch.equal(back, torch.from_numpy(pixels))
    assert (data.validation.n, data.test.n) == (0, 0)
    assert data.classes == tuple("0123456789")


def test_moments_come_from_the_training_split_alone():
    data = load("digits", seed=1)
    x = data.train.x.double() / 255
    torch.testing.assert_close(data.mean, x.mean((0, 2, 3)).float())
    torch.testing.assert_close(data.std, x.std((0, 2, 3), correction=0).float())
    z = Standardize(data.mean, data.std)(data.train.x / 255)
    assert abs(float(z.mean())) < 1e-5
    assert abs(float(z.std(correction=0)) - 1) < 1e-5
    everything = torch.cat([data.train.x, data.validation.x, data.test.x])
    assert not torch.equal(moments(everything)[0], data.mean)


def test_byte_moments_over_more_than_one_piece():
    x = torch.randint(0, 256, (4500, 3, 2, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = moments(x)
    torch.testing.assert_close(mean, (x.double() / 255).mean((0, 2, 3)).float())
    torch.testing.assert_close(std, (x.double() / 255).std((0, 2, 3), correction=0).float())


def test_moments_of_a_table_far_from_zero_and_with_many_columns():
    x = (5000 + torch.randn(3000, 70, generator=torch.Generator().manual_seed(0))).float()
    mean, std = moments(x)
    expected = x.double()
    torch.testing.assert_close(mean, expected.mean(0).float(), rtol=0, atol=0)
    torch.testing.assert_close(std, expected.std(0, correction=0).float(), rtol=1e-7, atol=0)


def test_constant_columns_and_channels_stay_finite():
    x = torch.tensor([[0.1, 1e6, 3.0], [0.1, 1e6, 4.0], [0.1, 1e6, 8.0]])
    mean, std = moments(x)
    assert std[:2].tolist() == [1, 1]
    torch.testing.assert_close(mean, x.mean(0))
    assert moments(torch.full((5, 1, 2, 2), 9, dtype=torch.uint8))[1].tolist() == [1]


def test_to_moves_every_tensor():
    data = load("digits").to("meta")
    tensors = [*data.train, *data.validation, *data.test, data.mean, data.std]
    assert {t.device.type for t in tensors} == {"meta"}


@pytest.mark.parametrize("values", [[3, 7, 3], ["b", "a", "b"], [True, False, True], [3.0, 7.0, 3.0], [2000.0, -7.0]])
def test_labels_of_any_plain_kind(values):
    labels, classes = encode_labels(np.asarray(values), "y")
    assert [classes[k] for k in labels] == [str(v).removesuffix(".0") for v in values]
    assert labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 1], "two classes"),
        ([1.5, 2.0], "regression"),
        ([1.0, np.nan], "1 missing"),
        ([], "two classes"),
        ([1j, 2j], "complex"),
    ],
)
def test_labels_that_are_no_classes(values, message):
    with pytest.raises(ValueError, match=message):
        encode_labels(np.asarray(values), "the file, y")


def test_shares_that_leave_nothing():
    with pytest.raises(ValueError, match=r"validation \+ test < 1"):
        SplitPlan(validation=0.5, test=0.5)
    with pytest.raises(ValueError, match="expected test"):
        SplitPlan(test=-0.1)
    assert [len(r) for r in SplitPlan().rows(torch.arange(10) % 2)] == [7, 1, 2]
    assert [len(r) for r in SplitPlan().rows(torch.arange(10) % 2, test=False)] == [10, 0, 0]


def test_a_dataset_checks_itself():
    data = load("digits")
    bad = {
        "float": {"train": Split(data.train.x.float(), data.train.y)},
        "int64": {"train": Split(data.train.x, data.train.y.int())},
        "labels in": {"test": Split(data.test.x, data.test.y + 1)},
        "got none of '10'": {"classes": (*data.classes, "10")},
        "with 4 axes": {part: Split(data.train.x[:, 0], data.train.y) for part in ("train", "validation", "test")},
        "each input of shape": {"test": Split(data.test.x[:, :, :4], data.test.y)},
    }
    for message, change in bad.items():
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(data, **change)
    assert isinstance(dataclasses.replace(data, name="other"), Dataset)


# npz


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
        with pytest.raises(ValueError, match=r"d\.npz"):
            load(path)


def test_npz_class_that_only_the_test_set_has(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 2))
    path = _npz(tmp_path, x_train=x, y_train=[0, 1, 0, 1, 0, 1], x_test=x, y_test=[0, 1, 2, 0, 1, 2])
    with pytest.raises(ValueError, match=r"got none of '2'; add samples of it, or remove the class \(in Python, "):
        load(path)
    with pytest.raises(ValueError, match="expected at least one training sample, got none; add samples"):
        load(_npz(tmp_path, x=x[:2], y=[0, 1]), validation=0.4, test=0.5)


# folders of images


def _image(path, size=(6, 5), colour=(10, 20, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    (image.quantize() if mode == "P" else image.convert(mode)).save(path)


def _folder(root, classes=("ant", "bee"), per_class=6):
    for k, name in enumerate(classes):
        for i in range(per_class):
            _image(root / name / f"{i}.png", colour=(i, k, 7))


def test_folder_by_class(tmp_path):
    _folder(tmp_path / "insects")
    (tmp_path / "insects" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "insects" / ".hidden").mkdir()
    data = load(tmp_path / "insects", validation=0, test=0)
    assert (data.name, data.classes, data.shape) == ("insects", ("ant", "bee"), (3, 5, 6))
    assert torch.equal(data.train.x[:, 1, 0, 0].long(), data.train.y)  # channel 1 was painted with the class
    assert data.train.x[:, 0, 2, 3].tolist() == [*range(6), *range(6)]
    assert torch.equal(data.train.x[:, 2], torch.full((12, 5, 6), 7, dtype=torch.uint8))


def test_folder_with_ready_made_splits(tmp_path):
    for part, n in (("train", 5), ("val", 2), ("test", 3)):
        _folder(tmp_path / part, per_class=n)
    data = load(tmp_path, validation=0.5)
    assert (data.train.n, data.validation.n, data.test.n) == (10, 4, 6)
    for split in (data.train, data.validation, data.test):
        assert torch.equal(split.x[:, 1, 0, 0].long(), split.y)
    _folder(tmp_path / "extra")
    with pytest.raises(ValueError, match="'extra'"):
        load(tmp_path)


def test_folder_without_test_takes_it_from_train(tmp_path):
    _folder(tmp_path / "train", per_class=10)
    data = load(tmp_path)
    assert (data.train.n, data.validation.n, data.test.n) == (14, 2, 4)


def test_grey_and_palette_images_become_rgb(tmp_path):
    _image(tmp_path / "a" / "1.png", mode="L")
    _image(tmp_path / "b" / "1.png", mode="P")
    _image(tmp_path / "b" / "2.bmp")
    data = load(tmp_path, validation=0, test=0)
    assert data.shape == (3, 5, 6)
    assert data.train.x[1, :, 0, 0].tolist() == data.train.x[2, :, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    levels = np.array([[0, 128, 257, 25700, 65535]], np.uint16)
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(levels).save(tmp_path / name / f"1.{suffix}")
    data = load(tmp_path, validation=0, test=0)
    assert data.train.x[0].tolist() == [[[0, 0, 1, 100, 255]]] * 3


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_without_a_known_range_are_refused_by_name(tmp_path, mode):
    _folder(tmp_path)
    Image.new(mode, (6, 5), 70_000).save(tmp_path / "bee" / "deep.tif")
    with pytest.raises(ValueError, match=rf"deep\.tif: .*expected 8 or 16 bits, got 32 \(mode {mode}\)"):
        load(tmp_path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_photographs_are_turned_as_their_camera_says(tmp_path, suffix):
    lying = Image.new("RGB", (16, 8))
    lying.paste((255, 255, 255), (0, 0, 8, 8))  # the left half, which is the upper one once it stands
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turn it clockwise
    for name in "ab":
        (tmp_path / name).mkdir()
        lying.save(tmp_path / name / f"1.{suffix}", exif=exif)
    x = load(tmp_path, validation=0, test=0).train.x
    assert x.shape == (2, 3, 16, 8) and int(x[:, :, :8].min()) > 250 and int(x[:, :, 8:].max()) < 5


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*"], ids=["garbage", "cut off"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_an_exif_that_can_not_be_read_turns_nothing(tmp_path, suffix, exif):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (6, 5)).save(tmp_path / name / f"1.{suffix}", exif=exif)
    assert load(tmp_path, validation=0, test=0).shape == (3, 5, 6)


def test_sizes_differ_unless_size_is_given(tmp_path):
    _folder(tmp_path)
    _image(tmp_path / "bee" / "wide.png", size=(20, 5))
    with pytest.raises(
        ValueError,
        match=r"wide\.png: expected 6 x 5 pixels as 0\.png has, got 20 x 5; pass size= \(on the command line --size\)",
    ):
        load(tmp_path)
    data = load(tmp_path, size=4)
    assert data.shape == (3, 4, 4)
    # the shorter side is scaled and the centre kept: a mark at the far left is cut away, one at the centre stays
    marked = Image.new("RGB", (20, 5))
    marked.paste((255, 255, 255), (0, 0, 5, 5))
    marked.save(tmp_path / "bee" / "wide.png")
    assert int(load(tmp_path, size=5, validation=0, test=0).train.x[-1].max()) == 0
    marked.paste((255, 255, 255), (8, 0, 12, 5))
    marked.save(tmp_path / "bee" / "wide.png")
    assert int(load(tmp_path, size=5, validation=0, test=0).train.x[-1].max()) == 255


def test_images_that_do_not_decode_are_named(tmp_path):
    _folder(tmp_path)
    whole = (tmp_path / "bee" / "0.png").read_bytes()
    for content in (b"no image at all", whole[:40], b""):
        (tmp_path / "bee" / "3.png").write_bytes(content)
        with pytest.raises(ValueError, match=r"bee.3\.png: could not decode"):
            load(tmp_path)


def test_folders_without_classes_or_images(tmp_path):
    with pytest.raises(ValueError, match="one subfolder of images per class"):
        load(tmp_path)
    (tmp_path / "ant").mkdir()
    with pytest.raises(ValueError, match="ant: expected images"):
        load(tmp_path)
    _image(tmp_path / "ant" / "1.png")
    with pytest.raises(ValueError, match="only 'ant'"):
        load(tmp_path)
    _folder(tmp_path / "split" / "train")
    _folder(tmp_path / "split" / "test", classes=("ant", "wasp"))
    with pytest.raises(ValueError, match="wasp: expected the classes of train"):
        load(tmp_path / "split")


def test_folder_shows_progress(tmp_path, capsys):
    _folder(tmp_path)
    load(tmp_path)
    assert capsys.readouterr().out == ""
    load(tmp_path, progress=True)
    assert "reading images" in capsys.readouterr().out


# the entrance


def test_unknown_sources(tmp_path):
    with pytest.raises(FileNotFoundError, match="Available: digits, cifar10"):
        load("mnist")
    (tmp_path / "a.xls").write_text("x")
    with pytest.raises(ValueError, match="Unknown kind of data file"):
        load(tmp_path / "a.xls")
    with pytest.raises(ValueError, match="target"):
        load("digits", target="y")
    with pytest.raises(ValueError, match="size"):
        load("digits", size=8)


def test_named_data_lie_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("SQUARELOSS_DATA", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("SQUARELOSS_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".cache" / "squareloss"
