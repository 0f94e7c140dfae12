"""What an attack is made of: stages of rounds, what a round gets to see and aims at, and the keywords of every attack."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypedDict, get_args

import torch
from torch import Tensor

from squareloss import _checks
from squareloss.attacks._common import Norm, relative_margin
from squareloss.attacks._network import Network, Precision
from squareloss.attacks._random import Draws
from squareloss.attacks.losses import Objective

# The state of a round: every tensor has one row per point still attacked, n in all. A point that leaves takes its row of each
# with it (`Evaluation._leave`). Saved evaluations hold all of them by name: who renames one must still read the old name.
#
# `Evaluation` writes, rounds read:
#   id (n,)             the places of the points among all
#   x (n, ...), y (n,)  points and labels
#   order (n, K)        the classes by rising clean score
# `Evaluation` writes and reads; others at most make tensors like these:
#   least (n,)          the lowest margin so far, in rounds before this one too: what bars are held against
#   refuted (n,)        the lowest margin of an example that float32 did not confirm; infinite before
#   closest (n, ...)    the example of the lowest margin in this round, which float32 looks at in the end
#   nearness (n,)       that margin; both absent if the search does not round
# `Round.start` and every `Round.step` write, `Evaluation` reads:
#   tried (n, ...)      examples
#   margin (n,)         theirs: zero or less where the class is lost, infinite where they do not count, else `relative_margin`,
#                           or, if no round has a bar, anything of that sign
#   gradient (n, ...)   what the next step would go along; absent if there is none, or none of this network: then points are not
#                           said to stand because it is zero
#   hit (n,)            the step that first lost the class, -1 before, and again where float32 does not confirm it (`Evaluation`
#                           sees to that); absent if it is the step after which the margin is looked at
#   skipped (n,)        by how many the forwards fell short of `costs`, negative if there were more; absent if by none
# `Abreast`, several rounds at once, writes and reads; absent if there is one:
#   lane.KEY (n, rounds, ...)   what KEY is in the state of each; there is no `gradient` but theirs
#   lane.won, .prize, .when     whether each has broken the point, as float32 confirmed, by which example, after which step
# Everything else is a round's own.
State = dict[str, Tensor]


class Options(TypedDict, total=False):
    """The keywords of every attack.

    norm: of the perturbation, "linf" (the default) or "l2".
    seed: of everything random. Default 0.
    batch_size: points per pass of the network. Default on CUDA by their size, 1024 images of CIFAR; 250 elsewhere.
    precision: of the search, "float32" or "bfloat16"; float32 decides. Default "bfloat16" on CUDA, "float32" elsewhere.
    parity: follow the published AutoAttack code: its random numbers, seeded per attack and batch, and a plain network. Slower.
    progress: show a line with an estimate on stderr. Default False.
    save: a file to save to, and to resume from if it is there.
    """

    norm: str
    seed: int
    batch_size: int | None
    precision: Precision | None
    parity: bool
    progress: bool
    save: str | Path | None


def check_options(attack: Callable[..., Any], options: Options) -> None:
    """Raise unless `attack`, called with these keywords beside its own, was called with ones that there are and that can be."""
    own = [name for name, each in inspect.signature(attack).parameters.items() if each.kind is each.KEYWORD_ONLY]
    known = [*own, *Options.__annotations__]
    for name in options:
        if name not in known:
            hint = _checks.nearest(name, known)
            raise TypeError(f"Unknown keyword {name!r} of {attack.__name__}. Available: {', '.join(known)}{hint}")
    if (size := options.get("batch_size")) is not None:
        _checks.whole("batch_size", size)
    if (precision := options.get("precision")) is not None:
        _checks.choose("precision", precision, get_args(Precision))


@dataclass(frozen=True)
class Problem:
    """What a round gets to see: the network, the ball, and where random numbers come from."""

    network: Network
    eps: float
    norm: Norm
    draws: Draws


class Advancing(Protocol):
    """What advances step by step: a round, or several abreast."""

    @property
    def steps(self) -> int:
        """How many."""

    @property
    def costs(self) -> tuple[int, int, int, int]:
        """Forwards and backwards of the start, and of a step."""

    @property
    def every(self) -> int:
        """On CUDA, how many steps may pass between looks at the margin."""

    def start(self, problem: Problem, state: State) -> None:
        """Make the starting points and try them."""

    def step(self, problem: Problem, state: State, i: int) -> None:
        """Step i of `steps`, from 0."""


class Round(Advancing, Protocol):
    """One try. A frozen dataclass; what changes is in the state: see `State`. If its class says `lanes`: see `abreast`."""

    @property
    def attack(self) -> str:
        """The name of the attack."""

    @property
    def loss(self) -> str:
        """The name of its loss."""

    @property
    def bar(self) -> float:
        """Only for points whose margin has been below this share of the clean one; infinite for all points."""

    def check(self, num_classes: int) -> None:
        """Raise if it can't be run."""


class Climbing:
    """What rounds that climb a loss share: its name, its check, and, unless they say otherwise, one gradient a step."""

    goal: Objective
    every: ClassVar[int] = 1
    costs: ClassVar[tuple[int, int, int, int]] = (1, 1, 1, 1)

    @property
    def loss(self) -> str:
        """The name of the loss."""
        return self.goal.name

    def check(self, num_classes: int) -> None:
        """Raise if the loss can't be used with so few classes."""
        self.goal.check(num_classes)

    def climb(self, problem: Problem, state: State, tried: Tensor) -> Tensor:
        """Try examples: they, their scores, margin and gradient go into the state; returns what the loss is of each, (n,)."""
        scores, value, gradient = problem.network.gradient(tried, self.goal, state["y"], state["target"])
        state |= {"tried": tried, "scores": scores, "gradient": gradient, "margin": relative_margin(scores, state["y"])}
        return value


def set_target(state: State, rank: int, targets: Tensor | None = None) -> None:
    """Put the target class of each point into the state: given, or the one `rank` places below the top of the clean scores."""
    ids = state["id"]
    state["target"] = state["order"][:, -1 - rank] if targets is None else targets.to(ids.device, torch.int64)[ids]


def tries(targets: int | Tensor | None, restarts: int, num_classes: int, points: int) -> list[tuple[int, int, Tensor | None]]:
    """For each round the restart, the rank of the target, and the targets (N,) if they are given."""
    given = targets if isinstance(targets, Tensor) else None
    return [(restart, rank, given) for rank in _ranks(targets, num_classes, points) for restart in range(restarts)]


def _ranks(targets: int | Tensor | None, num_classes: int, points: int) -> list[int]:
    """The ranks to aim at: [0] without a target; [1] with given ones, so that it starts as the first rank."""
    if targets is None:
        return [0]
    if isinstance(targets, Tensor):
        if targets.shape != (points,) or targets.is_floating_point() or targets.dtype == torch.bool:
            raise ValueError(
                f"expected integer targets of shape ({points},), got {targets.dtype} of shape {tuple(targets.shape)}"
            )
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= num_classes:
            raise ValueError(f"expected targets in [0, {num_classes}), got {low} to {high}")
        return [1]
    _checks.whole("targets", targets)
    return list(range(1, min(targets, num_classes - 1) + 1))


@dataclass(frozen=True)
class Stage:
    """Rounds that belong together; in parity mode the random numbers start anew with each stage and batch."""

    name: str
    rounds: tuple[Round, ...]


Plan = Callable[[int], list[Stage]]  # of the number of classes
