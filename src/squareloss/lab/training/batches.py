"""Training data on the device, and the order in which an epoch reads them.

Images stay bytes; crop, flip and the division by 255 happen on the device, in one gather. What an epoch draws depends on the
seed and the number of the epoch alone, so a run resumed in the middle, or on another device, sees the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

PAD = 4  # pixels of zero padding around an image before it is cropped


class Rows(NamedTuple):
    """Which samples a batch takes and how it cuts them: one entry per sample, or (steps, batch) for a whole epoch."""

    sample: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor

    def step(self, i: int | Tensor) -> Rows:
        """The rows of step i of an epoch; i may be a tensor of shape (1,) on the device."""
        if isinstance(i, int):
            return Rows(*(table[i] for table in self))
        return Rows(*(table.index_select(0, i).squeeze(0) for table in self))


def cut(images: Tensor, rows: Rows, height: int, width: int) -> Tensor:
    """Floats in [0, 1] (batch, C, height, width), cropped and flipped from bytes (N, H, W, C)."""
    down = rows.top[:, None] + torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device)
    across = torch.where(rows.flip[:, None] == 1, width - 1 - across, across) + rows.left[:, None]
    taken = images[rows.sample[:, None, None], down[:, :, None], across[:, None, :]]  # (batch, height, width, C)
    return taken.permute(0, 3, 1, 2).float() / 255


class Batches:
    """A training set, (N, C, H, W) bytes or (N, d) floats with labels (N,), held on a device.

    Arguments:
        x, y: the samples and their labels.
        batch_size: samples of a step; an epoch has floor(N / batch_size) steps.
        seed: of the order and the augmentation.
        augment: random crop and flip, for images.
        device: where the data go.
    """

    def __init__(self, x: Tensor, y: Tensor, *, batch_size: int, seed: int, augment: bool, device: torch.device | str) -> None:
        if len(x) != len(y):
            raise ValueError(f"expected one label per sample, got {len(x)} samples and {len(y)} labels")
        self.images = x.dtype == torch.uint8
        self.augment = augment and self.images
        if self.augment:
            x = torch.nn.functional.pad(x, (PAD,) * 4)
        if self.images:
            self.height, self.width = (size - 2 * PAD * self.augment for size in x.shape[2:])
            x = x.permute(0, 2, 3, 1).contiguous()  # (N, H, W, C): a gather then yields channels_last
        self.x, self.y = x.to(device), y.to(device)
        self.device = torch.device(device)
        self._order(batch_size, seed)

    def _order(self, batch_size: int, seed: int) -> None:
        if batch_size > len(self.y):
            raise ValueError(f"expected batch_size <= {len(self.y)}, the number of training samples, got {batch_size}")
        self.batch_size, self.seed, self.steps = batch_size, seed, len(self.y) // batch_size

    def reordered(self, batch_size: int, seed: int) -> Batches:
        """The same data, in batches of another size, in the order of another seed."""
        other = copy.copy(self)
        other._order(batch_size, seed)
        return other

    def epoch(self, epoch: int) -> Rows:
        """The rows of all steps of an epoch, (steps, batch), drawn on the CPU and moved to the device."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        count, shape = self.steps * self.batch_size, (self.steps, self.batch_size)
        sample = torch.randperm(len(self.y), generator=generator)[:count]
        if self.augment:
            top, left = torch.randint(0, 2 * PAD + 1, (2, count), generator=generator)
            flip = torch.randint(0, 2, (count,), generator=generator)
        else:
            top = left = flip = torch.zeros(count, dtype=torch.int64)
        return Rows(*(table.view(shape).to(self.device) for table in (sample, top, left, flip)))

    def take(self, rows: Rows, cut: Callable[..., Tensor] = cut) -> tuple[Tensor, Tensor]:
        """Inputs (batch, ...), images as floats in [0, 1], and labels (batch,)."""
        y = self.y[rows.sample]
        return (cut(self.x, rows, self.height, self.width) if self.images else self.x[rows.sample]), y
