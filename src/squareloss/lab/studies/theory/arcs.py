"""Separable classes with a margin: arcs of a circle by turns of either class, and two opposite caps of a sphere."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss.lab.studies.theory.sphere import circle_points, uniform


@dataclass(frozen=True)
class Arcs:
    """Label sign(cos(turns theta)), uniform on the circle but for gaps of half-width `gap` (radians) where the sign changes.

    There are 2 turns arcs. For even turns the label is even, and in reach of h; for odd turns >= 3 it is odd, and out of reach.
    """

    turns: int
    gap: float

    @property
    def length(self) -> float:
        """Of one arc."""
        return math.pi / self.turns - 2 * self.gap

    def sample(self, replications: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points (R, n, 2) and labels (R, n)."""
        arc = torch.randint(0, 2 * self.turns, (replications, n), generator=generator)
        offset = torch.rand(replications, n, generator=generator, dtype=torch.float64)
        return circle_points(self.angle(arc, offset)), self.sign(arc)

    def angle(self, arc: Tensor, offset: Tensor) -> Tensor:
        """The angle at a part (0 to 1) of an arc; arc 0 is centred at angle 0."""
        return arc.double() * (math.pi / self.turns) + (offset - 0.5) * self.length

    def sign(self, arc: Tensor) -> Tensor:
        """The label of an arc: the first is positive."""
        return (1 - 2 * (arc % 2)).double()

    def grid(self) -> tuple[Tensor, Tensor]:
        """Points (N, 2) of the support, 101 of each arc, its ends among them, and their labels (N,)."""
        arc = torch.arange(2 * self.turns).repeat_interleave(101)
        offset = torch.linspace(0, 1, 101, dtype=torch.float64).repeat(2 * self.turns)
        return circle_points(self.angle(arc, offset)), self.sign(arc)

    def gaps(self) -> Tensor:
        """(2 turns, 201) angles across the gap after each arc, its ends among them."""
        first = (torch.arange(2 * self.turns, dtype=torch.float64) + 0.5) * (math.pi / self.turns) - self.gap
        return first.unsqueeze(1) + 2 * self.gap * torch.linspace(0, 1, 201, dtype=torch.float64)


@dataclass(frozen=True)
class Caps:
    """Two opposite caps of the sphere in R^3, half-angle `angle`: label sign(x_1). Linear separation is easy; the constant
    +-1 on them is an odd function, and not one that h can hold."""

    angle: float

    def sample(self, replications: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points (R, n, 3) and labels (R, n)."""
        height = torch.rand(replications, n, generator=generator, dtype=torch.float64)
        height = 1 - height * (1 - math.cos(self.angle))  # uniform by area, as Archimedes found
        label = torch.randint(0, 2, (replications, n), generator=generator).double() * 2 - 1
        turn = torch.rand(replications, n, generator=generator, dtype=torch.float64) * (2 * math.pi)
        return self._place(height, turn, label), label

    def grid(self) -> tuple[Tensor, Tensor]:
        """Points (N, 3), half of them on the rims, and their labels (N,)."""
        x = uniform(4040, 3, torch.Generator().manual_seed(0))
        inside = x[x[:, 0].abs() >= math.cos(self.angle)][:404]
        turn = torch.linspace(0, 2 * math.pi, 203, dtype=torch.float64)[:-1]
        rim = torch.full_like(turn, math.cos(self.angle))
        rims = [self._place(rim, turn, sign * torch.ones_like(turn)) for sign in (1, -1)]
        points = torch.cat([inside, *rims])
        return points, points[:, 0].sign()

    def _place(self, height: Tensor, turn: Tensor, label: Tensor) -> Tensor:
        radius = (1 - height.square()).clamp(min=0).sqrt()
        return torch.stack([label * height, radius * turn.cos(), radius * turn.sin()], -1)
