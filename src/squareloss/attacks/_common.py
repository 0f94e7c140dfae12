"""What all attacks share: norms, projections, and the checks of what comes in."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal

import torch
from torch import Tensor, nn

from squareloss._warnings import warn
from squareloss.attacks.losses import best_other

Norm = Literal["linf", "l2"]
_NORMS: dict[str, Norm] = {"linf": "linf", "l_inf": "linf", "inf": "linf", "l2": "l2", "l_2": "l2", "2": "l2"}


def norm_name(norm: str | float) -> Norm:
    """ "linf" or "l2", from any of the ways people write them: "Linf", "L2", "l_inf", inf, 2."""
    key = str(int(norm) if norm == 2 else norm).lower()
    if key not in _NORMS:
        raise ValueError(f"Unknown norm {norm!r}. Available: linf, l2")
    return _NORMS[key]


def eps_text(eps: float) -> str:
    """A radius as people write it: 0.1 if that is all of it, 2/255 or 0.5/255 if it is that, else six digits."""
    short, levels = f"{eps:g}", round(255 * eps, 2)
    if math.isclose(float(short), eps, rel_tol=1e-9) or abs(255 * eps - levels) > 1e-6:
        return short
    return f"{levels:g}/255"


def batches(x: Tensor, size: int) -> list[Tensor]:
    """x (n, ...) in pieces of `size` points; the last may be smaller."""
    return [x[i : i + size] for i in range(0, len(x), size)]


def column(values: Tensor, like: Tensor) -> Tensor:
    """Values (n,), or (n, m), shaped to broadcast over `like` (n, ...), or (n, m, ...)."""
    return values.view(*values.shape, *[1] * (like.ndim - values.ndim))


def distance(delta: Tensor, norm: Norm) -> Tensor:
    """The norm of each point of `delta` (n, ...), as (n,)."""
    flat = delta.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.square().sum(1).sqrt()


def normalise(direction: Tensor, norm: Norm) -> Tensor:
    """Each point of `direction` (n, ...) divided by its norm; zero stays zero."""
    return direction / column(distance(direction, norm) + 1e-12, direction)


def project(z: Tensor, x: Tensor, eps: Tensor | float, norm: Norm) -> Tensor:
    """z brought into the ball of radius eps around x, then into the box [0, 1]; x lies in the box, so the ball is kept.

    The radius may be one for each point, shaped to broadcast.
    """
    if norm == "linf":
        return torch.minimum(torch.maximum(z, x - eps), x + eps).clamp_(0, 1)
    delta = z - x
    length = column(distance(delta, norm), x)
    return (x + delta * (length.clamp(max=eps) / (length + 1e-12))).clamp_(0, 1)


def ascend(z: Tensor, gradient: Tensor, step: Tensor | float, norm: Norm) -> Tensor:
    """A step of that length up the gradient: its sign in l_inf, its direction in l_2."""
    return z + step * (gradient.sign() if norm == "linf" else normalise(gradient, norm))


def inside(x_adv: Tensor, x: Tensor, eps: float, norm: Norm) -> Tensor:
    """Whether each point (n, ...) lies in the ball and in the box, up to float32 rounding of x + eps."""
    flat = x_adv.flatten(1)
    in_box = (flat.amin(1) >= 0) & (flat.amax(1) <= 1)
    return in_box & (distance(x_adv - x, norm) <= eps * (1 + 1e-5) + 1e-7)


def true_margin(scores: Tensor, labels: Tensor) -> Tensor:
    """f_y - max_{j != y} f_j, (n,): zero or less where the class is lost."""
    return scores.gather(1, labels.unsqueeze(1)).squeeze(1) - best_other(scores, labels)


def relative_lead(scores: Tensor, labels: Tensor) -> Tensor:
    """(f_j - f_y) / |f - mean f| for every class j, (n, K): how close it is to winning, whatever the scale of the scores.

    Of two classes it is f_j - f_y: the ratio would be the same for all scores.
    """
    lead = scores - scores.gather(1, labels.unsqueeze(1))
    if scores.shape[1] == 2:
        return lead
    length = (scores - scores.mean(1, keepdim=True)).square().sum(1, keepdim=True).sqrt()
    return lead / length.clamp(1e-12, torch.finfo(length.dtype).max)  # squares may overflow: the sign stays


def relative_margin(scores: Tensor, labels: Tensor) -> Tensor:
    """The least of -`relative_lead` over the wrong classes, (n,): zero or less where the class is lost."""
    return -best_other(relative_lead(scores, labels), labels)


def check_inputs(model: nn.Module, x: Tensor, y: Tensor, eps: float, norm: Norm) -> None:
    """Raise unless model, images, labels and radius are such that an attack means something."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected an nn.Module that gives K scores, got {type(model).__name__}; wrap it in a module")
    training = next((name or type(m).__name__ for name, m in model.named_modules() if getattr(m, "training", False)), None)
    if training is not None:
        raise ValueError(f"expected a model in eval mode, but {training!r} is in training mode; call model.eval()")
    for name, value in {"x": x, "y": y}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"expected {name} as a tensor, got {type(value).__name__}; use torch.as_tensor({name})")
    if x.dtype not in (torch.float32, torch.float64) or x.ndim < 2:
        raise TypeError(
            f"expected float32 inputs (N, ...) in [0, 1], got {x.dtype} of shape {tuple(x.shape)}"
            + ("; use x / 255 of bytes" if x.dtype == torch.uint8 else "")
        )
    if len(x) == 0:
        raise ValueError("expected one point or more to attack, got none")
    low, high = (float(v) for v in torch.aminmax(x.detach()))
    if not (low >= 0 and high <= 1):  # written so that NaN fails
        raise ValueError(
            f"expected inputs in [0, 1], got values from {low:.4g} to {high:.4g}; "
            "attack the raw images, with the standardisation inside the model"
        )
    if y.shape != x.shape[:1] or y.dtype.is_floating_point or y.dtype == torch.bool:
        raise ValueError(f"expected integer labels of shape ({len(x)},), got {y.dtype} of shape {tuple(y.shape)}")
    check_radius(eps, norm)


def check_radius(eps: Any, norm: Norm) -> None:
    """Raise unless eps is the radius of a ball that means something around inputs in [0, 1]."""
    if not isinstance(eps, (numbers.Real, Tensor)):
        raise TypeError(f"expected eps as a number, got {eps!r}")
    if not 0 < float(eps) < math.inf or (norm == "linf" and float(eps) > 1):
        raise ValueError(
            f"expected eps > 0{' and at most 1' if norm == 'linf' else ''}, got {eps}; inputs lie in [0, 1]: 8/255, not 8"
        )


def check_scores(scores: Tensor, again: Tensor, points: int, y: Tensor) -> int:
    """K, from the scores of so many points, computed twice; raises or warns if they, with the labels y, can't be attacked."""
    if scores.ndim != 2 or scores.shape[1] < 2 or len(scores) != points:
        raise ValueError(f"expected scores of shape ({points}, K) with K >= 2, got {tuple(scores.shape)}; one score per class")
    if scores.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"expected a float32 model, got scores in {scores.dtype}; call model.float(): float32 decides")
    if not bool(scores.isfinite().all()):
        raise ValueError("expected finite scores, got NaN or infinity on clean inputs; the verdicts would mean nothing")
    num_classes = scores.shape[1]
    check_labels(y, num_classes)
    spread = (scores - again).abs().amax() / scores.abs().amax().clamp_min(1e-12)
    if float(spread) > 1e-3:
        raise ValueError(
            f"expected a deterministic model, but equal inputs gave scores that differ by {float(spread):.2g} of their size: "
            "turn dropout and input noise off, or attack the average over many draws"
        )
    total = scores.sum(1)
    if bool(((scores >= 0) & (scores <= 1)).all()) and bool(((total - 1).abs() < 1e-5).all()):
        warn(
            "the scores are probabilities: non-negative and summing to one. Attacks need scores: a softmax at the end "
            "saturates and hides gradients; return the outputs before it"
        )
    return num_classes


def check_labels(y: Tensor, num_classes: int) -> None:
    """Raise unless all labels are classes."""
    if int(y.min()) < 0 or int(y.max()) >= num_classes:
        raise ValueError(f"expected labels in [0, {num_classes}), got {int(y.min())} to {int(y.max())}")
