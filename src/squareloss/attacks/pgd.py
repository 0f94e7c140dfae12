"""Projected gradient descent with any attack loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks
from squareloss.attacks._common import ascend, project
from squareloss.attacks._random import in_ball
from squareloss.attacks._rounds import Climbing, Options, Problem, Stage, State, check_options, set_target, tries
from squareloss.attacks._run import attack
from squareloss.attacks.losses import Objective, objective
from squareloss.attacks.results import AttackResult
from squareloss.codings import Coding


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    loss: str | Callable[..., Tensor] = "ce",
    steps: int = 100,
    step_size: float | None = None,
    restarts: int = 1,
    targets: int | Tensor | None = None,
    coding: Coding | None = None,
    scale: float = 1.0,
    **options: Unpack[Options],
) -> AttackResult:
    """Projected gradient descent (Madry et al. 2018): x <- P(x + step sign(gradient)) in l_inf, along the gradient in l_2.

    A point counts as broken if any iterate breaks it, the random start among them. Broken points leave at once.

    Arguments:
        model: any module that gives scores (N, K) on inputs in [0, 1], in eval mode.
        x, y: points (N, ...) in [0, 1] and their labels (N,).
        eps: radius of the ball.
        loss: what to maximise: a name in `losses.UNTARGETED`, or in `losses.TARGETED` with `targets`; or such a function.
        steps: gradient steps, 1 or more. Points that the start alone breaks have `step` 0 in the result.
        step_size: of each; None is 2.5 eps / steps, with which a point crosses the ball in the steps there are.
        restarts: tries from different random starts, uniform in the ball.
        targets: aim at the class of each point (N,), another than its label where the model is right; or at so many runners-up
            of the clean scores, one after another.
        coding: of the network, for losses that read eta; None is `Simplex()`.
        scale: factor on the scores before the loss.
        options: see `Options`.
    """
    check_options(pgd, options)
    _checks.whole("steps", steps)
    _checks.whole("restarts", restarts)
    if step_size is not None:
        _checks.positive("step_size", step_size)
    goal = objective(loss, targeted=targets is not None, coding=coding, scale=scale)

    def plan(num_classes: int) -> list[Stage]:
        size = 2.5 * eps / steps if step_size is None else step_size
        rounds = (PGDRound(goal, steps, size, *each) for each in tries(targets, restarts, num_classes, len(x)))
        return [Stage("pgd", tuple(rounds))]

    return attack(model, x, y, eps, plan, options)


@dataclass(frozen=True, eq=False)
class PGDRound(Climbing):
    """One restart, or one target class, of projected gradient descent."""

    goal: Objective
    steps: int
    step_size: float
    restart: int = 0
    rank: int = 0
    targets: Tensor | None = field(default=None, repr=False)
    attack: str = "pgd"
    bar: float = torch.inf

    def start(self, problem: Problem, state: State) -> None:
        """A point uniform in the ball."""
        set_target(state, self.rank, self.targets)
        x, place = state["x"], (self.attack, self.goal.name, self.rank, self.restart)
        start = x + problem.eps * in_ball(problem.draws, state["id"], place, x, problem.norm)
        self.climb(problem, state, project(start, x, problem.eps, problem.norm))

    def step(self, problem: Problem, state: State, i: int) -> None:
        """One step up the gradient, and back into the ball."""
        moved = ascend(state["tried"], state["gradient"], self.step_size, problem.norm)
        self.climb(problem, state, project(moved, state["x"], problem.eps, problem.norm))
