"""Several attacks at several radii, as one table."""

from __future__ import annotations

import numbers
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss.attacks._common import check_radius, eps_text, norm_name
from squareloss.attacks._network import Prepared
from squareloss.attacks._rounds import Options, check_options
from squareloss.attacks.apgd import apgd, apgd_targeted
from squareloss.attacks.autoattack import autoattack
from squareloss.attacks.fab import fab_targeted
from squareloss.attacks.losses import TARGETED, UNTARGETED, eta_of
from squareloss.attacks.pgd import pgd
from squareloss.attacks.results import AttackResult
from squareloss.attacks.square_attack import square_attack
from squareloss.attacks.worst_case import worst_case
from squareloss.codings import Coding

DEFAULT = ("pgd-ce", "autoattack", "worst_case")


@dataclass
class AttackTable:
    """What each attack left at each radius.

    Arguments:
        eps: the radii. norm: of the ball. clean: accuracy without an attack.
        results: by (attack, eps), the records.
        seconds: of the whole table.
    """

    eps: list[float]
    norm: str
    clean: float
    results: dict[tuple[str, float], AttackResult]
    seconds: float

    @property
    def attacks(self) -> list[str]:
        """The rows, in order."""
        return list(dict.fromkeys(name for name, _ in self.results))

    def minimum(self, eps: float) -> float:
        """The share of points that no attack in the table breaks."""
        if eps not in self.eps:
            raise ValueError(f"expected a radius of the table, {', '.join(map(eps_text, self.eps))}, got {eps_text(eps)}")
        broken = torch.stack([r.broken.cpu() for (_, e), r in self.results.items() if e == eps]).any(0)
        return float((~broken).double().mean())

    def rows(self) -> list[dict[str, Any]]:
        """One row per attack, with robust accuracy, passes and seconds at each radius; the last is the minimum per point."""
        table: list[dict[str, Any]] = []
        for name in self.attacks:
            cells = [self.results[name, e] for e in self.eps]
            table.append(
                {
                    "attack": name,
                    "robust": [r.robust_accuracy for r in cells],
                    "forwards": [int(r.forwards.sum()) for r in cells],
                    "backwards": [int(r.backwards.sum()) for r in cells],
                    "seconds": [r.seconds for r in cells],
                    "notes": sorted({note for r in cells for note in r.notes}),
                }
            )
        return [*table, {"attack": "minimum", "robust": [self.minimum(e) for e in self.eps]}]

    def to_dict(self) -> dict[str, Any]:
        """The rows, and what they rest on, for JSON."""
        return {"norm": self.norm, "eps": self.eps, "clean": self.clean, "seconds": self.seconds, "rows": self.rows()}

    def __str__(self) -> str:
        width = max(len(row["attack"]) for row in self.rows())
        head = f"{self.norm:<{width}}  " + "  ".join(f"{eps_text(e):>8}" for e in self.eps)
        lines = [f"{r['attack']:<{width}}  " + "  ".join(f"{v:8.2%}" for v in r["robust"]) for r in self.rows()]
        return "\n".join([f"clean accuracy {self.clean:.2%}", head, *lines])


class EtaScores(nn.Module):
    """A model whose scores are eta of another's: what attacks see on the scale of probabilities.

    Arguments:
        model: gives scores (N, K), such as a `Classifier`.
        coding: what they estimate eta by: the coding of its loss.
    """

    def __init__(self, model: nn.Module, coding: Coding) -> None:
        super().__init__()
        self.model, self.coding = model, coding
        self.training = model.training  # its parts stay in the modes they are in

    def forward(self, x: Tensor) -> Tensor:
        """eta (N, K) of inputs (N, ...)."""
        return eta_of(self.model(x), self.coding)

    def extra_repr(self) -> str:
        """The coding; by what a model prints, a saved evaluation knows it."""
        return f"coding={self.coding}"


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float | Sequence[float],
    *,
    attacks: Sequence[str] = DEFAULT,
    coding: Coding | None = None,
    surrogate: nn.Module | None = None,
    **options: Unpack[Options],
) -> AttackTable:
    """Run every attack at every radius; the table ends with the minimum per point.

    Arguments:
        model, x, y: as for `pgd`.
        eps: one radius or several.
        attacks: "pgd-LOSS", "apgd-LOSS" (a loss of `losses.UNTARGETED`, or a targeted one for the nine runners-up), "apgd-t",
            "fab-t", "square", "autoattack", "worst_case". With "@eta" at the end it attacks eta instead of the scores: losses
            that depend on the scale, such as cross-entropy, then behave differently.
        coding: of the network, for losses that read eta and for "@eta".
        surrogate: another network for `worst_case` to transfer from.
        options: see `Options`; `save` is a folder here, with one file per attack and radius.
    """
    check_options(evaluate, options)
    eps = float(eps) if isinstance(eps, Tensor) and not eps.ndim else eps  # which single attacks take, too
    given = [eps] if isinstance(eps, (int, float, str, numbers.Real)) else list(eps)
    if not given or not attacks or isinstance(attacks, str):
        raise ValueError(f"expected one radius or more and a list of attacks, got eps={eps!r} and attacks={attacks!r}")
    for each in given:
        check_radius(each, norm_name(options.get("norm", "linf")))
    radii = list(dict.fromkeys(float(each) for each in given))
    runs = {name: _attack(name, coding, surrogate) for name in attacks}
    folder, began = options.get("save"), time.monotonic()
    results: dict[tuple[str, float], AttackResult] = {}
    by_eta = _by_eta(model, list(runs), coding)
    with Prepared():
        for name, run in runs.items():
            seen = by_eta if name.endswith("@eta") else model
            for each in radii:
                if options.get("progress", False):
                    print(f"{name} at {eps_text(each)}, {len(results) + 1} of {len(runs) * len(radii)}:", file=sys.stderr)
                own: Options = {**options}
                if folder is not None:
                    own["save"] = part_of(Path(folder), name, each)
                results[name, each] = run(seen, x, y, each, **own)
    first = next(iter(results.values()))
    return AttackTable(radii, first.norm_name, first.clean_accuracy, results, time.monotonic() - began)


def part_of(folder: Path, attack: str, eps: float) -> Path:
    """The file in which an evaluation keeps what an attack has done at a radius."""
    return folder / f"{attack.replace('@', '-')}-{eps:.6f}.safetensors"


Run = Callable[..., AttackResult]


def _attack(name: str, coding: Coding | None, surrogate: nn.Module | None) -> Run:
    """The attack of that name, of the model or, with "@eta", of its `EtaScores`."""
    found: dict[str, Run] = {
        "apgd-t": apgd_targeted,
        "fab-t": fab_targeted,
        "square": square_attack,
        "autoattack": autoattack,
        "worst_case": lambda *problem, **options: worst_case(*problem, surrogate=surrogate, report=False, **options).result,
    }
    names = [*found, "pgd-LOSS", "apgd-LOSS"]
    for loss in UNTARGETED:
        found[f"pgd-{loss}"] = partial(pgd, loss=loss, coding=coding)
        found[f"apgd-{loss}"] = partial(apgd, loss=loss, coding=coding)
    for loss in TARGETED:
        found[f"pgd-{loss}"] = partial(pgd, loss=loss, targets=9, coding=coding)
        found[f"apgd-{loss}"] = partial(apgd_targeted, loss=loss, coding=coding)
    plain = name.removesuffix("@eta")
    if plain not in found:
        raise ValueError(
            f"Unknown attack {name!r}. Available: {', '.join(names)}; LOSS is one of {', '.join([*UNTARGETED, *TARGETED])}"
        )
    return found[plain]


def _by_eta(model: nn.Module, names: Sequence[str], coding: Coding | None) -> nn.Module:
    """The model as attacks with "@eta" see it; itself if there are none."""
    asked = [name for name in names if name.endswith("@eta")]
    if not asked:
        return model
    if coding is None:
        raise ValueError(f"expected a coding for {asked[0]!r}: eta depends on it; pass coding=Simplex(radius=...)")
    return EtaScores(model, coding)
