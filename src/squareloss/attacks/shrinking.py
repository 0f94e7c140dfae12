"""Projected gradient ascent in a ball that shrinks: from far outside, where the class is lost, back to the ball that counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss.attacks._common import ascend, column, inside, project
from squareloss.attacks._random import in_ball
from squareloss.attacks._rounds import Climbing, Problem, State, set_target
from squareloss.attacks.losses import Objective

_MOMENTUM = 0.75
_SHRINK = 0.7  # of the radius, once the class is lost
_FREE = 3  # steps before it may fall for that
_TAIL = 0.3  # share of the steps that are taken in the ball that counts
_LAST = 0.1  # length of the last steps, as a share of the radius; the first is as long as it


@dataclass(frozen=True, eq=False)
class ShrinkRound(Climbing):
    """One run from a random start in a ball `widest` times as wide as the one that counts, and ever smaller.

    On networks trained long with square loss, gradients within the ball may say little of where the class changes. In a wider
    ball it does change, and from there the example is led back along the boundary to where that comes closest: when it is
    lost, its radius falls by 30%. It also falls in equal ratios with time, so that the last 30% of the steps are taken in
    the ball that counts; nothing outside that does. Steps have momentum and grow shorter.
    """

    goal: Objective
    steps: int
    restart: int = 0
    widest: float = 8.0
    attack: str = "shrinking"
    bar: float = torch.inf

    def start(self, problem: Problem, state: State) -> None:
        """A point uniform in the ball."""
        set_target(state, 0)
        x, place = state["x"], (self.attack, self.goal.name, self.restart)
        start = x + problem.eps * in_ball(problem.draws, state["id"], place, x, problem.norm)
        self._try(problem, state, project(start, x, problem.eps, problem.norm))
        state |= {"before": state["tried"], "radius": torch.full_like(state["margin"], self.radius(problem, 0))}

    def step(self, problem: Problem, state: State, i: int) -> None:
        """A step with momentum, and back into the ball of the moment."""
        x, z = state["x"], state["tried"]
        smaller = state["lost"] & (i >= _FREE)
        radii = torch.where(smaller, _SHRINK * state["radius"], state["radius"])
        state["radius"] = radii.clamp(problem.eps, self.radius(problem, i))
        radius = column(state["radius"], x)
        length = radius * max(1 - i / self.steps, _LAST)
        moved = project(ascend(z, state["gradient"], length, problem.norm), x, radius, problem.norm)
        moved = z + (moved - z) * _MOMENTUM + (z - state["before"]) * (1 - _MOMENTUM)
        state["before"] = z
        self._try(problem, state, project(moved, x, radius, problem.norm))

    def radius(self, problem: Problem, i: int) -> float:
        """What it is at most after i steps."""
        widest = self.widest if problem.norm == "l2" else min(self.widest, max(1 / problem.eps, 1.0))  # the box is no wider
        return float(problem.eps * widest ** max(0.0, 1 - i / ((1 - _TAIL) * self.steps)))

    def _try(self, problem: Problem, state: State, tried: Tensor) -> None:
        self.climb(problem, state, tried)
        fair = inside(tried, state["x"], problem.eps, problem.norm)
        state |= {"lost": state["margin"] <= 0, "margin": state["margin"].where(fair, torch.inf)}
