"""From named values and replicates to a `Metric`."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Protocol

import torch
from torch import Tensor

from squareloss.metrics import _resample
from squareloss.metrics._resample import Family
from squareloss.metrics._results import Metric


class Source(Protocol):
    """What is measured: so many samples, on a device, with a share of the values outside [0, 1]."""

    @property
    def samples(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def outside(self) -> float: ...


def single(
    name: str, family: Family, of: Source, bootstrap: int, seed: int, details: Mapping[str, float] | None = None
) -> Metric:
    """One metric by itself: the estimate, and the interval if asked for."""
    values = _resample.estimate([family], of.samples, of.device)
    drawn = _resample.replicate([family], of.samples, of.device, bootstrap, seed) if bootstrap else {}
    return build(name, values, drawn, of.outside, details)


def build(
    name: str,
    values: Mapping[str, float],
    drawn: Mapping[str, Tensor],
    outside: float,
    details: Mapping[str, float] | None = None,
) -> Metric:
    """A `Metric` from named values and their replicates; values named `metric.something` become its details."""
    own = {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}
    interval = _interval(name, values, drawn) if drawn else None
    return Metric(values[name], name=name, outside=outside, interval=interval, details={**(details or {}), **own})


def _interval(name: str, values: Mapping[str, float], drawn: Mapping[str, Tensor]) -> tuple[float, float]:
    if name != "debiased_ece":
        return _resample.basic(values[name], drawn[name])
    # its square is unbiased and its replicates are not, so they are centred; on that scale, where nothing is cut off at 0
    square = f"{name}.square"
    low, high = _resample.centred(values[square], drawn[square])
    return sqrt(max(low, 0)), sqrt(max(high, 0))
