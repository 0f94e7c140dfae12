"""Auto-PGD (Croce and Hein 2020), untargeted and targeted: gradient steps with momentum whose size halves when they stall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks
from squareloss.attacks._common import ascend, column, project
from squareloss.attacks._random import on_sphere
from squareloss.attacks._rounds import Climbing, Options, Problem, Stage, State, check_options, set_target, tries
from squareloss.attacks._run import attack
from squareloss.attacks.losses import Objective, objective
from squareloss.attacks.results import AttackResult
from squareloss.codings import Coding

MOMENTUM = 0.75


def apgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    loss: str | Callable[..., Tensor] = "ce",
    steps: int = 100,
    restarts: int = 1,
    rho: float = 0.75,
    coding: Coding | None = None,
    scale: float = 1.0,
    **options: Unpack[Options],
) -> AttackResult:
    """Auto-PGD on an untargeted loss. Steps begin at 2 eps and halve at the checks (22, 41, 57, 70, 80, 87, 93, 99 of 100).

    x <- x + .75 (P(x + step direction) - x) + .25 (x - x_before). At a check the step of a point halves, and it goes back to
    the best point so far, if the loss rose in no more than `rho` of the steps since the last check, or if neither step nor best
    loss changed since then.

    Arguments: `steps` gradient steps, `restarts` random starts, `rho` as above; the others as for `pgd`.
    """
    check_options(apgd, options)
    _check_schedule(steps, restarts, rho)
    goal = objective(loss, coding=coding, scale=scale)
    rounds = tuple(APGDRound(goal, steps, restart, rho=rho, attack="apgd") for restart in range(restarts))
    return attack(model, x, y, eps, lambda _: [Stage("apgd", rounds)], options)


def apgd_targeted(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    loss: str | Callable[..., Tensor] = "dlr",
    steps: int = 100,
    restarts: int = 1,
    targets: int | Tensor = 9,
    rho: float = 0.75,
    coding: Coding | None = None,
    scale: float = 1.0,
    **options: Unpack[Options],
) -> AttackResult:
    """Auto-PGD on a targeted loss, once for each of the `targets` best wrong classes of the clean scores.

    Arguments: as for `apgd` and `pgd`; `loss` is a name in `losses.TARGETED`, with or without its suffix.
    """
    check_options(apgd_targeted, options)
    _check_schedule(steps, restarts, rho)
    goal = objective(loss, targeted=True, coding=coding, scale=scale)

    def plan(num_classes: int) -> list[Stage]:
        rounds = (APGDRound(goal, steps, *each, rho, "apgd-t") for each in tries(targets, restarts, num_classes, len(x)))
        return [Stage("apgd-t", tuple(rounds))]

    return attack(model, x, y, eps, plan, options)


def _check_schedule(steps: int, restarts: int, rho: float) -> None:
    _checks.whole("steps", steps)
    _checks.whole("restarts", restarts)
    if not 0 <= rho <= 1:
        raise ValueError(f"expected rho in [0, 1], got {rho}; it is a share of the steps")


@dataclass(frozen=True, eq=False)
class APGDRound(Climbing):
    """One restart, or one target class, of Auto-PGD."""

    goal: Objective
    steps: int
    restart: int = 0
    rank: int = 0
    targets: Tensor | None = field(default=None, repr=False)
    rho: float = 0.75
    attack: str = "apgd"
    bar: float = torch.inf
    lanes: ClassVar[bool] = True

    def start(self, problem: Problem, state: State) -> None:
        """Choose the targets, and begin."""
        set_target(state, self.rank, self.targets)
        self.begin(problem, state)

    def begin(self, problem: Problem, state: State) -> None:
        """A random point of the sphere, clipped to the box."""
        x, place = state["x"], (self.attack, self.goal.name, self.rank, self.restart)
        start = x + problem.eps * on_sphere(problem.draws, state["id"], place, x, problem.norm)
        value = self.climb(problem, state, start.clamp_(0, 1))
        state |= {
            "z": state["tried"],  # where the next step starts from
            "before": state["tried"],
            "best": state["tried"],
            "best_gradient": state["gradient"],
            "best_value": value,
            "last_best": value,  # at the last check
            "value": torch.zeros_like(value),  # the published code compares the first step with zero
            "rises": torch.zeros_like(value),  # since the last check
            "halved": torch.ones_like(value, dtype=torch.bool),  # at the last check
            "size": torch.full_like(value, 2 * problem.eps),
        }

    def step(self, problem: Problem, state: State, i: int) -> None:
        """A step with momentum, and a check of the step size if its time has come."""
        z, x = state["z"], state["x"]
        keep = MOMENTUM if i > 0 else 1.0
        moved = ascend(z, state["gradient"], column(state["size"], z), problem.norm)
        moved = project(moved, x, problem.eps, problem.norm)
        blend = z + (moved - z) * keep + (z - state["before"]) * (1 - keep)
        state["before"] = z
        value = self.climb(problem, state, project(blend, x, problem.eps, problem.norm))
        state["z"] = state["tried"]
        self._remember(state, value)
        since = checks(self.steps).get(i + 1)
        if since is not None:
            self._halve(state, since)

    def _remember(self, state: State, value: Tensor) -> None:
        """Keep the best point, its gradient and its loss; count the rises."""
        better = value > state["best_value"]
        wide = column(better, state["x"])
        state["best"] = torch.where(wide, state["tried"], state["best"])
        state["best_gradient"] = torch.where(wide, state["gradient"], state["best_gradient"])
        state["best_value"] = torch.maximum(value, state["best_value"])
        state["rises"] = state["rises"] + (value > state["value"])
        state["value"] = value

    def _halve(self, state: State, since: int) -> None:
        """Halve the step of points that stall, and take them back to their best point."""
        stuck = ~state["halved"] & (state["last_best"] >= state["best_value"])
        stalls = (state["rises"] <= self.rho * since) | stuck
        wide = column(stalls, state["x"])
        state["size"] = torch.where(stalls, state["size"] / 2, state["size"])
        state["z"] = torch.where(wide, state["best"], state["z"])
        state["gradient"] = torch.where(wide, state["best_gradient"], state["gradient"])
        state |= {"halved": stalls, "last_best": state["best_value"], "rises": torch.zeros_like(state["rises"])}


def checks(steps: int) -> dict[int, int]:
    """After which steps the step size is checked, and how many steps passed since the check before.

    The gaps begin at 22% of the steps and shrink by 3% each time, to no less than 6%.
    """
    gap, least, shrink = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    at, found = gap, {}
    while at <= steps:
        found[at] = gap
        gap = max(gap - shrink, least)
        at += gap
    return found
