"""Checks of labels and options, shared by losses and codings: every message says what was expected, what came, what to do."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")


def options(reduction: str, label_smoothing: float) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"Unknown reduction {reduction!r}. Available: {', '.join(REDUCTIONS)}")
    smoothing(label_smoothing)


def smoothing(value: float) -> None:
    if not isinstance(value, numbers.Real):
        raise TypeError(f"expected label_smoothing to be a number, got {value!r}")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"expected label_smoothing in [0, 1), got {value}")


def nearest(name: str, available: Iterable[str]) -> str:
    """The end of a message, "; did you mean 'simplex'?", if one of the names is near; else nothing."""
    by_lower = {known.lower().replace("-", "_"): known for known in available}
    near = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, 1, 0.5)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def choose(kind: str, name: str, available: Iterable[str], also: str = "") -> str:
    """`name` if it is one of `available`; else ValueError with all of them and the nearest match.

    Arguments:
        kind: what is chosen, for the message: "loss", "model", "study".
        name: what was asked for.
        available: the names there are.
        also: what else could have been given, in words.
    """
    names = list(available)
    if name in names:
        return name
    listed = ", ".join(names) or "none"
    raise ValueError(f"Unknown {kind} {name!r}. Available: {listed}{f', or {also}' if also else ''}{nearest(str(name), names)}")


def whole(name: str, value: Any, least: int = 1) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"expected {name} to be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"expected {name} to be {least} or more, got {value}")


def positive(name: str, value: float) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"expected {name} to be a number, got {value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"expected {name} > 0 and finite, got {value}")


def not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"expected a finite {name} >= 0, got {value}")


def floating(f: Tensor) -> None:
    if not f.is_floating_point():
        raise TypeError(f"expected floating-point outputs, got {f.dtype}; pass the network's outputs, not classes")


def outputs(f: Tensor, num_classes: int) -> None:
    floating(f)
    if num_classes < 2:
        raise ValueError(
            f"expected two outputs or more on the class axis, got outputs of shape {tuple(f.shape)}; "
            "for one output with two classes use Simplex(reduced=True)"
        )


def weight(w: Tensor | None, num_classes: int) -> None:
    if w is not None and w.shape != (num_classes,):
        raise ValueError(f"expected weight of shape ({num_classes},), one per class, got {tuple(w.shape)}")


def devices(f: Tensor, t: Tensor, w: Tensor | None) -> None:
    if t.device != f.device:
        raise ValueError(f"expected the target on the device of the outputs, {f.device}, got {t.device}; use target.to(...)")
    if w is not None and w.device != f.device:
        raise ValueError(f"expected weight on the device of the outputs, {f.device}, got {w.device}; use criterion.to(...)")


def target(t: Tensor, f: Tensor, num_classes: int, ignore_index: int) -> None:
    """Shape and dtype of a target for outputs f (N, width, ...), before any value is read."""
    if not isinstance(t, Tensor):
        raise TypeError(f"expected the target as a tensor, got {type(t).__name__}; use torch.as_tensor(labels)")
    shape = f.shape
    if len(shape) == 2 and t.dtype == torch.int64 and t.shape == shape[:1]:
        return  # the usual case, first: small losses are called often
    dim = 0 if f.ndim == 1 else 1
    rest = shape[:dim] + shape[dim + 1 :]
    if t.is_floating_point():
        return _soft_target(t, f, rest, (*shape[:dim], num_classes, *shape[dim + 1 :]), ignore_index)
    if t.dtype == torch.bool or t.is_complex():
        raise TypeError(f"expected integer class indices or floating-point probabilities, got {t.dtype}; use labels.long()")
    if t.shape != rest:
        raise ValueError(
            f"expected class indices of shape {tuple(rest)} for outputs {tuple(shape)}, got {tuple(t.shape)}{_hint(t, f, rest)}"
        )


def _soft_target(t: Tensor, f: Tensor, rest: tuple[int, ...], dense: tuple[int, ...], ignore_index: int) -> None:
    if t.shape != dense:
        hint = "class indices must be integers: labels.long()" if t.shape == rest else "one probability per class"
        hint += ", or class indices: labels.squeeze(-1).long()" if t.shape == (*rest, 1) else ""
        raise (TypeError if t.shape == rest else ValueError)(
            f"expected soft targets of shape {dense} for outputs {tuple(f.shape)}, "
            f"got {t.dtype} of shape {tuple(t.shape)}; {hint}"
        )
    if ignore_index >= 0:
        raise ValueError(
            f"expected a negative ignore_index with soft targets, got {ignore_index}: it is a class index, and they have none; "
            "leave it at its default"
        )


def _hint(t: Tensor, f: Tensor, rest: tuple[int, ...]) -> str:
    if t.shape == (*rest, 1):
        return "; use labels.squeeze(-1)"
    if f.ndim == 1 and t.shape == f.shape:
        return "; for one output per sample, use outputs.unsqueeze(1)"
    if f.ndim > 2 and t.shape == f.shape[:-1]:
        return "; the classes go on axis 1: outputs.movedim(-1, 1)"
    return "; for one-hot rows, use labels.float() or labels.argmax(1)" if t.shape == f.shape else ""


def eager() -> bool:
    """Whether operations run now, on real values: not while compiling, not inside `torch.func`, not as tensors without values.

    Those (FakeTensorMode), and tracing (make_fx), are modes of torch's dispatcher. Modes that only count or log do not matter.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if not torch._C._len_torch_dispatch_stack():
        return True
    kind = torch._C._TorchDispatchModeKey
    return all(torch._C._get_dispatch_mode(key) is None for key in (kind.FAKE, kind.PROXY, kind.FUNCTIONAL))


def readable(t: Tensor) -> bool:
    """Whether values may be read: an eager CPU tensor, so that it costs no synchronisation and breaks no compilation."""
    return t.is_cpu and eager()


def indices(labels: Tensor, num_classes: int, ignore_index: int | None = None) -> None:
    """Raise unless every label is in [0, K) or ignored."""
    if labels.numel() == 0:
        return
    labels = labels.long()  # torch knows few operations on its unsigned types
    low, high = torch.aminmax(labels)
    if low.item() >= 0 and high.item() < num_classes:
        return
    used = labels if ignore_index is None else labels[labels != ignore_index]
    wrong = used[(used < 0) | (used >= num_classes)]
    if wrong.numel():
        ignored = "" if ignore_index is None else f" (or ignore_index = {ignore_index})"
        raise ValueError(
            f"expected labels in [0, {num_classes}){ignored} for {num_classes} classes, got {int(wrong[0])}; "
            "relabel the classes from 0 or widen the last layer"
        )


def soft(p: Tensor, dim: int) -> None:
    """Raise unless p holds probabilities along the class axis."""
    if p.numel() == 0:
        return
    slack = 1e-4 if p.dtype in (torch.float32, torch.float64) else 2e-2
    total = p.sum(dim, dtype=torch.float64)
    if not bool((p >= -slack).all()) or not bool(((total - 1).abs() <= slack).all()):
        raise ValueError(
            f"expected soft targets that are non-negative and sum to one over the {p.shape[dim]} classes, got values from "
            f"{float(p.min()):.4g} to {float(p.max()):.4g} with sums from {float(total.min()):.4g} to "
            f"{float(total.max()):.4g}; normalise them, or pass integer class indices"
        )
