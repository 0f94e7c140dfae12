"""Splits, labels, standardisation, and where data are found."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
