"""Randomness that belongs to the example: what is drawn for a point depends on its index, not on who shares its batch."""

from __future__ import annotations

import math
import operator
import zlib

import torch
from torch import Tensor

from squareloss.attacks._common import Norm, column, normalise

_MASK = (1 << 64) - 1
# of splitmix64, 0x9e3779b97f4a7c15 and so on, as the signed integers that tensors hold; their products wrap
GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


class PerExample:
    """Counter-based draws: splitmix64 of (seed, place, index of the example, lane).

    A place is a tuple of strings and numbers, such as ("apgd-t", 3, 0): attack, round, step. Draws for a subset of the points
    are the same as for all of them, in any order, on any device.
    """

    shared = False

    def __init__(self, seed: int) -> None:
        self.seed = operator.index(seed)

    def restart(self) -> None:
        """Nothing to do: there is no state."""

    def uniform(self, ids: Tensor, place: tuple[str | int, ...], shape: tuple[int, ...]) -> Tensor:
        """Uniform on [0, 1), float32, (n, *shape)."""
        lanes = torch.arange(math.prod(shape), device=ids.device)
        base = _mix(ids.long() * GOLDEN + _key(self.seed, place))
        return fraction(base.unsqueeze(1) + lanes * GOLDEN).view(len(ids), *shape)

    def normal(self, ids: Tensor, place: tuple[str | int, ...], shape: tuple[int, ...]) -> Tensor:
        """Standard normal, float32, (n, *shape), by Box and Muller."""
        u = self.uniform(ids, (*place, "normal"), (2, *shape))
        return (-2 * torch.log1p(-u[:, 0])).sqrt() * torch.cos(2 * torch.pi * u[:, 1])

    def state(self) -> Tensor | None:
        """What must be saved to go on: nothing."""
        return None

    def restore(self, state: Tensor | None) -> None:
        """The counterpart of `state`."""


class Published:
    """Draws in the order of the published AutoAttack code: one CPU generator, seeded anew for each attack and batch.

    With the same seed and batch size the random numbers are the same ones, so verdicts can be compared point by point. Squares
    are placed alike for all points of a batch.
    """

    shared = True

    def __init__(self, seed: int) -> None:
        self.seed = operator.index(seed)
        self.generator = torch.Generator()
        self.restart()

    def restart(self) -> None:
        """Seed anew."""
        self.generator.manual_seed(self.seed)

    def uniform(self, ids: Tensor, place: tuple[str | int, ...], shape: tuple[int, ...]) -> Tensor:
        """The next uniform numbers, float32, (n, *shape)."""
        return torch.rand((len(ids), *shape), generator=self.generator).to(ids.device)

    def normal(self, ids: Tensor, place: tuple[str | int, ...], shape: tuple[int, ...]) -> Tensor:
        """The next standard normal numbers, float32, (n, *shape)."""
        return torch.randn((len(ids), *shape), generator=self.generator).to(ids.device)

    def numbers(self, count: int, device: torch.device) -> Tensor:
        """The next uniform numbers for the whole batch, (count,): the same as drawn one by one."""
        return torch.rand(count, generator=self.generator).to(device)

    def state(self) -> Tensor | None:
        """The state of the generator."""
        return self.generator.get_state()

    def restore(self, state: Tensor | None) -> None:
        """The counterpart of `state`."""
        if state is not None:
            self.generator.set_state(state.cpu())


Draws = PerExample | Published


def in_ball(draws: Draws, ids: Tensor, place: tuple[str | int, ...], like: Tensor, norm: Norm) -> Tensor:
    """Uniform in the unit ball of the norm, one draw per point."""
    shape = tuple(like.shape[1:])
    if norm == "linf":
        return (2 * draws.uniform(ids, place, shape) - 1).to(like.dtype)
    direction = normalise(draws.normal(ids, place, shape), norm)
    radius = draws.uniform(ids, (*place, "radius"), ()).pow(1 / like[0].numel())
    return (direction * column(radius, direction)).to(like.dtype)


def on_sphere(draws: Draws, ids: Tensor, place: tuple[str | int, ...], like: Tensor, norm: Norm) -> Tensor:
    """A random point of norm one, as AutoAttack starts: a uniform draw over its l_inf norm, or a normal one over its l_2."""
    shape = tuple(like.shape[1:])
    drawn = 2 * draws.uniform(ids, place, shape) - 1 if norm == "linf" else draws.normal(ids, place, shape)
    return normalise(drawn, norm).to(like.dtype)


def _key(seed: int, place: tuple[str | int, ...]) -> int:
    """One 64-bit number for seed and place, as a signed integer."""
    key = seed & _MASK
    for part in place:
        word = zlib.crc32(part.encode()) + (1 << 40) if isinstance(part, str) else part
        key = _mix_int((key ^ word) + GOLDEN)
    return key - (1 << 64) if key >= 1 << 63 else key


def _mix_int(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def _mix(z: Tensor) -> Tensor:
    """The same finaliser on int64 tensors."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, by: int) -> Tensor:
    """Logical right shift: torch's is arithmetic."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def fraction(z: Tensor) -> Tensor:
    """Uniform on [0, 1), float32, by hashing integers z (...) of int64: no state, any device."""
    return _shift(_mix(z), 40).float() / 2**24
