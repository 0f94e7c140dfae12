"""Pure losses: each is a function of outputs and target, called as `torch.nn.functional.cross_entropy` is.

Conventions, the same for all of them:

- Outputs are (N, K), (N, K, d1, ...) or (K,); targets are class indices (N, d1, ...) or soft targets (N, K, d1, ...).
- `reduction` acts on samples: "mean", "sum", or "none" for the loss of each, (N, d1, ...). The mean over class indices divides
  by the sum of their weights, as cross-entropy does; over soft targets it divides by their number.
- Soft targets, `label_smoothing` and `weight` mean the expectation of the hard loss: sum_c q_c w_c loss(f, c), with
  q = (1 - s) p + s / K.
- Samples whose class index is `ignore_index` (-100 by default) count for nothing, in the mean neither.
- Half precisions are computed in float32, and the loss comes back in float32.
- Label values are checked on eager CPU tensors; elsewhere only with `validate=True`, since it costs a synchronisation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from squareloss import _checks
from squareloss._hard_square import hard_square, quadratic, weighted_losses
from squareloss.codings import Coding, Levels, Simplex
from squareloss.simplex import class_dim, wide

_DEFAULT = Simplex()


def square_loss(
    outputs: Tensor,
    target: Tensor,
    coding: Coding = _DEFAULT,
    *,
    scale: float = 0.5,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    validate: bool = False,
) -> Tensor:
    """Square loss: scale times the mean over outputs of the squared distance to the code of the class.

    loss(f, y) = scale / width |f - v_y|^2; for `OneHot(k, M)`, scale / K (k (f_y - M)^2 + sum_{j != y} f_j^2).

    With the default coding and scale it is, up to a constant and on zero-sum outputs, the second-order expansion of
    cross-entropy at f = 0, 1/(2K) |f - (K e_y - 1)|^2, so cross-entropy's learning rates carry over.
    `scale=1.0, coding=Simplex(radius=K)` is the paper's image loss: `nn.MSELoss` on the codes.

    Arguments:
        outputs: (N, width), (N, width, d1, ...) or (width,); width is K, or K - 1 with `Simplex(reduced=True)`.
        target: class indices (N, d1, ...), integers; or soft targets (N, K, d1, ...), floating point.
        coding: where the classes lie.
        scale: the factor before the mean over outputs.
        weight, ignore_index, label_smoothing, reduction, validate: as at the top of this module.
    """
    dim = class_dim(outputs)
    width = outputs.shape[dim]
    num_classes = coding.num_classes(width)
    options = _Options(weight, ignore_index, label_smoothing, reduction, validate, dim == 0)
    f, target = _prepare(outputs, target, num_classes, options)
    f, levels = coding.scores(f if width == num_classes else wide(f)), coding.levels(num_classes)
    hard = not target.is_floating_point() and target.numel() > 0
    if hard and (weight is None or not label_smoothing) and _eager():
        q = quadratic(levels, num_classes, label_smoothing, scale / width)
        if validate:
            _check_values(target, num_classes, options)
        if reduction == "none":
            losses, _ = weighted_losses(f, target, weight, ignore_index, q)
            return losses.squeeze(0) if options.squeeze else losses
        return hard_square(f, target, weight, (ignore_index, reduction == "mean", q))
    return _expectation(_square_per_class(wide(f), levels) * (scale / width), target, options)


def cross_entropy(
    outputs: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    validate: bool = False,
) -> Tensor:
    """Cross-entropy, -log softmax(f)_y: `torch.nn.functional.cross_entropy` with our checks.

    Arguments: as at the top of this module.
    """
    options = _Options(weight, ignore_index, label_smoothing, reduction, validate, class_dim(outputs) == 0)
    f, target = _prepare(outputs, target, None, options)
    _check_values(target, f.shape[1], options)
    f = wide(f)
    loss = F.cross_entropy(
        f,
        target if target.dtype == torch.int64 else target.to(f),
        weight=None if weight is None else weight.to(f),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    return loss.squeeze(0) if options.squeeze and reduction == "none" else loss


def squentropy(
    outputs: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    validate: bool = False,
) -> Tensor:
    """Squentropy (Hui, Belkin and Wright 2023): cross-entropy plus the mean square of the other logits.

    loss(f, y) = -log softmax(f)_y + 1/(K-1) sum_{j != y} f_j^2. Not a proper loss: its softmax is not the class
    probability even in expectation, so calibrate it before reading probabilities.

    Arguments: as at the top of this module.
    """
    options = _Options(weight, ignore_index, label_smoothing, reduction, validate, class_dim(outputs) == 0)
    f, target = _prepare(outputs, target, None, options)
    f = wide(f)  # once, so that the gradient is rounded once
    squares = f.square()
    others = (squares.sum(1, keepdim=True) - squares) / (f.shape[1] - 1)
    return _expectation(others - torch.log_softmax(f, 1), target, options)


def softmax_brier(
    outputs: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    validate: bool = False,
) -> Tensor:
    """The Brier score of the softmax: loss(f, y) = |softmax(f) - e_y|^2, summed over classes. Proper, not convex in f.

    Arguments: as at the top of this module.
    """
    options = _Options(weight, ignore_index, label_smoothing, reduction, validate, class_dim(outputs) == 0)
    f, target = _prepare(outputs, target, None, options)
    p = torch.softmax(wide(f), 1)
    return _expectation(p.square().sum(1, keepdim=True) - 2 * p + 1, target, options)


def focal(
    outputs: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    validate: bool = False,
) -> Tensor:
    """Focal loss (Lin et al. 2017): loss(f, y) = -(1 - p_y)^gamma log p_y with p = softmax(f). Not proper for gamma > 0.

    Arguments: `gamma` >= 0, cross-entropy at 0; the others as at the top of this module.
    """
    _checks.not_negative("gamma", gamma)
    options = _Options(weight, ignore_index, label_smoothing, reduction, validate, class_dim(outputs) == 0)
    f, target = _prepare(outputs, target, None, options)
    log_p = torch.log_softmax(wide(f), 1)
    # 1 - p, kept off 0: its power has no finite derivative there for gamma < 1
    doubt = (1 - log_p.exp()).clamp_min(torch.finfo(log_p.dtype).tiny)
    return _expectation(-(doubt**gamma) * log_p, target, options)


class _Options(NamedTuple):
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    reduction: str
    validate: bool
    squeeze: bool  # the outputs came without a batch axis


def _prepare(outputs: Tensor, target: Tensor, num_classes: int | None, options: _Options) -> tuple[Tensor, Tensor]:
    """Outputs and target with a batch axis; shapes, dtypes and devices checked."""
    num_classes = outputs.shape[class_dim(outputs)] if num_classes is None else num_classes
    _checks.options(options.reduction, options.label_smoothing)
    _checks.outputs(outputs, num_classes)
    _checks.target(target, outputs, num_classes, options.ignore_index)
    _checks.weight(options.weight, num_classes)
    _checks.devices(outputs, target, options.weight)
    target = target if target.dtype == torch.int64 or target.is_floating_point() else target.long()
    return (outputs.unsqueeze(0), target.unsqueeze(0)) if options.squeeze else (outputs, target)


def _check_values(target: Tensor, num_classes: int, options: _Options) -> None:
    if options.validate or _checks.readable(target):
        if target.is_floating_point():
            _checks.soft(target, 1)
        else:
            _checks.indices(target, num_classes, options.ignore_index)


def _square_per_class(f: Tensor, levels: Levels) -> Tensor:
    """The squared distance of f (N, K, ...) to every code, (N, K, ...)."""
    off = (f - levels.off).square()
    return off.sum(1, keepdim=True) - off + levels.on_weight * (f - levels.on).square()


def _expectation(losses: Tensor, target: Tensor, options: _Options) -> Tensor:
    """The expected loss under the target, from the loss of every class (N, K, ...); reduced as cross-entropy is."""
    weight, smoothing, num_classes = options.weight, options.label_smoothing, losses.shape[1]
    _check_values(target, num_classes, options)
    if weight is not None:
        weight = weight.to(losses)
        losses = losses * weight.view(-1, *[1] * (losses.ndim - 2))
    if target.is_floating_point():
        q = target.to(losses.dtype) * (1 - smoothing) + smoothing / num_classes
        loss = (q * losses).sum(1)
        mass: Tensor | int = loss.numel()
    else:
        valid = target != options.ignore_index
        index = target.masked_fill(~valid, 0)
        loss = losses.gather(1, index.unsqueeze(1)).squeeze(1)
        if smoothing:
            loss = (1 - smoothing) * loss + smoothing / num_classes * losses.sum(1)
        loss = loss.masked_fill(~valid, 0)
        mass = (valid if weight is None else weight[index] * valid).sum()
    if options.reduction == "none":
        return loss.squeeze(0) if options.squeeze else loss
    return loss.sum() / mass if options.reduction == "mean" else loss.sum()


def _eager() -> bool:
    """Whether an autograd function with a backward pass of its own will do: no compiler, no `torch.func`, no forward mode."""
    return _checks.eager() and torch.autograd.forward_ad._current_level < 0
