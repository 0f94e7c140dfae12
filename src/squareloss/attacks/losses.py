"""What attacks maximise: functions of scores (N, K) and labels (N,), one value per sample, large where the class is lost.

Untargeted losses take (scores, labels); targeted ones take (scores, labels, targets) and grow as the class `targets` wins over
the true one. Those that need to know what the scores estimate take the coding of the network as well. All are free of
synchronisation, so they run inside captured CUDA steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from squareloss.codings import Coding, Simplex

_DEFAULT = Simplex()
_TINY = 1e-12


def ce(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, -log softmax(f)_y. Depends on the scale of the scores: saturated softmax gives no gradient."""
    return -_pick(scores.log_softmax(1), labels)


def softmax_probability(scores: Tensor, labels: Tensor, coding: Coding = _DEFAULT) -> Tensor:
    """The paper's L1, -log softmax(eta)_y: cross-entropy with the estimated probabilities eta as logits."""
    return ce(eta_of(scores, coding), labels)


def log_probability(scores: Tensor, labels: Tensor, coding: Coding = _DEFAULT, floor: float = 1e-3) -> Tensor:
    """The paper's L2, -log eta_y. Below `floor`, where eta_y may be negative, the tangent goes on: the gradient stays."""
    eta = _pick(eta_of(scores, coding), labels)
    below = (floor - eta).clamp_min(0) / floor
    return below - eta.clamp_min(floor).log()


def residual(scores: Tensor, labels: Tensor, coding: Coding = _DEFAULT) -> Tensor:
    """Square loss itself, sum_j (f_j - off)^2 with on_weight (f_y - on)^2 at the true class.

    A weak attack: it also grows when f moves beyond its own code, which makes the class only surer.
    """
    off, on, on_weight = coding.levels(scores.shape[1])
    true = _pick(scores, labels)
    return (scores - off).square().sum(1) - (true - off).square() + on_weight * (true - on).square()


def angle(scores: Tensor, labels: Tensor) -> Tensor:
    """-cos(f, v_y), with f centred and v_y the simplex code: -sqrt(K/(K-1)) (f_y - mean f) / |f - mean f|. Needs K >= 3."""
    _check_classes("angle", scores.shape[1])
    return -_cosine(scores, labels)


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """max_{j != y} f_j - f_y: positive where the class is lost."""
    return best_other(scores, labels) - _pick(scores, labels)


def dlr(scores: Tensor, labels: Tensor) -> Tensor:
    """The difference of logits ratio, -(f_y - max_{j != y} f_j) / (f_(1) - f_(3)); f_(i) are the scores in falling order.

    Needs K >= 3. Where the runners-up tie and the class is right, it is -1 whatever f_y is: it loses sight of the class.
    """
    _check_classes("dlr", scores.shape[1])
    top = scores.topk(3, 1).values
    return margin(scores, labels) / (top[:, 0] - top[:, 2] + _TINY)


def ce_targeted(scores: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """log softmax(f)_t."""
    return _pick(scores.log_softmax(1), targets)


def margin_targeted(scores: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """f_t - f_y; also the difference of cross-entropies, log p_t - log p_y."""
    return _pick(scores, targets) - _pick(scores, labels)


def angle_targeted(scores: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """cos(f, v_t) - cos(f, v_y), with f centred: sqrt(K/(K-1)) (f_t - f_y) / |f - mean f|. Needs K >= 3."""
    _check_classes("angle_targeted", scores.shape[1])
    return _cosine(scores, targets) - _cosine(scores, labels)


def dlr_targeted(scores: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """-(f_y - f_t) / (f_(1) - (f_(3) + f_(4)) / 2). Needs K >= 4."""
    _check_classes("dlr_targeted", scores.shape[1])
    top = scores.topk(4, 1).values
    return margin_targeted(scores, labels, targets) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + _TINY)


def eta_of(scores: Tensor, coding: Coding) -> Tensor:
    """eta of K scores. With `Simplex(reduced=True)` they are the K coordinates that `coding.scores` made of K - 1 outputs."""
    return (replace(coding, reduced=False) if isinstance(coding, Simplex) else coding).eta(scores)


def best_other(scores: Tensor, labels: Tensor) -> Tensor:
    """The best score of a wrong class, (N,)."""
    return scores.scatter(1, labels.unsqueeze(1), -torch.inf).amax(1)


UNTARGETED: dict[str, Callable[..., Tensor]] = {
    "ce": ce,
    "softmax_probability": softmax_probability,
    "log_probability": log_probability,
    "residual": residual,
    "angle": angle,
    "margin": margin,
    "dlr": dlr,
}
TARGETED: dict[str, Callable[..., Tensor]] = {
    "ce_targeted": ce_targeted,
    "margin_targeted": margin_targeted,
    "angle_targeted": angle_targeted,
    "dlr_targeted": dlr_targeted,
}
CODED = ("softmax_probability", "log_probability", "residual")
_CLASSES = {"angle": 3, "angle_targeted": 3, "dlr": 3, "dlr_targeted": 4}  # of two classes an angle is 0 or pi: no gradient


@dataclass(frozen=True)
class Objective:
    """A loss as attacks hold it: `value(scale * scores, labels, targets)`, with its name for the record.

    Two of the same function, scale and coding are equal, and share what is captured of them.
    """

    name: str
    function: Callable[..., Tensor] = field(repr=False)
    targeted: bool = False
    scale: float = 1.0
    coding: Coding | None = None  # what the function reads eta by, if it does

    def __call__(self, scores: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
        """One value per sample; `targets` is not looked at by an untargeted loss."""
        scores = scores if self.scale == 1.0 else scores * self.scale
        given = (scores, labels, targets) if self.targeted else (scores, labels)
        return self.function(*given) if self.coding is None else self.function(*given, coding=self.coding)

    def check(self, num_classes: int) -> None:
        """Raise if the loss has no meaning for so few classes."""
        _check_classes(self.name, num_classes)


def objective(
    loss: str | Callable[..., Tensor], *, targeted: bool = False, coding: Coding | None = None, scale: float = 1.0
) -> Objective:
    """The loss of that name, or a function of yours with the same arguments.

    Arguments:
        loss: a name in `UNTARGETED` or, with `targeted`, in `TARGETED` (whose suffix may be left out); or a function.
        coding: of the network, for the losses that read eta from the scores; None is `Simplex()`.
        scale: factor on the scores before the loss.
    """
    if not scale > 0:
        raise ValueError(f"expected scale > 0, got {scale}")
    if callable(loss):
        return Objective(getattr(loss, "__name__", "custom"), loss, targeted, scale)
    names = TARGETED if targeted else UNTARGETED
    name = loss if loss in names else f"{loss}_targeted" if targeted else loss
    if name not in names:
        hint = ""
        if loss in UNTARGETED:
            hint = f"; {loss!r} is untargeted: leave targets out"
        elif loss in TARGETED:
            hint = f"; {loss!r} is targeted: pgd takes it with targets=..., Auto-PGD as apgd_targeted"
        raise ValueError(f"Unknown attack loss {loss!r}. Available: {', '.join(names)}{hint}")
    return Objective(name, names[name], targeted, scale, coding if name in CODED else None)


def _pick(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def _cosine(scores: Tensor, labels: Tensor) -> Tensor:
    """cos(f, v_label) with f centred; v_label is proportional to e_label - 1/K."""
    num_classes = scores.shape[1]
    centred = scores - scores.mean(1, keepdim=True)
    length = (centred.square().sum(1) + _TINY).sqrt()  # the tiny term keeps the gradient finite at f = 0
    factor: float = (num_classes / (num_classes - 1)) ** 0.5
    return _pick(centred, labels) / length * factor


def _check_classes(name: str, num_classes: int) -> None:
    least = _CLASSES.get(name, 2)
    if num_classes < least:
        instead = "margin_targeted" if name in TARGETED else "margin"
        raise ValueError(f"expected {least} classes or more for the loss {name!r}, got {num_classes}; use {instead!r}")
