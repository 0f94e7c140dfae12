"""Accuracy under Gaussian noise."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from squareloss import _checks
from squareloss.attacks._common import batches, check_inputs
from squareloss.attacks._network import Network
from squareloss.attacks._random import PerExample


@dataclass
class NoiseResult:
    """Accuracy at each standard deviation.

    Arguments:
        std: the standard deviations.
        accuracy: the share of right classes at each, averaged over the draws.
        correct: (len(std), draws, N), the verdicts.
    """

    std: list[float]
    accuracy: list[float]
    correct: Tensor


def gaussian_noise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    std: float | Sequence[float] = (0.1, 0.2, 0.3, 0.4),
    *,
    channel_std: Sequence[float] | Tensor | None = None,
    clamp: bool = False,
    draws: int = 1,
    seed: int = 0,
    batch_size: int | None = None,
) -> NoiseResult:
    """Accuracy on x + noise. We read the paper's noise as in standardised space, after (x - mean) / channel_std.

    A model that standardises inside takes pixels, so the noise in pixels is std channel_std_c N(0, 1): pass the `channel_std`
    of its standardisation. Without it the noise is in pixel space, which is about four times as strong on CIFAR.

    Arguments:
        model: any module that gives scores (N, K) on inputs in [0, 1], in eval mode.
        x, y: points (N, C, ...) in [0, 1] and their labels (N,).
        std: standard deviations of the noise, one or several.
        channel_std: the (C,) standard deviations that the model divides by; None for noise in pixel space.
        clamp: clip the noisy inputs to [0, 1]; standardised inputs, as the paper's are read, are not clipped.
        draws: independent draws per point, averaged.
        seed: of the noise; each point has its own draws, whatever the batch size.
        batch_size: points per pass.
    """
    check_inputs(model, x, y, 1.0, "l2")
    _checks.whole("draws", draws)
    if batch_size is not None:
        _checks.whole("batch_size", batch_size)
    network = Network(model, x, y, batch_size=batch_size, plain=True)
    std = float(std) if isinstance(std, Tensor) and not std.ndim else std
    std = [float(std)] if isinstance(std, (int, float, numbers.Real)) else [float(each) for each in std]
    if not std or not all(0 <= each < math.inf for each in std):
        raise ValueError(f"expected standard deviations that are finite and not negative, got {std}")
    width = _widths(channel_std, x)
    correct = torch.zeros(len(std), draws, len(x), dtype=torch.bool)
    source = PerExample(seed)
    for ids in batches(torch.arange(len(x)), network.batch_size):
        clean, label = x[ids].to(network.device), y[ids].to(network.device)
        for draw in range(draws):
            noise = source.normal(ids.to(network.device), ("noise", draw), tuple(x.shape[1:])).to(x.dtype) * width.to(clean)
            for k, s in enumerate(std):
                noisy = clean + s * noise
                correct[k, draw, ids] = (network.exact(noisy.clamp(0, 1) if clamp else noisy).argmax(1) == label).cpu()
    accuracy = correct.double().mean((1, 2)).tolist()
    return NoiseResult(std, accuracy, correct)


def _widths(channel_std: Sequence[float] | Tensor | None, x: Tensor) -> Tensor:
    """One factor per channel, shaped to broadcast over x (N, C, ...)."""
    if channel_std is None:
        return torch.ones(())
    width = torch.as_tensor(channel_std, dtype=x.dtype)
    if width.shape != (x.shape[1],):
        raise ValueError(f"expected channel_std of shape ({x.shape[1]},), one per channel, got {tuple(width.shape)}")
    return width.view(-1, *[1] * (x.ndim - 2))
