"""Losses as modules, called as `nn.CrossEntropyLoss` is. None has parameters or state; the `.link` of each reads outputs."""

from __future__ import annotations

from numbers import Integral
from types import NoneType
from typing import Any, TypedDict

from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks, functional
from squareloss.codings import Coding, Link, Simplex, Softmax


class Options(TypedDict, total=False):
    """The keywords of every loss, which are those of `nn.CrossEntropyLoss`, and `validate`.

    weight: one factor per class, (K,). Default None.
    ignore_index: samples with this class index count for nothing. Default -100.
    label_smoothing: in [0, 1): mix the target with the uniform distribution. Default 0.
    reduction: "mean", "sum" or "none", over samples. Default "mean".
    validate: check label values even where that costs a GPU synchronisation. Default False.
    """

    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    reduction: str
    validate: bool


# of the options that are shown if they are others; texts of losses tell checkpoints of trainings apart: change none of them
DEFAULTS: Options = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean", "validate": False}


class Loss(nn.Module):
    """What all losses share: the options of `nn.CrossEntropyLoss`, and a link. See `Options` for the keywords."""

    weight: Tensor | None

    def __init__(
        self,
        link: Link,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        validate: bool = False,
    ) -> None:
        super().__init__()
        _checks.options(reduction, label_smoothing)
        if not isinstance(ignore_index, (int, Integral)):  # mypy does not know that int is one
            raise TypeError(f"expected ignore_index to be an integer, got {ignore_index!r}; to ignore nothing, leave it out")
        if not isinstance(weight, (Tensor, NoneType)):
            raise TypeError(f"expected weight as a tensor (K,), got {type(weight).__name__}; use torch.tensor(weight)")
        self.register_buffer("weight", weight, persistent=False)  # moves with the module, stays out of checkpoints
        self.link = link
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.reduction = reduction
        self.validate = validate

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Class probabilities, with the class weights and the label smoothing of this loss undone."""
        return self.link.probabilities(outputs, weight=self.weight, label_smoothing=self.label_smoothing)

    def extra_repr(self) -> str:
        """The link, and the options that are not at their defaults."""
        shown = [str(self.link)] if self.weight is None else [str(self.link), f"weight=({len(self.weight)},)"]
        for name, default in DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                shown.append(f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}")
        return ", ".join(shown)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}weight", None)  # nn.CrossEntropyLoss keeps its class weights in checkpoints
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _options(self) -> Options:
        return {
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
            "reduction": self.reduction,
            "validate": self.validate,
        }


class SquareLoss(Loss):
    """Square loss, scale / width |f - v_y|^2: see `functional.square_loss`.

    `SquareLoss()` takes the place of `nn.CrossEntropyLoss()` at the same learning rate; read its probabilities with
    `squareloss.probabilities(outputs)`. `SquareLoss(Simplex(radius=K), scale=1.0)` is the paper's form for images.

    Arguments:
        coding: where the classes lie: `Simplex(...)`, the default, or `OneHot(k, M)`.
        scale: the factor before the mean over outputs.
        options: see `Options`.

    Example: `criterion = SquareLoss(weight=w, label_smoothing=0.1)`, then `criterion(network(x), labels).backward()` and
    `criterion.probabilities(network(x))`.
    """

    def __init__(self, coding: Coding | None = None, scale: float = 0.5, **options: Unpack[Options]) -> None:
        coding = Simplex() if coding is None else coding
        if isinstance(coding, (type, Tensor)) or not isinstance(coding, Coding):
            got = "a tensor" if isinstance(coding, Tensor) else repr(coding)
            raise TypeError(f"expected a coding such as Simplex() or OneHot(k, M), got {got}; class weights go to weight=...")
        _checks.positive("scale", scale)
        super().__init__(coding, **options)
        self.coding = coding
        self.scale = scale

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss of outputs (N, width, ...) at class indices (N, ...) or soft targets (N, K, ...)."""
        return functional.square_loss(  # options one by one: the dict of `_options` costs a microsecond
            outputs,
            target,
            self.coding,
            scale=self.scale,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
            validate=self.validate,
        )

    def extra_repr(self) -> str:
        """As in `Loss`, with the scale."""
        return f"{super().extra_repr()}, scale={self.scale}"


class CrossEntropy(Loss):
    """Cross-entropy, -log softmax(f)_y: see `functional.cross_entropy`. Options: see `Options`."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(Softmax(), **options)

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss of outputs (N, K, ...) at class indices (N, ...) or soft targets (N, K, ...)."""
        return functional.cross_entropy(outputs, target, **self._options())


class Squentropy(Loss):
    """Cross-entropy plus the mean square of the other logits: see `functional.squentropy`. Options: see `Options`."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(Softmax(), **options)

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss of outputs (N, K, ...) at class indices (N, ...) or soft targets (N, K, ...)."""
        return functional.squentropy(outputs, target, **self._options())


class SoftmaxBrier(Loss):
    """The Brier score of the softmax: see `functional.softmax_brier`. Options: see `Options`."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(Softmax(), **options)

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss of outputs (N, K, ...) at class indices (N, ...) or soft targets (N, K, ...)."""
        return functional.softmax_brier(outputs, target, **self._options())


class Focal(Loss):
    """Focal loss, -(1 - p_y)^gamma log p_y: see `functional.focal`.

    Arguments:
        gamma: >= 0; at 0 it is cross-entropy.
        options: see `Options`.
    """

    def __init__(self, gamma: float = 2.0, **options: Unpack[Options]) -> None:
        _checks.not_negative("gamma", gamma)
        super().__init__(Softmax(), **options)
        self.gamma = gamma

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss of outputs (N, K, ...) at class indices (N, ...) or soft targets (N, K, ...)."""
        return functional.focal(outputs, target, gamma=self.gamma, **self._options())

    def extra_repr(self) -> str:
        """As in `Loss`, with gamma if it is not 2."""
        return super().extra_repr() + ("" if self.gamma == 2 else f", gamma={self.gamma}")
