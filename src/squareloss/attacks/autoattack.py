"""AutoAttack (Croce and Hein 2020): four attacks one after another, on the points that still stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss._checks import choose
from squareloss._warnings import warn
from squareloss.attacks._common import check_radius, norm_name
from squareloss.attacks._rounds import Options, Round, Stage, check_options
from squareloss.attacks._run import attack
from squareloss.attacks.apgd import APGDRound
from squareloss.attacks.fab import FABRound
from squareloss.attacks.losses import objective
from squareloss.attacks.results import AttackResult
from squareloss.attacks.square_attack import SquareRound

VERSIONS: dict[str, tuple[str, ...]] = {"standard": ("apgd-ce", "apgd-t", "fab-t", "square")}
_TARGETS = 9


def autoattack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    version: str = "standard",
    attacks: Sequence[str] | None = None,
    **options: Unpack[Options],
) -> AttackResult:
    """AutoAttack as published: APGD on cross-entropy, targeted APGD on DLR, targeted FAB, and Square Attack.

    100 steps each for the first three, one start, nine targets (fewer if there are fewer classes); 5000 queries for the last.
    For two and three classes, where targeted DLR is not defined, targeted APGD maximises the margin instead, with a warning.

    Arguments:
        model: any module that gives scores (N, K) on inputs in [0, 1], in eval mode.
        x, y: points (N, ...) in [0, 1] and their labels (N,).
        eps: radius of the ball.
        version: "standard".
        attacks: names out of "apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", in the order to run; overrides `version`.
        options: see `Options`; `parity=True` draws the random numbers of the published code.
    """
    check_options(autoattack, options)
    names = _names(version, attacks)
    plan = lambda num_classes: [Stage(name, _STAGES[name](num_classes)) for name in names]
    return attack(model, x, y, eps, plan, options, lambda num_classes: _notes(names, num_classes))


def _names(version: str, attacks: Sequence[str] | None) -> tuple[str, ...]:
    """Which attacks, in order."""
    standard = VERSIONS[choose("version", version, VERSIONS)]
    names = standard if attacks is None else tuple(attacks)
    for name in names or ("",):
        choose("attack", name, _STAGES)
    return names


def _apgd_t(num_classes: int) -> tuple[Round, ...]:
    goal = objective("dlr" if num_classes >= 4 else "margin", targeted=True)
    return tuple(APGDRound(goal, 100, rank=rank, attack="apgd-t") for rank in _ranks(num_classes))


_STAGES: dict[str, Callable[[int], tuple[Round, ...]]] = {  # of the number of classes
    "apgd-ce": lambda K: (APGDRound(objective("ce"), 100, attack="apgd-ce"),),
    "apgd-dlr": lambda K: (APGDRound(objective("dlr" if K >= 3 else "margin"), 100, attack="apgd-dlr"),),
    "apgd-t": _apgd_t,
    "fab-t": lambda K: tuple(FABRound(100, rank=rank) for rank in _ranks(K)),
    "square": lambda K: (SquareRound(5000),),
}


def _ranks(num_classes: int) -> range:
    return range(1, min(_TARGETS, num_classes - 1) + 1)


def _notes(names: Sequence[str], num_classes: int) -> list[str]:
    """What differs from the published suite for so few classes, as notes and warnings."""
    least = {"apgd-dlr": (3, "DLR"), "apgd-t": (4, "targeted DLR")}
    notes = [
        f"{name}: {least[name][1]} needs {least[name][0]} classes, there are {num_classes}; it maximises the margin instead"
        for name in names
        if name in least and num_classes < least[name][0]
    ]
    for note in notes:
        warn(note)
    return notes


class AutoAttack:
    """The front door people know.

        adversary = AutoAttack(model, norm="Linf", eps=8/255, version="standard")
        x_adv = adversary.run_standard_evaluation(x, y, bs=250)

    After a run, `result` holds the record of every point.

    Arguments: as for `autoattack`; `norm` is "Linf" or "L2", `verbose` shows progress.
    """

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 0.3,
        version: str = "standard",
        *,
        seed: int = 0,
        attacks: Sequence[str] | None = None,
        verbose: bool = False,
    ) -> None:
        check_radius(eps, norm_name(norm))
        _names(version, attacks)
        self.model, self.norm, self.eps, self.version = model, norm, eps, version
        self.seed, self.attacks, self.verbose = seed, attacks, verbose
        self.result: AttackResult | None = None

    def run_standard_evaluation(self, x: Tensor, y: Tensor, bs: int | None = None) -> Tensor:
        """The adversarial examples (N, ...): x itself where the model stands or errs already.

        Arguments:
            x, y: points (N, ...) in [0, 1] and their labels (N,).
            bs: points per pass of the network.
        """
        self.result = autoattack(
            self.model,
            x,
            y,
            self.eps,
            version=self.version,
            attacks=self.attacks,
            norm=self.norm,
            seed=self.seed,
            batch_size=bs,
            progress=self.verbose,
        )
        return self.result.x_adv
