"""A data set: three splits, class names, and the training split's mean and standard deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

Kind = Literal["image", "table"]


class Split(NamedTuple):
    """Inputs x, (n, C, H, W) uint8 or (n, D) float32, and labels y (n,) int64. Unpacks: `x, y = data.train`."""

    x: Tensor
    y: Tensor

    @property
    def n(self) -> int:
        """Number of samples (len would count the two tensors)."""
        return self.y.shape[0]


@dataclass(frozen=True)
class Dataset:
    """Train, validation and test samples, with what a classifier needs to know of them.

    Arguments:
        name: what it is called in tables and file names.
        kind: "image", where x is uint8 (n, C, H, W), or "table", where x is float32 (n, D).
        train, validation, test: the splits; validation and test may be empty.
        classes: names of the K classes; label k means classes[k].
        mean, std: float32 (C,) in units where a byte's 0..255 is 0..1, or (D,); of the training split alone. A constant
            channel or column has std 1, so that dividing is safe.
        features: names of the D columns of a table after encoding.
        notes: what was done to the data on reading that its owner should know, one sentence each.
    """

    name: str
    kind: Kind
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
            _check_split(f"{self.name}, {part}", getattr(self, part), self.kind, self.train.x.shape[1:], len(self.classes))
        _check_classes(self)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, (C, H, W) or (D,)."""
        return tuple(self.train.x.shape[1:])


@dataclass(frozen=True)
class SplitPlan:
    """How samples are divided: shares of validation and test, stratified by class, drawn by a seed.

    A validation share of None is 0.1, or 0 where the data bring a test set of their own: then nothing is taken from the
    official training set unless asked.
    """

    validation: float | None = None
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            share = getattr(self, name)
            if share is not None and not (0 <= share < 1):
                raise ValueError(f"expected {name} to be a share in [0, 1), got {share}")
        if (self.validation or 0) + self.test >= 1:
            raise ValueError(
                f"expected validation + test < 1, got {self.validation} + {self.test}; nothing is left to train on"
            )

    def rows(self, y: Tensor, *, validation: bool = True, test: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers, ascending, of train, validation and test; a part that is switched off (given otherwise) is empty."""
        share = self.validation if self.validation is not None else (0.1 if test else 0.0)
        return stratified_rows(y, share if validation else 0.0, self.test if test else 0.0, self.seed)


def stratified_rows(y: Tensor, validation: float, test: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ascending row numbers of train, validation and test, which hold every class in proportion.

    Test and validation have round(share * n) rows exactly, and of each class its share to within a sample, unless a class
    would leave the training split for it: its last sample is taken only if there are no others.
    """
    n, counts = y.shape[0], torch.bincount(y)
    if not round(test * n) and not round(validation * n):
        return torch.arange(n), torch.arange(0), torch.arange(0)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    grouped = order[torch.argsort(y[order], stable=True)]  # class by class, each shuffled
    rank = torch.arange(n) - (torch.cumsum(counts, 0) - counts)[y[grouped]]
    tested = _quotas(counts, round(test * n), generator)
    kept = tested + _quotas(counts - tested, round(validation * n), generator)
    is_test = rank < tested[y[grouped]]
    is_train = rank >= kept[y[grouped]]
    parts = (is_train, ~is_test & ~is_train, is_test)
    train_rows, validation_rows, test_rows = (grouped[part].sort().values for part in parts)
    return train_rows, validation_rows, test_rows


def _quotas(counts: Tensor, total: int, generator: torch.Generator) -> Tensor:
    """How many of each class make up `total` samples: in proportion, by largest remainder, ties by lot."""
    exact = counts.double() * (total / max(int(counts.sum()), 1))
    quotas = exact.floor().long()
    lot = torch.randperm(len(counts), generator=generator)
    while (left := total - int(quotas.sum())) > 0:
        able = quotas < counts - 1
        able = able if able.any() else quotas < counts  # only then the last of a class
        claim = torch.where(able, exact - quotas, -math.inf)
        claimants = lot[torch.argsort(claim[lot], descending=True, stable=True)]
        quotas[claimants[: min(left, int(able.sum()))]] += 1
    return quotas


def assemble(
    name: str,
    kind: Kind,
    classes: Sequence[str],
    plan: SplitPlan,
    train: Split,
    *,
    validation: Split | None = None,
    test: Split | None = None,
) -> Dataset:
    """A `Dataset` from samples; parts that do not come ready-made are taken from `train` by the plan."""
    rows = plan.rows(train.y, validation=validation is None, test=test is None)
    parts = [take(train, r) for r in rows]
    mean, std = moments(parts[0].x)
    return Dataset(name, kind, parts[0], validation or parts[1], test or parts[2], tuple(classes), mean, std)


def take(split: Split, rows: Tensor) -> Split:
    """The given rows of a split; all of them cost no copy."""
    return split if rows.shape[0] == split.n else Split(split.x[rows], split.y[rows])


def drawn(total: int, count: int) -> Tensor:
    """Row numbers, ascending, of `count` of `total` samples, or of all if there are fewer; the same draw every time."""
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].sort().values


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, float32: of bytes (n, C, H, W) per channel, as 0..1; of floats (n, D) per column."""
    if x.shape[0] == 0:
        raise ValueError("expected at least one training sample, got none; add samples")
    if x.dtype == torch.uint8:
        mean, std = _byte_moments(x)
    else:
        some = torch.split(x, 64, 1)  # columns at once: all of them in float64 would take twice the memory of x
        parts = [torch.std_mean(columns.double(), 0, correction=0) for columns in some]
        std, mean = (torch.cat(part) for part in zip(*parts, strict=True))
        # rounding leaves a constant column a spread of about 1e-16 of its size
        std = torch.where(std > 1e-12 * mean.abs(), std, torch.zeros_like(std))
    return mean.float(), torch.where(std > 0, std, torch.ones_like(std)).float()


def _byte_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    # from the histogram: exact, whatever the number of threads
    values = torch.arange(256, dtype=torch.float64) / 255
    histogram = torch.zeros(x.shape[1], 256, dtype=torch.int64)
    rows = max(1, 32768 // (x.shape[2] * x.shape[3]))  # pieces too small for torch to wake its threads, which costs more
    for piece in torch.split(x, rows):
        for channel, counts in enumerate(histogram):
            counts += torch.bincount(piece[:, channel].flatten(), minlength=256)
    weights = histogram.double() / histogram[0].sum()  # (C, 256)
    mean = weights @ values
    return mean, (weights * (values - mean[:, None]) ** 2).sum(1).sqrt()


def encode_labels(values: np.ndarray[Any, Any], what: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels 0..K-1 (n,) int64 and class names of integers, strings, booleans or whole floats, in their sorted order."""
    if values.dtype.kind == "f":
        missing = int(np.isnan(values).sum())
        if missing:
            raise ValueError(f"{what}: expected a class for every row, got {missing} missing; drop those rows")
        fractional = values[(values != np.round(values)) | (np.abs(values) >= 2**63)]  # infinity too
        if fractional.size:
            raise ValueError(f"{what}: expected classes, got real numbers such as {fractional[0]:g}; that is a regression")
        values = values.astype(np.int64)
    if values.dtype.kind not in "iubUO":
        raise ValueError(f"{what}: expected classes as integers, strings or booleans, got {values.dtype}")
    unique, labels = np.unique(values, return_inverse=True)
    if len(unique) < 2:
        found = f"only {str(unique[0])!r}" if len(unique) else "no rows"
        raise ValueError(f"{what}: expected two classes or more, got {found}; there is nothing to classify")
    return torch.from_numpy(labels.reshape(-1).astype(np.int64)), tuple(str(u) for u in unique)


def check_told_apart(column: np.ndarray[Any, Any], what: str) -> None:
    """Raise if float32 would round the numbers of a column (n,) by more than a tenth of their spread; one number may."""
    low, high, wide = column.min(), column.max(), column.astype(np.float64)  # large integers may be constant there
    if column.dtype.kind == "f" and high - low <= 1e-14 * np.abs(wide).max():
        return  # 0.3 and 0.1 + 0.2 are one number
    if low < high and (wide.min() == wide.max() or np.abs(wide - wide.astype(np.float32)).max() > 0.1 * wide.std()):
        shown = " to ".join(f"{value:.17g}" if isinstance(value, float) else str(value) for value in (low, high))
        raise ValueError(
            f"{what}: expected numbers that float32 can tell apart, got {shown}, which it rounds by more than a tenth of "
            "their spread; subtract an offset or rescale them, or drop the column"
        )


def _check_split(what: str, split: Split, kind: Kind, shape: Sequence[int], num_classes: int) -> None:
    dtype, axes = (torch.uint8, 4) if kind == "image" else (torch.float32, 2)
    if split.x.dtype != dtype or split.x.ndim != axes or split.x.shape[1:] != shape or math.prod(shape) == 0:
        raise ValueError(
            f"{what}: expected x of {dtype} with {axes} axes, each input of shape {tuple(shape)}, "
            f"got {split.x.dtype} of shape {tuple(split.x.shape)}"
        )
    if split.y.dtype != torch.int64 or split.y.shape != split.x.shape[:1]:
        raise ValueError(f"{what}: expected int64 y of shape ({split.x.shape[0]},), got {split.y.dtype} {tuple(split.y.shape)}")
    if split.n and not 0 <= int(split.y.min()) <= int(split.y.max()) < num_classes:
        raise ValueError(f"{what}: expected labels in [0, {num_classes}), got {int(split.y.min())} to {int(split.y.max())}")


def _check_classes(data: Dataset) -> None:
    if data.num_classes < 2:
        raise ValueError(f"{data.name}: expected two classes or more, got {data.num_classes}; there is nothing to classify")
    counts = torch.bincount(data.train.y, minlength=data.num_classes).tolist()
    absent = [name for name, count in zip(data.classes, counts, strict=True) if not count]
    if absent:
        hint = "; add samples of it, or remove the class (in Python, load with smaller validation= and test=)"
        if 20 < data.num_classes > data.train.n / 2:
            hint = f"; {data.num_classes} classes are too many for so few samples: are they amounts, or the numbers of rows?"
        raise ValueError(
            f"{data.name}: expected every class in the training split of {data.train.n}, got none of {absent[0]!r}"
            + (f" and {len(absent) - 1} more{hint}" if len(absent) > 1 else hint)
        )
