"""Rounds at once: where few points are left, several target classes fill a pass that one would leave nearly empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from squareloss.attacks._common import column
from squareloss.attacks._rounds import Problem, Round, State

_LANE = "lane."  # begins the names of their tensors in the state: see `State`


def abreast(rounds: Sequence[Round]) -> Abreast | None:
    """All of them as one, if they differ only in the class they aim at and the start, and their class says `lanes`.

    It may if its steps read nothing of those two but what is in the state. With a bar, who takes part in a round hangs on the
    rounds before it: then one after the other.
    """
    first, *others = rounds
    if not getattr(first, "lanes", False) or first.bar != torch.inf:
        return None
    alike = all(type(other) is type(first) and _settings(other) == _settings(first) for other in others)
    return Abreast(tuple(rounds)) if alike else None


def _settings(this: Any) -> dict[str, Any]:
    """All that a round was made with, but for the class it aims at and the start."""
    return dict(vars(replace(this, rank=0, restart=0)))


def count_lanes(state: State) -> int:
    """How many rounds a state is of."""
    return state[f"{_LANE}margin"].shape[1] if f"{_LANE}margin" in state else 1


def gradients(state: State) -> Tensor | None:
    """What the next steps would go along, (n, ...), of all rounds a state is of; None if it has none."""
    return state.get(f"{_LANE}gradient", state.get("gradient"))


@dataclass(frozen=True, eq=False)
class Abreast:
    """Rounds at once, with the outcome that they have one after the other: a point falls to the first of them that breaks it.

    So it waits for the rounds before one that has broken it. Their tensors lie in the state as (n, rounds, ...).
    """

    rounds: tuple[Round, ...]
    every: ClassVar[int] = 1

    @property
    def steps(self) -> int:
        """Theirs."""
        return self.rounds[0].steps

    @property
    def costs(self) -> tuple[int, int, int, int]:
        """Of all together."""
        f0, b0, f, b = (len(self.rounds) * cost for cost in self.rounds[0].costs)
        return f0, b0, f, b

    def start(self, problem: Problem, state: State) -> None:
        """Each begins."""
        begun = []
        for this in self.rounds:
            begun.append(dict(state))
            this.start(problem, begun[-1])
        own = {key: torch.stack([one[key] for one in begun], 1) for key in begun[0]}
        won = torch.zeros_like(own["margin"], dtype=torch.bool)
        state |= {_LANE + key: value for key, value in own.items()}
        state |= {f"{_LANE}won": won, f"{_LANE}prize": own["tried"], f"{_LANE}when": won.long() - 1}
        self._judge(problem, state, 0)

    def step(self, problem: Problem, state: State, i: int) -> None:
        """Each advances, as points of one round."""
        flat = {key.removeprefix(_LANE): value.flatten(0, 1) for key, value in state.items() if key.startswith(_LANE)}
        self.rounds[0].step(problem, flat, i)
        shape = len(state["id"]), len(self.rounds)
        state |= {_LANE + key: value.view(*shape, *value.shape[1:]) for key, value in flat.items()}
        self._judge(problem, state, i + 1)

    def _judge(self, problem: Problem, state: State, done: int) -> None:
        """After so many steps: keep what each has won by, and show that of the first, once those before it are through."""
        won, prize, when = (state[_LANE + key] for key in ("won", "prize", "when"))
        tried, new = state[f"{_LANE}tried"], (state[f"{_LANE}margin"] <= 0) & ~won
        if bool(new.any()):  # float32 decides, as it does of one round; its passes are booked
            state["skipped"] = state.get("skipped", torch.zeros_like(when[:, 0])) - new.sum(1)
            new[new.clone()] = problem.network.exact(tried[new]).argmax(1) != state["y"].unsqueeze(1).expand_as(new)[new]
            prize, when, won = torch.where(column(new, tried), tried, prize), when.masked_fill(new, done), won | new
        state |= {f"{_LANE}won": won, f"{_LANE}prize": prize, f"{_LANE}when": when}
        first, rows = won.int().argmax(1), torch.arange(len(won), device=won.device)
        over = won.any(1) & ((first == 0) | (done == self.steps))
        state |= {"tried": prize[rows, first], "hit": when[rows, first]}
        state["margin"] = torch.zeros_like(state["refuted"]).masked_fill(~over, torch.inf)
