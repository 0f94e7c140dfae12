"""The calibration error of Blasiok and Nakkiran (2023): a smooth curve instead of bins, and its bandwidth is no choice."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from squareloss.metrics import _inputs
from squareloss.metrics._binned import by_cell
from squareloss.metrics._inputs import Predictions
from squareloss.metrics._results import Metric
from squareloss.metrics._single import single

GRID = 2048  # intervals of the grid on [0, 1]
SMALLEST = 1e-3  # smallest bandwidth: two steps of the grid


def smooth_ece(probabilities: Tensor, labels: Tensor, *, bootstrap: int = 0, seed: int = 0) -> Metric:
    """smECE of the top label: the smoothed calibration error at the bandwidth that equals it.

    smECE_s = integral over [0, 1] of |1/N sum_i K_s(t, c_i) (c_i - correct_i)| dt, with c the confidences and K_s the Gaussian
    kernel of standard deviation s reflected at 0 and 1. It falls as s grows, and smECE is its value where smECE_s = s, found
    here to nine digits and given as `details["bandwidth"]`; a bandwidth below 0.001 is set to 0.001. Consistent: it changes
    little if confidences do, as binned errors do not.

    Residuals are placed on a grid of 2049 points, each shared between its two neighbours, which adds h^2/6 to s^2 on
    average, h = 1/2048: an error of about 2e-8 / smECE, so 2e-5 at worst. Raw eta is clamped to [0, 1]. Arguments as in `ece`.
    """
    predictions = _inputs.read(probabilities, labels)
    return single("smooth_ece", Smooth(predictions), predictions, bootstrap, seed)


class Smooth:
    """counts -> smooth_ece.

    The reflected Gaussian kernel is the heat kernel of [0, 1], diagonal in cosines: exp(-(pi m s)^2 / 2) at mode m. So one
    Fourier transform of the residuals, extended evenly to [0, 2], serves every bandwidth.
    """

    def __init__(self, predictions: Predictions) -> None:
        place = predictions.confidence.double() * GRID
        self.cell = place.floor().clamp_(max=GRID - 1).long()
        share = place - self.cell
        self.left, self.right = predictions.residual * (1 - share), predictions.residual * share

    def __call__(self, counts: Tensor) -> dict[str, Tensor]:
        grid = by_cell(counts * self.left, self.cell, GRID + 1)
        grid += by_cell(counts * self.right, self.cell + 1, GRID + 1)
        spectrum = _spectrum(grid / counts.shape[1])
        error, bandwidth = _fixed_point(spectrum)
        return {"smooth_ece": error, "smooth_ece.bandwidth": bandwidth}


def _spectrum(grid: Tensor) -> Tensor:
    """The Fourier transform of (R, G + 1) values reflected to a period of 2 G points; their own images double the ends."""
    ends = grid[:, [0, -1]] * 2
    even = torch.cat([ends[:, :1], grid[:, 1:-1], ends[:, 1:], grid[:, 1:-1].flip(1)], 1)
    spectrum: Tensor = torch.fft.rfft(even)
    return spectrum


def _smoothed(spectrum: Tensor, bandwidth: Tensor) -> Tensor:
    """smECE_s of each row at its own bandwidth (R,): half the L1 norm over the period, which is the trapezium rule."""
    modes = min(GRID, int(7 / (math.pi * float(bandwidth.min())))) + 1  # beyond them the kernel is below exp(-7^2/2)
    frequency = math.pi * torch.arange(modes, dtype=torch.float64, device=bandwidth.device)
    decay = torch.exp(-0.5 * (bandwidth[:, None] * frequency).square())
    smoothed: Tensor = torch.fft.irfft(spectrum[:, :modes] * decay, n=2 * GRID)
    return 0.5 * smoothed.abs().sum(1)


def _fixed_point(spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """Where smECE_s = s, for each row: (error, bandwidth), (R,) each.

    log smECE_s - log s falls, almost linearly in log s, so the secant method finds its zero; and since smECE_s itself falls,
    every evaluation shuts the zero in between s and smECE_s, which safeguards it.
    """
    floor = math.log(SMALLEST)
    where = torch.full((len(spectrum),), math.log(0.03), dtype=torch.float64, device=spectrum.device)
    low, high = torch.full_like(where, floor), torch.zeros_like(where)
    slope = torch.full_like(where, -1.5)  # what pure noise has
    last_where, last_gap = where, torch.zeros_like(where)
    for attempt in range(50):
        error = _smoothed(spectrum, where.exp())
        log_error = error.clamp_min(1e-300).log()
        gap = log_error - where
        if bool(((gap.abs() < 1e-9) | ((where <= floor) & (gap < 0))).all()):
            break
        low = torch.maximum(low, torch.minimum(where, log_error))
        high = torch.minimum(high, torch.maximum(where, log_error)).clamp_min(floor)
        if attempt:
            move = where - last_where
            slope = ((gap - last_gap) / move).where(move.abs() > 1e-12, slope).clamp(-10, -0.5)
        last_where, last_gap = where, gap
        where = (where - gap / slope).clamp(low, high)
    return error, where.exp()
