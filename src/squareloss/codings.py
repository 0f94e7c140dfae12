"""Links and codings: how the K outputs of a network are read, and what square loss aims them at.

A link turns outputs into scores, probabilities and classes. A coding is a link that also has targets, and `eta`, the raw
estimate of the class probabilities that its targets make square loss converge to. K is always the width of the outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from squareloss import _checks, simplex
from squareloss.simplex import class_dim


class Levels(NamedTuple):
    """A code with two values: `on` at the true class and `off` elsewhere, residuals at the true class weighted `on_weight`.

    Every coding here is of this kind, so the loss of a sample is
    sum_j (f_j - off)^2, with the term of the true class replaced by on_weight (f_y - on)^2.
    """

    off: float
    on: float
    on_weight: float


@runtime_checkable
class Link(Protocol):
    """How outputs (N, K), (N, K, d1, ...) or (K,) are read."""

    def scores(self, outputs: Tensor) -> Tensor:
        """K class scores, whose argmax is the class."""

    def probabilities(self, outputs: Tensor, *, weight: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
        """K probabilities: non-negative, summing to one."""

    def predict(self, outputs: Tensor) -> Tensor:
        """The class: the argmax of the scores."""


@runtime_checkable
class Coding(Link, Protocol):
    """A link with targets, for square loss."""

    def num_classes(self, width: int) -> int:
        """K, given the number of outputs."""

    def levels(self, num_classes: int) -> Levels:
        """The two values of the code."""

    def encode(self, labels: Tensor, num_classes: int) -> Tensor:
        """The target of each label."""

    def eta(self, outputs: Tensor) -> Tensor:
        """The raw estimate of the class probabilities; may leave [0, 1]."""

    def vertices(self, num_classes: int) -> Tensor:
        """The K codes, one per row."""


@dataclass(frozen=True)
class Softmax:
    """The link of cross-entropy: outputs are logits, probabilities their softmax."""

    def scores(self, outputs: Tensor) -> Tensor:
        """The logits themselves."""
        return outputs

    def probabilities(self, outputs: Tensor, *, weight: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
        """softmax(f); with `weight` or `label_smoothing`, what training with them did is undone."""
        if weight is None and not label_smoothing:
            return torch.softmax(outputs, class_dim(outputs))
        return _undo(torch.softmax(simplex.wide(outputs), class_dim(outputs)), weight, label_smoothing).to(outputs.dtype)

    def predict(self, outputs: Tensor) -> Tensor:
        """The argmax of the logits."""
        return outputs.argmax(class_dim(outputs))


@dataclass(frozen=True)
class Simplex:
    """Simplex coding: class y is a vertex of the regular simplex centred at 0.

    In K outputs the code is v_y = r sqrt(K/(K-1)) (e_y - 1/K), of norm r, with inner products -r^2/(K-1) between
    classes. The minimiser of the expected square loss is f = sum_k eta_k v_k, so
    eta_k = 1/K + sqrt((K-1)/K) (f_k - mean f) / r (Proposition 1 of the paper, at any radius).

    Arguments:
        radius: the norm r of the codes. None, the default, is sqrt(K(K-1)): then v_y = K e_y - 1 and eta = (1 + f)/K on
            zero-sum outputs, which is softmax linearised at 0, and with `SquareLoss`'s scale of one half, cross-entropy's
            learning rates carry over. The paper uses K on images and 1 for two classes.
        reduced: use K - 1 outputs, the coordinates of the paper's appendix, instead of K. At K = 2 that is one output,
            with class 1 at +r and class 0 at -r.

    Example: `Simplex().encode(torch.tensor([0, 2]), 3)` is [[2, -1, -1], [-1, -1, 2]], and `Simplex().eta` of it is one-hot.
    """

    radius: float | None = None
    reduced: bool = False

    def __post_init__(self) -> None:
        if self.radius is not None:
            _checks.positive("radius", self.radius)

    def num_classes(self, width: int) -> int:
        """K for so many outputs."""
        return width + 1 if self.reduced else width

    def levels(self, num_classes: int) -> Levels:
        """-a/K off the class and a - a/K on it, with a = r sqrt(K/(K-1))."""
        if num_classes < 2:
            raise ValueError(f"expected two classes or more, got {num_classes}; a simplex code needs two")
        spike = self._radius(num_classes) * math.sqrt(num_classes / (num_classes - 1))
        return Levels(off=-spike / num_classes, on=spike - spike / num_classes, on_weight=1.0)

    def encode(self, labels: Tensor, num_classes: int) -> Tensor:
        """Codes (N, K, ...) of class indices (N, ...) or of soft labels (N, K, ...); K - 1 wide if reduced."""
        codes = _encode(labels, num_classes, self.levels(num_classes))
        return simplex.reduce(codes) if self.reduced else codes

    def scores(self, outputs: Tensor) -> Tensor:
        """The K outputs; with `reduced`, their isometric image in K coordinates."""
        _check_width(self, outputs)
        return simplex.embed(simplex.wide(outputs)).to(outputs.dtype) if self.reduced else outputs

    def eta(self, outputs: Tensor) -> Tensor:
        """1/K + sqrt((K-1)/K) (f_k - mean f) / r: sums to one, may leave [0, 1]."""
        scores = self.scores(simplex.wide(outputs))
        dim = class_dim(scores)
        num_classes = scores.shape[dim]
        slope = math.sqrt((num_classes - 1) / num_classes) / self._radius(num_classes)
        return ((scores - scores.mean(dim, keepdim=True)) * slope + 1 / num_classes).to(outputs.dtype)

    def probabilities(self, outputs: Tensor, *, weight: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
        """`eta` projected onto the simplex; with `weight` or `label_smoothing`, what training with them did is undone."""
        return _undo(self.eta(simplex.wide(outputs)), weight, label_smoothing).to(outputs.dtype)

    def predict(self, outputs: Tensor) -> Tensor:
        """The argmax of the scores."""
        return self.scores(outputs).argmax(class_dim(outputs))

    def vertices(self, num_classes: int) -> Tensor:
        """The K codes as rows, (K, K) or (K, K-1), float64; for looking at."""
        return simplex.vertices(num_classes, self._radius(num_classes), reduced=self.reduced)

    def _radius(self, num_classes: int) -> float:
        return math.sqrt(num_classes * (num_classes - 1)) if self.radius is None else self.radius


@dataclass(frozen=True)
class OneHot:
    """One-hot coding, scaled as by Hui and Belkin (2020): target M at the true class, whose residual weighs k.

    The minimiser of the expected loss is f = kM eta / (1 + (k-1) eta), so eta = f / (kM - (k-1) f); f / M is wrong unless
    k = 1. That fraction has a pole just beyond M, so f is clamped to [0, M] first when k != 1.

    Arguments:
        k: the weight of the residual at the true class, > 0; those of the other classes weigh 1.
        M: the target of the true class, > 0; those of the other classes are 0.

    Example: `OneHot(k=K / 5, M=5)` for many classes (docs/many_classes.md).
    """

    k: float = 1.0
    M: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive("k", self.k)
        _checks.positive("M", self.M)

    def num_classes(self, width: int) -> int:
        """As many classes as outputs."""
        return width

    def levels(self, num_classes: int) -> Levels:
        """0 off the class, M on it with weight k."""
        return Levels(off=0.0, on=self.M, on_weight=self.k)

    def encode(self, labels: Tensor, num_classes: int) -> Tensor:
        """M e_y (N, K, ...) of class indices (N, ...), or M p of soft labels (N, K, ...)."""
        return _encode(labels, num_classes, self.levels(num_classes))

    def scores(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        _check_width(self, outputs)
        return outputs

    def eta(self, outputs: Tensor) -> Tensor:
        """f / M for k = 1, which may leave [0, 1]; else f / (kM - (k-1) f) of f clamped to [0, M]."""
        f = self.scores(simplex.wide(outputs))
        if self.k == 1:
            return (f / self.M).to(outputs.dtype)
        f = f.clamp(0.0, float(self.M))  # the exporter to ONNX takes no mixed bounds
        return (f / (self.k * self.M - (self.k - 1) * f)).to(outputs.dtype)

    def probabilities(self, outputs: Tensor, *, weight: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
        """`eta` projected onto the simplex; with `weight` or `label_smoothing`, what training with them did is undone."""
        return _undo(self.eta(simplex.wide(outputs)), weight, label_smoothing).to(outputs.dtype)

    def predict(self, outputs: Tensor) -> Tensor:
        """The argmax of the outputs."""
        return self.scores(outputs).argmax(class_dim(outputs))

    def vertices(self, num_classes: int) -> Tensor:
        """M times the identity (K, K), float64; for looking at."""
        return self.M * torch.eye(num_classes, dtype=torch.float64)


def probabilities(outputs: Tensor) -> Tensor:
    """Class probabilities from outputs trained with the default `SquareLoss()`: (1 + f)/K, projected onto the simplex.

    Outputs that do not sum to zero are centred first. For a loss with class weights, label smoothing or another coding use
    its own `criterion.probabilities(outputs)`.

    Arguments:
        outputs: (N, K), (N, K, d1, ...) or (K,).

    Returns probabilities of the same shape and dtype: non-negative, summing to one over the classes.
    """
    class_dim(outputs)  # says what is wrong with outputs that are no tensor
    return Simplex().probabilities(outputs)


def scaled_one_hot(num_classes: int) -> OneHot:
    """For many classes: k = K/5 and M = 5, with which the first gradient is cross-entropy's; k = 1 and M = K below five."""
    return OneHot(k=max(1.0, num_classes / 5), M=min(num_classes, 5))


def one_hot_15(num_classes: int) -> OneHot:
    """For a hundred classes, at scale 1: k = K/20 and M = 15, or k = 1 and M = 3K/4 below twenty.

    The first gradient is one and a half times cross-entropy's.
    """
    return OneHot(k=max(1.0, num_classes / 20), M=min(0.75 * num_classes, 15.0))


def outputs_for(link: Link, num_classes: int) -> int:
    """How many outputs the link reads K classes from: K, or K - 1 with `Simplex(reduced=True)`."""
    more = link.num_classes(num_classes) - num_classes if isinstance(link, Coding) else 0
    return num_classes - more


def _undo(eta: Tensor, weight: Tensor | None, label_smoothing: float) -> Tensor:
    if weight is not None:
        eta = simplex.undo_weight(simplex.project(eta), weight)
    if label_smoothing:
        eta = simplex.undo_smoothing(eta, label_smoothing)
    return simplex.project(eta)


def _encode(labels: Tensor, num_classes: int, levels: Levels) -> Tensor:
    if not isinstance(labels, Tensor):
        raise TypeError(f"expected labels as a tensor, got {type(labels).__name__}; use torch.as_tensor(labels)")
    if labels.is_floating_point():
        if labels.ndim == 0 or labels.shape[class_dim(labels)] != num_classes:
            raise ValueError(
                f"expected soft labels with {num_classes} classes on the class axis, got shape {tuple(labels.shape)}; "
                "class indices must be integers (labels.long())"
            )
        if _checks.readable(labels):
            _checks.soft(labels, class_dim(labels))
        return levels.off + (levels.on - levels.off) * labels
    if labels.dtype == torch.bool:
        raise TypeError("expected integer class indices or floating-point soft labels, got torch.bool; use labels.long()")
    if _checks.readable(labels):
        _checks.indices(labels, num_classes)
    dim = min(labels.ndim, 1)
    shape = [*labels.shape[:dim], num_classes, *labels.shape[dim:]]
    codes = torch.full(shape, levels.off, device=labels.device)
    return codes.scatter_(dim, labels.long().unsqueeze(dim), levels.on)


def _check_width(coding: Coding, outputs: Tensor) -> None:
    width = outputs.shape[class_dim(outputs)]
    if coding.num_classes(width) < 2:
        raise ValueError(
            f"expected two outputs or more on the class axis of shape {tuple(outputs.shape)}, got {width}; "
            "for one output with two classes use Simplex(reduced=True)"
        )
