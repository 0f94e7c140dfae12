"""CIFAR-10 and CIFAR-100 in their official layouts, binary and Python, every file checked against its published sum.

A binary record is the label (for CIFAR-100 the coarse, then the fine one), one byte each, and 3072 pixels, channel first.
A Python file is a pickled dict of the same. Each file is read once, in pieces that stay in the cache while they are summed
and copied, two files at a time.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from squareloss.lab.data.dataset import Split
from squareloss.lab.data.pickles import read_pickle

Bytes = npt.NDArray[np.uint8]

PIXELS = 3 * 32 * 32
_PIECE = 500  # records read at a time: 1.5 MB

_NAMES_10 = "airplane automobile bird cat deer dog frog horse ship truck"
_NAMES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CLASSES = {"cifar10": tuple(_NAMES_10.split()), "cifar100": tuple(_NAMES_100.split())}


@dataclass(frozen=True)
class File:
    """One file of a layout: its name, how many images it holds, and its sum, as "sha1:..." or "md5:..."."""

    name: str
    records: int
    digest: str


@dataclass(frozen=True)
class Layout:
    """A folder as the official archive unpacks it.

    Arguments:
        folder: its name.
        train, test: its files, in order.
        labels: label bytes before the pixels of a binary record, of which the last is the class; 0 for the Python layout.
    """

    folder: str
    train: tuple[File, ...]
    test: tuple[File, ...]
    labels: int


_BINARY_10 = Layout(
    "cifar-10-batches-bin",
    (
        File("data_batch_1.bin", 10000, "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        File("data_batch_2.bin", 10000, "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        File("data_batch_3.bin", 10000, "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        File("data_batch_4.bin", 10000, "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        File("data_batch_5.bin", 10000, "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628"),
    ),
    (File("test_batch.bin", 10000, "sha1:67eb016db431130d61cd03c7ad570b013799c88c"),),
    labels=1,
)
_PYTHON_10 = Layout(
    "cifar-10-batches-py",
    (
        File("data_batch_1", 10000, "md5:c99cafc152244af753f735de768cd75f"),
        File("data_batch_2", 10000, "md5:d4bba439e000b95fd0a9bffe97cbabec"),
        File("data_batch_3", 10000, "md5:54ebc095f3ab1f0389bbae665268c751"),
        File("data_batch_4", 10000, "md5:634d18415352ddfa80567beed471001a"),
        File("data_batch_5", 10000, "md5:482c414d41f54cd18b22e5b47cb7c3cb"),
    ),
    (File("test_batch", 10000, "md5:40351d587109b95175f43aff81a1287e"),),
    labels=0,
)
_BINARY_100 = Layout(
    "cifar-100-binary",
    (File("train.bin", 50000, "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),),
    (File("test.bin", 10000, "sha1:8fb6623e830365ff53cf14adec797474f5478006"),),
    labels=2,
)
_PYTHON_100 = Layout(
    "cifar-100-python",
    (File("train", 50000, "md5:16019d7e3df5f24257cddd939b257f8d"),),
    (File("test", 10000, "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),),
    labels=0,
)
LAYOUTS = {"cifar10": (_BINARY_10, _PYTHON_10), "cifar100": (_BINARY_100, _PYTHON_100)}


def find(name: str, root: Path) -> tuple[Layout, Path] | None:
    """The layout of "cifar10" or "cifar100" that lies in `root` (or is `root`), and its folder; None if there is none."""
    for layout in LAYOUTS[name]:
        for folder in (root / layout.folder, root):
            if folder.name == layout.folder and folder.is_dir():
                return layout, folder
    return None


def read(layout: Layout, folder: Path) -> tuple[Split, Split]:
    """Training and test set: x (n, 3, 32, 32) uint8, y (n,) int64. ValueError naming the file that is not the official one."""
    splits = [_empty(layout.train), _empty(layout.test)]
    jobs = []
    for (x, y), files in zip(splits, (layout.train, layout.test), strict=True):
        start = 0
        for file in files:
            stop = start + file.records
            jobs.append((folder / file.name, file, x[start:stop], y[start:stop]))
            start = stop
    with ThreadPoolExecutor(2) as pool:  # reading, summing and copying all leave the interpreter
        for job in [pool.submit(_read_file, layout, *job) for job in jobs]:
            job.result()
    train, test = (Split(torch.from_numpy(x).view(-1, 3, 32, 32), torch.from_numpy(y).long()) for x, y in splits)
    return train, test


def _empty(files: tuple[File, ...]) -> tuple[Bytes, Bytes]:
    n = sum(file.records for file in files)
    return np.empty((n, PIXELS), np.uint8), np.empty(n, np.uint8)


def _read_file(layout: Layout, path: Path, file: File, x: Bytes, y: Bytes) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected this file of the official layout, got none; {_advice(layout)}")
    if layout.labels:
        _read_binary(layout, path, file, x, y)
    else:
        _read_python(layout, path, file, x, y)


def _read_binary(layout: Layout, path: Path, file: File, x: Bytes, y: Bytes) -> None:
    width = layout.labels + PIXELS
    expected, found = file.records * width, path.stat().st_size
    if found != expected:
        state = "truncated" if found < expected else "too long"
        raise ValueError(f"{path}: expected {expected} bytes, got {found}: the file is {state}; {_advice(layout)}")
    digest = _hasher(file)
    buffer = np.empty((_PIECE, width), np.uint8)
    with path.open("rb") as stream:
        for start in range(0, file.records, _PIECE):
            piece = buffer[: min(_PIECE, file.records - start)]
            stream.readinto(piece.data)
            digest.update(piece)
            x[start : start + len(piece)] = piece[:, layout.labels :]
            y[start : start + len(piece)] = piece[:, layout.labels - 1]
    _verify(digest, path, file, layout)


def _read_python(layout: Layout, path: Path, file: File, x: Bytes, y: Bytes) -> None:
    data = path.read_bytes()
    digest = _hasher(file)
    digest.update(data)
    _verify(digest, path, file, layout)  # before a byte of the pickle is looked at
    found = read_pickle(data, str(path))
    pixels, labels = found.get("data"), found.get("fine_labels", found.get("labels"))
    if not isinstance(pixels, np.ndarray) or pixels.shape != x.shape or not isinstance(labels, list) or len(labels) != len(y):
        raise ValueError(f"{path}: expected {file.records} images under 'data' and as many labels; {_advice(layout)}")
    x[:] = pixels
    y[:] = labels


def _hasher(file: File) -> Any:
    return hashlib.new(file.digest.partition(":")[0], usedforsecurity=False)


def _verify(digest: Any, path: Path, file: File, layout: Layout) -> None:
    algorithm, _, expected = file.digest.partition(":")
    if digest.hexdigest() != expected:
        raise ValueError(
            f"{path}: expected {algorithm} {expected}, got {digest.hexdigest()}: "
            f"the file is damaged or not the official one; {_advice(layout)}"
        )


def _advice(layout: Layout) -> str:
    name = next(name for name, known in LAYOUTS.items() if layout.folder in [k.folder for k in known])
    return f"fetch it again with `squareloss data get {name}`"
