"""The adaptive suite for square loss: per point the minimum over losses, targets, scales and starts, cheapest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks
from squareloss.attacks._common import check_inputs, norm_name, relative_lead, relative_margin
from squareloss.attacks._network import Network, prepare
from squareloss.attacks._rounds import Climbing, Options, Problem, Stage, State, check_options
from squareloss.attacks._run import attack
from squareloss.attacks._save import fingerprint
from squareloss.attacks.apgd import APGDRound
from squareloss.attacks.losses import Objective, ce, objective
from squareloss.attacks.masking import MaskingReport, masking_report
from squareloss.attacks.results import AttackResult
from squareloss.attacks.shrinking import ShrinkRound

_FAR, _NEAR = 0.5, 0.3  # shares of the clean margin; later rounds are for points brought below them


@dataclass
class WorstCase:
    """The record of the suite and, if asked for, the masking report."""

    result: AttackResult
    report: MaskingReport | None = None

    def __str__(self) -> str:
        return str(self.result) + ("" if self.report is None else f"\n{self.report}")


def worst_case(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    surrogate: nn.Module | None = None,
    scales: Sequence[float] = (3.0, 30.0),
    restarts: int = 3,
    report: bool = True,
    **options: Unpack[Options],
) -> WorstCase:
    """The attacks that break square-loss networks, cheapest first; a point stands if it stands all of them.

    No single loss is the worst case for square loss, and no single way to climb it, so this takes the minimum over several: a
    few steps on the angle, which know no scale and break the easy points; the angle and the margin in balls that shrink from
    far outside (`ShrinkRound`), for networks on which gradients within the ball lead nowhere; examples made on another network;
    targeted losses that try many classes briefly and the most promising at length (`FocusRound`), by the difference of cosines
    and by DLR; the margin, and cross-entropy of the scores brought to several scales; and shrinking balls again.
    Points whose margin, over the length of the scores, never fell below half of the clean one are spared the targets and the
    scales: of ten classes, a point that stands costs 550 to 940 passes, against 9700 for AutoAttack. With three classes, where
    targeted DLR is not defined, the margin takes its place; with two, where all scores are the same but for their scale and
    sign, it also takes that of the angle, the cosines and cross-entropy. Unless `report` is False it ends with
    `masking_report`, whose passes are not counted in the result.

    Arguments:
        model, x, y, eps: as for `pgd`.
        surrogate: another network of the same classes to transfer examples from, in eval mode.
        scales: sharpness of the softmax in cross-entropy, on scores divided by the length of their centred vector.
        restarts: how often to start anew in the end, in balls that shrink, with the angle and the margin by turns.
        report: whether to look for masking afterwards.
        options: see `Options`.
    """
    check_options(worst_case, options)
    _checks.whole("restarts", restarts, 0)
    for scale in scales:
        _checks.positive("scales", scale)
    if surrogate is not None:
        check_inputs(surrogate, x, y, eps, norm_name(options.get("norm", "linf")))

    def plan(num_classes: int) -> list[Stage]:
        transfer = None if surrogate is None else _transfer(surrogate, x, y, options)
        return stages(num_classes, transfer, scales, restarts)

    result = attack(model, x, y, eps, plan, options)
    return WorstCase(result, masking_report(model, x, y, eps, **options) if report else None)


def _transfer(surrogate: nn.Module, x: Tensor, y: Tensor, options: Options) -> TransferRound:
    network = prepare(surrogate, x, y, batch_size=options.get("batch_size"), precision=options.get("precision"))
    return TransferRound(network, objective("margin"), 10, fingerprint(surrogate, x[:0], y[:0], ""))


def stages(num_classes: int, transfer: TransferRound | None, scales: Sequence[float], restarts: int) -> list[Stage]:
    """The suite, cheapest first."""
    targets = min(9, num_classes - 1)
    name = "angle" if num_classes > 2 else "margin"  # of the losses those that are defined
    angle, margin, cosines = objective(name), objective("margin"), objective(name, targeted=True)
    ratios = objective("dlr" if num_classes > 3 else "margin", targeted=True)
    found = [
        Stage("angle", (APGDRound(angle, 4),)),
        Stage("shrinking", (ShrinkRound(angle, 24), ShrinkRound(margin, 60, 1, widest=16.0))),
    ]
    if transfer is not None:
        found.append(Stage("transfer", (transfer,)))
    found.append(Stage("cosines", (FocusRound(cosines, targets, bar=_FAR),)))
    new = 0 if ratios != cosines else 1  # the same loss again: from starts that no other round has
    found.append(Stage("ratios", (FocusRound(ratios, targets, restart=new, bar=_FAR),)))
    scaled = [normalised_ce(scale) for scale in scales if num_classes > 2]  # of two classes it is constant
    untargeted = [(margin, 30), *((goal, 15) for goal in scaled)]
    found.append(Stage("scales", tuple(APGDRound(goal, steps, restart=1, bar=_NEAR) for goal, steps in untargeted)))
    again = (ShrinkRound(margin, 60, 2 + k) if k % 2 else ShrinkRound(angle, 60, 2 + k, widest=16.0) for k in range(restarts))
    return [*found, Stage("again", tuple(again))]


@cache  # the same object each time, so that captured steps are found again
def normalised_ce(sharpness: float) -> Objective:
    """Cross-entropy of sharpness f / |f - mean f|, the length held fixed in the gradient: the scale of the scores drops out."""
    return Objective(f"ce x{sharpness:g}", partial(_normalised_ce, sharpness=sharpness))


def _normalised_ce(scores: Tensor, labels: Tensor, sharpness: float) -> Tensor:
    scores = scores * (1e15 / scores.detach().abs().amax(1, keepdim=True).clamp_min(1e15))  # squares of larger ones overflow
    length = (scores - scores.mean(1, keepdim=True)).detach().square().sum(1, keepdim=True).sqrt()
    return ce(scores * (sharpness / length.clamp_min(1e-12)), labels)


@dataclass(frozen=True, eq=False)
class TransferRound(Climbing):
    """Auto-PGD on another network; what it makes is tried on this one."""

    surrogate: Network = field(repr=False)
    goal: Objective
    steps: int
    mark: str = ""  # of the other network's weights, so that a saved evaluation knows them
    attack: str = "transfer"
    bar: float = torch.inf
    costs: ClassVar[tuple[int, int, int, int]] = (2, 1, 2, 1)

    def check(self, num_classes: int) -> None:
        """Raise unless the other network has the same classes."""
        if self.surrogate.num_classes != num_classes:
            raise ValueError(f"expected a surrogate with {num_classes} classes, got {self.surrogate.num_classes}")

    def start(self, problem: Problem, state: State) -> None:
        """Begin on the other network."""
        self._inner().start(self._elsewhere(problem), state)
        self._look(problem, state)

    def step(self, problem: Problem, state: State, i: int) -> None:
        """A step on the other network, a look at this one."""
        state["gradient"] = state.pop("gradient elsewhere")
        self._inner().step(self._elsewhere(problem), state, i)
        self._look(problem, state)

    def _inner(self) -> APGDRound:
        return APGDRound(self.goal, self.steps, attack=self.attack)

    def _elsewhere(self, problem: Problem) -> Problem:
        return Problem(self.surrogate, problem.eps, problem.norm, problem.draws)

    def _look(self, problem: Problem, state: State) -> None:
        state["margin"] = relative_margin(problem.network.scores(state["tried"]), state["y"])
        state["gradient elsewhere"] = state.pop("gradient")  # it says nothing of this network


@dataclass(frozen=True, eq=False)
class FocusRound(Climbing):
    """Try every target briefly, then the most promising one at length.

    `targets` wrong classes get `explore` steps each, the best of the clean scores first, then always the one that came closest
    on the way to others; then the one that came closest gets `exploit` steps. Close is (f_t - f_y) / |f - mean f|. All
    tries are Auto-PGD from a random start; the passes of a start count as a step.
    """

    goal: Objective
    targets: int
    explore: int = 5
    exploit: int = 20
    restart: int = 0
    attack: str = "focus"
    bar: float = torch.inf

    @property
    def steps(self) -> int:
        """All tries together, less the start."""
        return self.targets * self.explore + self.exploit - 1

    def start(self, problem: Problem, state: State) -> None:
        """The first step of the first try."""
        ranks = state["order"].argsort(1).to(state["x"].dtype)  # of the clean scores, from 0 to K - 1
        low = ranks - ranks.shape[1] - 1  # at most -2, below whatever is reached later, which is at least -sqrt(2)
        state["reached"] = low.scatter(1, state["y"].unsqueeze(1), -torch.inf)
        state["open"] = state["reached"] > -torch.inf
        self._advance(problem, state, 0)

    def step(self, problem: Problem, state: State, i: int) -> None:
        """One step of the try that is on."""
        self._advance(problem, state, i + 1)

    def _advance(self, problem: Problem, state: State, i: int) -> None:
        number, length, offset = self._try(i)
        inner = APGDRound(self.goal, length - 1, restart=1000 * self.restart + number, attack=self.attack)
        if offset == 0:
            state["target"] = self._aim(state, number)
            inner.begin(problem, state)
        else:
            inner.step(problem, state, offset - 1)
        lead = relative_lead(state["scores"], state["y"])
        state["reached"] = torch.maximum(state["reached"], lead).scatter(1, state["y"].unsqueeze(1), -torch.inf)

    def _try(self, i: int) -> tuple[int, int, int]:
        """Which try step i belongs to, how long that is, and where in it the step is."""
        first = self.targets * self.explore
        if i < first:
            return i // self.explore, self.explore, i % self.explore
        return self.targets, self.exploit, i - first

    def _aim(self, state: State, number: int) -> Tensor:
        """Which class to try, (n,): the one that came closest, in any try so far, of those not tried yet; then of all."""
        if number == self.targets:
            return state["reached"].argmax(1)
        aim = state["reached"].masked_fill(~state["open"], -torch.inf).argmax(1)
        state["open"] = state["open"].scatter(1, aim.unsqueeze(1), False)
        return aim
