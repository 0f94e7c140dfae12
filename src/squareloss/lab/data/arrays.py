"""Arrays: NumPy .npz files, and scikit-learn's digits, which are always there."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from squareloss.lab.data.dataset import Dataset, Kind, Split, SplitPlan, assemble, check_told_apart, encode_labels

Array = np.ndarray[Any, Any]

_NAMES = frozenset({"x", "y", "x_train", "y_train", "x_test", "y_test"})
# what numpy and zipfile raise for a file that is damaged, encrypted, or says that it is larger than it is
_UNREADABLE = (ValueError, EOFError, OverflowError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_digits(plan: SplitPlan) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8; their 17 grey levels are spread over the bytes 0 to 255."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(np.round(pixels * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)
    return assemble("digits", "image", [str(d) for d in range(10)], plan, Split(x, torch.from_numpy(labels).long()))


def read_npz(path: Path, plan: SplitPlan) -> Dataset:
    """A .npz with arrays x, y, or x_train, y_train and perhaps x_test, y_test. Pickled objects in it are refused.

    x is a table (n, D) of numbers, or images as bytes: (n, H, W), (n, C, H, W) or (n, H, W, C) with 1 or 3 channels. Without
    x and x_train, capitals do not count: X and y do, too. Other arrays in it are not looked at.
    """
    found, listed = _load(path)
    arrays = found if {"x", "x_train"} & found.keys() else {name.lower(): array for name, array in found.items()} | found
    suffix = "" if "x" in arrays else "_train"
    names = [f"x{suffix}", f"y{suffix}"] + (["x_test", "y_test"] if suffix and "x_test" in arrays else [])
    absent = [name for name in names if name not in arrays]
    if absent:
        raise ValueError(
            f"{path}: expected arrays x and y, or x_train and y_train (and x_test, y_test), "
            f"got {', '.join(listed) or 'none'}; {absent[0]} is missing"
        )
    labels = [_labels(arrays[name], f"{path}, {name}") for name in names[1::2]]
    y, classes = encode_labels(np.concatenate(labels), f"{path}, {names[1]}")
    inputs = [_inputs(arrays[name], f"{path}, {name}") for name in names[::2]]
    for (_, x), given, name in zip(inputs, labels, names[::2], strict=True):
        if len(x) != len(given):
            raise ValueError(f"{path}: expected one label per row, got {len(x)} rows in {name} and {len(given)} labels")
    if inputs[0][0] == "table":
        _check_columns([arrays[name] for name in names[::2]], f"{path}, {names[0]}")
    splits = [Split(x, part) for (_, x), part in zip(inputs, torch.split(y, [len(part) for part in labels]), strict=True)]
    return assemble(path.stem, inputs[0][0], classes, plan, splits[0], test=splits[1] if len(splits) > 1 else None)


def _load(path: Path) -> tuple[dict[str, Array], list[str]]:
    """The arrays that have one of our names, and the names of all there are."""
    try:
        with path.open("rb") as stream:  # numpy leaves a file it opened itself open when it cannot read it
            if stream.read(2) not in (b"PK", b"\x93N"):  # numpy would take it for a pickle, and say how to load that
                raise ValueError("it is no .npz file")
            stream.seek(0)
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds one bare array")
            found = {name: archive[name] for name in archive.files if name.lower() in _NAMES}
            strange = [name for name, array in found.items() if not isinstance(array, np.ndarray)]
            if strange:
                raise ValueError(f"{strange[0]} is no array")
            return found, list(archive.files)
    except _UNREADABLE as error:
        hint = "; save text as y.astype(str), numbers as x.astype(float)" if "allow_pickle" in str(error) else ""
        raise ValueError(f"{path}: expected a .npz of plain arrays, could not read it: {error}{hint}") from error


def _labels(values: Array, what: str) -> Array:
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise ValueError(f"{what}: expected one label per row, shape (n,), got {values.shape}; take the argmax of one-hot rows")
    return values


def _inputs(x: Array, what: str) -> tuple[Kind, Tensor]:
    if x.dtype.kind not in "iufb":
        raise ValueError(f"{what}: expected numbers, got {x.dtype}")
    if x.ndim == 2:
        with np.errstate(over="ignore"):
            table = x.astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(table).all(0))
        if bad.size:
            raise ValueError(f"{what}: expected finite numbers, got NaN or infinity in column {bad[0]}; fill or drop it")
        return "table", torch.from_numpy(table)
    if x.ndim not in (3, 4):
        raise ValueError(f"{what}: expected a table (n, D) or images (n, H, W), (n, C, H, W) or (n, H, W, C), got {x.shape}")
    if x.dtype != np.uint8:
        raise ValueError(f"{what}: expected images as bytes (uint8), got {x.dtype}; {_to_bytes(x)}")
    return "image", torch.from_numpy(_channel_first(x, what))


def _to_bytes(x: Array) -> str:
    """How to save images of other numbers: by their values, for a byte keeps only what is left of a number modulo 256."""
    low, high = (x.min(), x.max()) if x.size else (0, 0)
    if low >= 0 and high <= 1:
        return "save (x * 255).round().astype(np.uint8)"
    if low >= 0 and high <= 255:
        return "save x.round().astype(np.uint8)"
    return f"bring the values, now {low:g} to {high:g}, to 0 to 255, and save x.round().astype(np.uint8)"


def _check_columns(tables: list[Array], what: str) -> None:
    """Raise for numbers that float32 can't tell apart; a test set, which may spread little, is judged with the rest."""
    if len({x.shape[1:] for x in tables}) > 1 or all(np.can_cast(x.dtype, np.float32) for x in tables):
        return  # what has two shapes is refused later
    for number, columns in enumerate(zip(*(x.T for x in tables), strict=True)):
        check_told_apart(np.concatenate(columns), f"{what}, column {number}")


def _channel_first(x: Array, what: str) -> Array:
    if x.ndim == 3:
        return x[:, None]
    if x.shape[1] in (1, 3):
        return x
    if x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    raise ValueError(f"{what}: expected 1 or 3 channels on axis 1 or 3, got shape {x.shape}")
