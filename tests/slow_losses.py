"""Every loss again, one sample and one class at a time, in plain Python: what the fast ones are compared with."""

import math

import numpy as np
import torch

from squareloss import OneHot, Simplex, functional

SQUARE = {
    "simplex": (Simplex(), 0.5),
    "paper": (Simplex(radius=4.0), 1.0),
    "reduced": (Simplex(reduced=True), 0.5),
    "one-hot": (OneHot(), 1.0),
    "scaled": (OneHot(k=5.0, M=15.0), 0.5),
}
SOFTMAX = ("cross_entropy", "squentropy", "softmax_brier", "focal")
NAMES = (*SQUARE, *SOFTMAX)


def fast(name):
    """The library's function: (outputs, target, **options) -> loss."""
    if name in SQUARE:
        coding, scale = SQUARE[name]
        return lambda f, y, **options: functional.square_loss(f, y, coding, scale=scale, **options)
    return getattr(functional, name)


def width(name, num_classes):
    return num_classes - 1 if name == "reduced" else num_classes


def one(name, f, c):
    """The loss of one output vector (a list) at class c, from its definition."""
    if name in SQUARE:
        coding, scale = SQUARE[name]
        code = coding.vertices(len(f) + (name == "reduced"))[c].tolist()
        weights = [coding.k if j == c and isinstance(coding, OneHot) else 1.0 for j in range(len(f))]
        return scale / len(f) * sum(w * (a - b) ** 2 for w, a, b in zip(weights, f, code, strict=True))
    log_p = f[c] - math.log(sum(math.exp(a - max(f)) for a in f)) - max(f)
    if name == "squentropy":
        return -log_p + sum(a * a for j, a in enumerate(f) if j != c) / (len(f) - 1)
    if name == "softmax_brier":
        p = np.exp(np.array(f) - max(f))
        p /= p.sum()
        return float(((p - np.eye(len(f))[c]) ** 2).sum())
    return -((1 - math.exp(log_p)) ** 2) * log_p if name == "focal" else -log_p


def slow(name, outputs, target, weight=None, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    """The same as `fast(name)(outputs, target, ...)`, by a loop over samples."""
    rows = (outputs.unsqueeze(0) if outputs.ndim == 1 else outputs).movedim(1, -1)
    num_classes = rows.shape[-1] + (name == "reduced")
    soft = target.is_floating_point()
    labels = target.unsqueeze(0) if outputs.ndim == 1 else target
    labels = labels.movedim(1, -1).reshape(-1, num_classes) if soft else labels.reshape(-1)
    weights = [1.0] * num_classes if weight is None else weight.tolist()
    losses, masses = [], []
    for f, y in zip(rows.reshape(-1, rows.shape[-1]).tolist(), labels.tolist(), strict=True):
        if not soft and y == ignore_index:
            losses.append(0.0)
            masses.append(0.0)
            continue
        p = y if soft else [float(c == y) for c in range(num_classes)]
        q = [(1 - label_smoothing) * a + label_smoothing / num_classes for a in p]
        losses.append(sum(q[c] * weights[c] * one(name, f, c) for c in range(num_classes)))
        masses.append(1.0 if soft else weights[y])
    if reduction == "none":
        return torch.tensor(losses, dtype=torch.float64).reshape(rows.shape[:-1] if outputs.ndim > 1 else ())
    total = torch.tensor(sum(losses), dtype=torch.float64)
    return total / sum(masses) if reduction == "mean" else total
