"""What an attack returns: one record per point, and what follows from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from squareloss.attacks._common import eps_text


@dataclass
class AttackResult:
    """The verdict on every point, and what it took.

    Arguments:
        x_adv: (N, ...), the adversarial example where the point is broken by an attack, else the point itself.
        broken: (N,), whether the model's class is wrong: on the clean point or on `x_adv`.
        attack: for each point the attack that broke it; "clean" if the model errs without one, "" if it stands.
        loss: for each point the loss of that attack; "" where there is none.
        step: (N,), the step at which it broke, 0 for the start; -1 where `attack` is "" or "clean".
        norm: (N,), the norm of the perturbation; 0 where there is none.
        forwards, backwards: (N,), passes spent on each point, the checks in float32 among them.
        eps, norm_name: the ball.
        seconds: of the whole evaluation.
        notes: what the evaluation had to say, for example a loss replaced because there are too few classes.
    """

    x_adv: Tensor
    broken: Tensor
    attack: list[str]
    loss: list[str]
    step: Tensor
    norm: Tensor
    forwards: Tensor
    backwards: Tensor
    eps: float
    norm_name: str
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def robust_accuracy(self) -> float:
        """The share of points that stand."""
        return float((~self.broken).double().mean())

    @property
    def clean_accuracy(self) -> float:
        """The share of points right without an attack."""
        return 1 - self.attack.count("clean") / len(self.attack)

    @property
    def passes(self) -> int:
        """Forwards and backwards over all points together."""
        return int(self.forwards.sum() + self.backwards.sum())

    def by_loss(self) -> dict[str, int]:
        """How many points each (attack, loss) broke."""
        return dict(Counter(f"{a} {b}".strip() for a, b in zip(self.attack, self.loss, strict=True) if a))

    def __str__(self) -> str:
        lines = [
            f"clean {self.clean_accuracy:.2%}, robust {self.robust_accuracy:.2%} at {self.norm_name} eps {eps_text(self.eps)}"
        ]
        lines += [f"  {name} broke {count}" for name, count in self.by_loss().items()]
        lines.append(f"  {int(self.forwards.sum())} forwards, {int(self.backwards.sum())} backwards, {self.seconds:.1f} s")
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    __repr__ = __str__  # not every point

    def to_dict(self) -> dict[str, Any]:
        """Everything but the images, as plain numbers and lists for JSON."""
        return {
            "eps": self.eps,
            "norm": self.norm_name,
            "clean_accuracy": self.clean_accuracy,
            "robust_accuracy": self.robust_accuracy,
            "seconds": self.seconds,
            "notes": self.notes,
            "by_loss": self.by_loss(),
            "points": {
                "broken": self.broken.tolist(),
                "attack": self.attack,
                "loss": self.loss,
                "step": self.step.tolist(),
                "norm": self.norm.tolist(),
                "forwards": self.forwards.tolist(),
                "backwards": self.backwards.tolist(),
            },
        }


class Ledger:
    """The records while an evaluation runs: tensors only, so that they can be saved."""

    def __init__(self, x: Tensor, names: list[tuple[str, str]]) -> None:
        n, device = len(x), x.device
        self.x = x
        self.names = names  # (attack, loss) of every round; -1 is none, -2 clean
        self.tensors = {
            "adv": x.clone(),
            "broken": torch.zeros(n, dtype=torch.bool, device=device),
            "by": torch.full((n,), -1, device=device),
            "step": torch.full((n,), -1, device=device),
            "norm": torch.zeros(n, device=device),
            "forwards": torch.zeros(n, dtype=torch.int64, device=device),
            "backwards": torch.zeros(n, dtype=torch.int64, device=device),
            "slope": torch.full((n,), -1.0, device=device),  # the largest gradient seen; -1 before any
        }

    def standing(self, ids: Tensor | None = None) -> Tensor:
        """The indices of unbroken points, all of them or those among `ids`."""
        broken = self.tensors["broken"]
        return (~broken).nonzero().squeeze(1) if ids is None else ids[~broken[ids]]

    def clean_errors(self, ids: Tensor) -> None:
        """Points the model gets wrong without an attack."""
        self.tensors["broken"][ids] = True
        self.tensors["by"][ids] = -2

    def climbed(self, ids: Tensor, slope: Tensor) -> None:
        """A try at those points begins or ends with gradients as large as that."""
        seen = self.tensors["slope"]
        seen[ids] = torch.maximum(seen[ids], slope.to(seen))

    def stuck(self) -> Tensor:
        """The indices of unbroken points whose gradient was exactly zero in every try that goes along one."""
        return (~self.tensors["broken"] & (self.tensors["slope"] == 0)).nonzero().squeeze(1)

    def spend(self, ids: Tensor, forwards: int, backwards: int = 0) -> None:
        """Passes spent on those points."""
        self.tensors["forwards"][ids] += forwards
        self.tensors["backwards"][ids] += backwards

    def record(self, ids: Tensor, adv: Tensor, norm: Tensor, by: int, step: Tensor) -> None:
        """Points broken just now."""
        t, device = self.tensors, self.x.device
        ids = ids.to(device)
        t["broken"][ids] = True
        t["adv"][ids] = adv.to(device, t["adv"].dtype)
        t["by"][ids] = by
        t["step"][ids] = step.to(device)
        t["norm"][ids] = norm.to(device, t["norm"].dtype)

    def result(self, eps: float, norm_name: str, seconds: float, notes: list[str]) -> AttackResult:
        """The finished record."""
        names = {-1: ("", ""), -2: ("clean", ""), **dict(enumerate(self.names))}
        by = [names[i] for i in self.tensors["by"].tolist()]
        kept = {key: self.tensors[key] for key in ("broken", "step", "norm", "forwards", "backwards")}
        return AttackResult(
            x_adv=self.tensors["adv"],
            attack=[a for a, _ in by],
            loss=[b for _, b in by],
            eps=eps,
            norm_name=norm_name,
            seconds=seconds,
            notes=notes,
            **kept,
        )
