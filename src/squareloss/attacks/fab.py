"""Targeted FAB (Croce and Hein 2020): walk along the boundary to a target class towards the point itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks
from squareloss.attacks._common import Norm, column, distance, relative_margin
from squareloss.attacks._random import on_sphere
from squareloss.attacks._rounds import Climbing, Options, Problem, Stage, State, check_options, set_target, tries
from squareloss.attacks._run import attack
from squareloss.attacks.losses import Objective, objective
from squareloss.attacks.results import AttackResult

BIAS, OVERSHOOT, BACK = 0.1, 1.05, 0.9  # alpha_max, eta and beta of the paper
_NEWTON = 10  # steps of Newton's method; on CUDA always all of them, since a look at convergence would wait for the device


def fab_targeted(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    steps: int = 100,
    restarts: int = 1,
    targets: int | Tensor = 9,
    **options: Unpack[Options],
) -> AttackResult:
    """Targeted FAB, once for each of the `targets` best wrong classes of the clean scores.

    Each step linearises f_t - f_y, projects the current and the original point onto the hyperplane where it is zero, inside the
    box, and moves to a mixture of both, a little beyond; an adversarial point is pulled a tenth of the way back. FAB looks for
    the nearest example; here it stops once inside the ball. The first restart begins at the point itself.

    Arguments: as for `pgd`.
    """
    check_options(fab_targeted, options)
    _checks.whole("steps", steps)
    _checks.whole("restarts", restarts)

    def plan(num_classes: int) -> list[Stage]:
        rounds = (FABRound(steps, *each) for each in tries(targets, restarts, num_classes, len(x)))
        return [Stage("fab-t", tuple(rounds))]

    return attack(model, x, y, eps, plan, options)


@dataclass(frozen=True, eq=False)
class FABRound(Climbing):
    """One target class of FAB."""

    steps: int
    restart: int = 0
    rank: int = 1
    targets: Tensor | None = field(default=None, repr=False)
    goal: Objective = field(default_factory=lambda: objective("margin", targeted=True))
    attack: str = "fab-t"
    bar: float = torch.inf
    costs: ClassVar[tuple[int, int, int, int]] = (0, 0, 2, 1)
    lanes: ClassVar[bool] = True

    def start(self, problem: Problem, state: State) -> None:
        """The point itself; a restart begins half-way to the sphere."""
        set_target(state, self.rank, self.targets)
        x = state["x"]
        state["z"] = x
        if self.restart:
            place = (self.attack, self.rank, self.restart)
            state["z"] = (x + problem.eps / 2 * on_sphere(problem.draws, state["id"], place, x, problem.norm)).clamp_(0, 1)
        state["tried"], state["margin"] = x, torch.full_like(state["refuted"], torch.inf)

    def step(self, problem: Problem, state: State, i: int) -> None:
        """One linearisation, one projection, one look at the class."""
        x, z, n = state["x"], state["z"], len(state["x"])
        _, value, gradient = problem.network.gradient(z, self.goal, state["y"], state["target"])
        w = gradient.flatten(1)
        origin = value + (w * (x - z).flatten(1)).sum(1)  # the linearised value at the original point
        points = torch.cat([z.flatten(1), x.flatten(1)])
        moves = to_hyperplane(points, torch.cat([w, w]), torch.cat([value, origin]), problem.norm)
        lengths = distance(moves, problem.norm).clamp_min(1e-8)
        share = column((lengths[:n] / (lengths[:n] + lengths[n:])).clamp_max(BIAS), x)
        from_z, from_x = moves[:n].view_as(x), moves[n:].view_as(x)
        tried = ((z + OVERSHOOT * from_z) * (1 - share) + (x + OVERSHOOT * from_x) * share).clamp_(0, 1)
        margin = relative_margin(problem.network.scores(tried), state["y"])
        state["z"] = torch.where(column(margin < 0, x), x + (tried - x) * BACK, tried)
        near = distance(tried - x, problem.norm) <= problem.eps
        state["tried"], state["margin"] = tried, margin.masked_fill(~near, torch.inf)


def to_hyperplane(points: Tensor, w: Tensor, value: Tensor, norm: Norm) -> Tensor:
    """The shortest moves in the box [0, 1] that bring w.point + b from `value` to zero, or as far as the box allows.

    Every coordinate moves against the sign of value w_i, by min(lambda u_i, room_i), with u_i = 1 in l_inf and |w_i| in l_2.
    The progress sum_i |w_i| min(lambda u_i, room_i) is concave and piecewise linear in lambda, so Newton's method from zero
    rises to the solution and ends there after finitely many steps; no sorting.

    Arguments:
        points: (n, D) in the box. w: (n, D). value: (n,). norm: whose shortest moves.
    """
    size = w.abs()
    moving = size > (0 if norm == "linf" else 1e-8)
    size = size * moving
    down = (w > 0) == (value >= 0).unsqueeze(1)  # the coordinates that must fall
    room = torch.where(down, points, 1 - points)
    pace = moving.to(w) if norm == "linf" else size
    reach = torch.zeros_like(value)
    for k in range(_NEWTON):
        wish = pace * reach.unsqueeze(1)
        free = wish < room
        slope = (size * pace * free).sum(1)
        missing = value.abs() - (size * torch.minimum(wish, room)).sum(1)
        raise_by = torch.where(slope > 0, missing.clamp_min(0) / slope.clamp_min(1e-30), torch.zeros_like(slope))
        reach = reach + raise_by
        if not w.is_cuda and k > 1 and not bool((raise_by > 1e-7 * reach).any()):
            break
    move = torch.minimum(pace * reach.unsqueeze(1), room)
    return torch.where(down, -move, move)
