"""A last linear layer with square loss that never forms its N x K outputs: the exact loss and gradients at any K.

For outputs f = W h + b the square loss of a sample is, for every coding here,

    sum_j c (f_j^2 - 2 t f_j) + constant + (a term in f_y, y the class),

and the sum over all K classes is a quadratic form in h: h' (c W'W) h + 2 h' W' c (b - t) + ... So the d x d matrix W'W and the
N rows w_y are all that is needed: 4 (N + K) d^2 operations forward and backward in place of 6 N K d, and no buffer of N x K.
The gradients have the same form, with H'H in place of W'W. Cross-entropy has none. Counted in operations it pays when N is
larger than about 2 d / 3; on a GPU the layer must be wide as well (docs/huge_k.md).

Rounding. Sums over classes are formed before the class's own term is subtracted, so errors are relative to the loss and the
gradient at f = 0, about 1e-7 of them in float32, as in `functional.square_loss`; of a fit that is perfect to seven digits the
value is noise. Half precisions are accumulated in float32, and the gradients returned in the dtype of the inputs.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks, simplex
from squareloss._hard_square import quadratic
from squareloss.codings import Coding, Levels, Simplex, outputs_for
from squareloss.losses import Options, SquareLoss

_DEFAULT = Simplex()
_quadratic = inspect.unwrap(quadratic)  # without its cache, which compiled code cannot see through
_SUMS_WIDE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)  # torch.mm has out_dtype on CUDA


def linear_square_loss(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    coding: Coding = _DEFAULT,
    *,
    scale: float = 0.5,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    validate: bool = False,
) -> Tensor:
    """The value and the gradients of `functional.square_loss(F.linear(h, weight, bias), target, ...)`, without the outputs.

    Gradients flow to h, weight and bias, once: there is no second derivative. The loss is float32, or float64 for float64.

    Arguments:
        h: (..., d), what goes into the layer. weight: (width, d). bias: (width,) or None.
        target: class indices (...), integers. Soft targets would be N x K themselves; for mixup, mix the losses of two targets.
        coding, scale, ignore_index, label_smoothing, reduction, validate: as in `functional.square_loss`.
        class_weight: one factor per class, (K,): `weight` there.

    Example: `linear_square_loss(h, layer.weight, layer.bias, target).backward()` for a layer `nn.Linear(d, K)`.
    """
    num_classes = coding.num_classes(len(weight))
    _check(h, weight, bias, target, num_classes, class_weight, ignore_index, validate)
    _checks.options(reduction, label_smoothing)
    h, weight = _autocast(h), _autocast(weight)
    factor = scale / len(weight)
    weight, bias = _full_width(weight, bias, num_classes)
    labels = target.reshape(-1).long()
    ignored = labels == ignore_index
    labels = labels.masked_fill(ignored, 0)
    flat = h.reshape(-1, h.shape[-1])
    levels = coding.levels(num_classes)
    if class_weight is None or not label_smoothing:
        terms = _hard_terms(levels, num_classes, label_smoothing, factor)
        loss: Tensor = _LinearSquare.apply(flat, weight, bias, labels, terms)  # type: ignore[no-untyped-call]
        if class_weight is not None:
            rows = class_weight.to(loss)[labels]
            loss = (loss * rows).masked_fill(rows == 0, 0)  # and gradients 0, where the mean is 0 / 0
    else:  # the expectation over smoothed labels weighs every class by its own weight: a second form
        w = class_weight.to(flat.dtype if flat.dtype == torch.float64 else torch.float32)
        hard: Tensor = _LinearSquare.apply(flat, weight, bias, labels, _hard_terms(levels, num_classes, 0.0, factor))  # type: ignore[no-untyped-call]
        soft: Tensor = _LinearSquare.apply(flat, weight, bias, labels, _uniform_terms(levels, w, factor))  # type: ignore[no-untyped-call]
        loss = (1 - label_smoothing) * w[labels] * hard + label_smoothing * soft
    loss = loss.masked_fill(ignored, 0)
    if reduction == "none":
        return loss.view(target.shape)
    mass = (~ignored).to(loss) if class_weight is None else class_weight.to(loss)[labels].masked_fill(ignored, 0)
    return loss.sum() / mass.sum() if reduction == "mean" else loss.sum()


class TopK(NamedTuple):
    """The k largest scores of each sample, (..., k), in falling order, and their classes."""

    scores: Tensor
    classes: Tensor


class SquareLinear(nn.Linear):
    """The last layer for many classes: scores by `forward`, the loss without them by `loss`, and the best classes by `top_k`.

    Arguments:
        in_features: d. num_classes: K; the layer has K outputs, or K - 1 with `Simplex(reduced=True)`.
        bias: whether there is one.
        coding, scale, options: as in `SquareLoss`, which is kept as `.criterion` and reads probabilities.
        device, dtype: as in `nn.Linear`.

    Example: `head = SquareLinear(512, 50_000, coding=OneHot(k=10_000, M=5))`, then `head.loss(h, target).backward()` and
    `scores, classes = head.top_k(h, 5)`.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = True,
        *,
        coding: Coding | None = None,
        scale: float = 0.5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        criterion = SquareLoss(coding, scale, **options)
        if num_classes < 2:
            raise ValueError(f"expected two classes or more, got {num_classes}")
        super().__init__(in_features, outputs_for(criterion.coding, num_classes), bias, device=device, dtype=dtype)
        self.criterion = criterion

    def loss(self, h: Tensor, target: Tensor) -> Tensor:
        """The loss of h (..., d) at class indices (...): what `criterion(self(h), target)` would give."""
        c = self.criterion
        return linear_square_loss(
            h,
            self.weight,
            self.bias,
            target,
            c.coding,
            scale=c.scale,
            class_weight=c.weight,
            ignore_index=c.ignore_index,
            label_smoothing=c.label_smoothing,
            reduction=c.reduction,
            validate=c.validate,
        )

    @torch.no_grad()
    def top_k(self, h: Tensor, k: int = 1, *, chunk: int = 8192) -> TopK:
        """The k best classes of h (..., d), `chunk` classes at a time: no buffer is wider than chunk + k."""
        weight, bias = _full_width(self.weight, self.bias, self.criterion.coding.num_classes(self.out_features))
        if not 1 <= k <= len(weight):
            raise ValueError(f"expected 1 <= k <= {len(weight)} classes, got k = {k}")
        if chunk < 1:
            raise ValueError(f"expected a chunk of 1 class or more, got {chunk}")
        best = classes = None
        for start in range(0, len(weight), chunk):
            part = slice(start, start + chunk)
            scores = nn.functional.linear(h, weight[part], None if bias is None else bias[part])
            index = torch.arange(start, start + scores.shape[-1], device=h.device).expand(scores.shape)
            if best is not None and classes is not None:
                scores, index = torch.cat([best, scores], -1), torch.cat([classes, index], -1)
            best, position = scores.topk(min(k, scores.shape[-1]), -1)
            classes = index.gather(-1, position)
        assert best is not None
        assert classes is not None
        return TopK(best, classes)

    def extra_repr(self) -> str:
        """As in `nn.Linear`, with the coding."""
        return f"{super().extra_repr()}, {self.criterion.extra_repr()}"


class _Terms(NamedTuple):
    """sum_j (curve_j f_j^2 - 2 pull_j f_j) + on_curve f_y^2 - 2 on_pull f_y + constant; curve and pull are (K,) or numbers."""

    curve: float | Tensor
    pull: float | Tensor
    on_curve: float
    on_pull: float
    constant: float | Tensor


def _hard_terms(levels: Levels, num_classes: int, label_smoothing: float, factor: float) -> _Terms:
    q = _quadratic(levels, num_classes, label_smoothing, factor)
    constant = (num_classes - 1) * q.off_weight * q.off**2 + q.on_weight * q.on**2 + q.constant
    return _Terms(
        q.off_weight, q.off_weight * q.off, q.on_weight - q.off_weight, q.on_weight * q.on - q.off_weight * q.off, constant
    )


def _uniform_terms(levels: Levels, w: Tensor, factor: float) -> _Terms:
    """1/K sum_c w_c loss(f, c): every output is aimed at `on` with share w_j / K, at `off` with the rest of the mean weight."""
    on = levels.on_weight * w / len(w)
    off = w.mean() - w / len(w)
    constant = (on * levels.on**2 + off * levels.off**2).sum()
    return _Terms(factor * (on + off), factor * (on * levels.on + off * levels.off), 0.0, 0.0, factor * constant)


class _LinearSquare(torch.autograd.Function):
    """The loss of every sample (N,), of h (N, d), weight (K, d), bias (K,) or None, labels (N,) in [0, K)."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, terms: _Terms) -> Tensor:
        with torch.autocast(h.device.type, enabled=False):
            wide = torch.float64 if h.dtype == torch.float64 else torch.float32
            b = torch.zeros(len(weight), dtype=wide, device=h.device) if bias is None else bias.to(wide)
            tilt = terms.curve * b - terms.pull  # (K,)
            gram, lean = _gram(weight, terms.curve, tilt)
            curved = _product(h, gram)  # (N, d)
            on = (h.to(wide) * weight[labels]).sum(1) + b[labels]  # f_y
            rows = (h * (curved + 2 * lean)).sum(1) + (b * (tilt - terms.pull)).sum() + terms.constant
            rows = rows + (terms.on_curve * on - 2 * terms.on_pull) * on
        ctx.terms, ctx.bias_dtype = terms, None if bias is None else bias.dtype
        ctx.save_for_backward(h, weight, labels, curved.add_(lean), on, tilt)
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # the formulas below are no graph
            raise RuntimeError(
                "linear_square_loss has no second derivative: its gradient was asked for with create_graph=True; "
                "use functional.square_loss(F.linear(h, weight, bias), target) for it"
            )
        h, weight, labels, slope, on, tilt = ctx.saved_tensors
        terms: _Terms = ctx.terms
        with torch.autocast(h.device.type, enabled=False):
            g = 2 * grad.to(slope.dtype)
            at_class = g * (terms.on_curve * on - terms.on_pull)  # (N,)
            dh = dw = db = None
            if ctx.needs_input_grad[0]:
                dh = torch.addcmul(g.unsqueeze(1) * slope, at_class.unsqueeze(1), weight[labels].to(slope)).to(h.dtype)
            pulled = g.unsqueeze(1) * h  # (N, d)
            total = pulled.sum(0)
            if ctx.needs_input_grad[1]:
                dw = _weight_gradient(
                    weight, _product(pulled.T, h), terms.curve, tilt, total, labels, at_class.unsqueeze(1) * h
                )
            if ctx.needs_input_grad[2]:
                db = terms.curve * _product(weight, total.unsqueeze(1)).squeeze(1) + tilt * g.sum()
                db = db.index_add_(0, labels, at_class).to(ctx.bias_dtype)
        return dh, dw, db, None, None


def _gram(weight: Tensor, curve: float | Tensor, tilt: Tensor) -> tuple[Tensor, Tensor]:
    """W' diag(curve) W (d, d) and W' tilt (d,), a chunk of classes at a time."""
    d = weight.shape[1]
    gram, lean = tilt.new_zeros(d, d), tilt.new_zeros(d)
    for part in _chunks(weight):
        rows = weight[part]
        left = rows if isinstance(curve, float) else rows * curve[part].unsqueeze(1)
        gram += _product(left.T, rows)
        lean += _product(tilt[part].unsqueeze(0), rows).squeeze(0)
    return gram.mul_(curve) if isinstance(curve, float) else gram, lean


def _weight_gradient(
    weight: Tensor, square: Tensor, curve: float | Tensor, tilt: Tensor, total: Tensor, labels: Tensor, own: Tensor
) -> Tensor:
    """diag(curve) W square + tilt total' (K, d), and own (N, d) added to the rows of its labels, in chunks of classes."""
    out = torch.empty_like(weight)
    square = square * curve if isinstance(curve, float) else square
    for part in _chunks(weight):
        rows = _product(weight[part], square)
        rows = rows if isinstance(curve, float) else rows.mul_(curve[part].unsqueeze(1))
        rows.addr_(tilt[part], total)
        if out.dtype != rows.dtype:  # add in float32 before the chunk is rounded
            inside = (labels >= part.start) & (labels < part.stop)
            rows.index_add_(0, (labels - part.start).where(inside, 0), own * inside.unsqueeze(1))
        out[part] = rows
    return out if out.dtype != own.dtype else out.index_add_(0, labels, own)


def _chunks(weight: Tensor) -> list[slice]:
    """Slices of the classes: small enough for the cache of a CPU, large enough for a GPU."""
    step = max(1, 2 ** (20 if weight.is_cpu else 24) // weight.shape[1])
    return [slice(start, min(start + step, len(weight))) for start in range(0, len(weight), step)]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of two matrices, accumulated and returned in float32 (or float64), whatever their precision.

    On a GPU a float32 factor beside a bfloat16 one is split into two bfloat16 parts, which keeps 16 bits of it, so that both
    products run on the tensor cores.
    """
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    if a.dtype == b.dtype == wide:
        return a @ b
    if a.is_cuda and _SUMS_WIDE and torch.bfloat16 in (a.dtype, b.dtype) and wide == torch.float32:
        pairs = [(left, right) for left in _parts(a) for right in _parts(b)]
        products = [torch.mm(left, right, out_dtype=torch.float32) for left, right in pairs]
        return products[0] if len(products) == 1 else products[0].add_(products[1])
    return a.to(wide) @ b.to(wide)


def _parts(x: Tensor) -> list[Tensor]:
    """A float32 matrix as a sum of two bfloat16 ones; a bfloat16 matrix as it is."""
    if x.dtype == torch.bfloat16:
        return [x]
    high = x.to(torch.bfloat16)
    return [high, (x - high).to(torch.bfloat16)]


def _full_width(weight: Tensor, bias: Tensor | None, num_classes: int) -> tuple[Tensor, Tensor | None]:
    """Weight (K, d) and bias (K,) of K scores: embedded if the layer has K - 1 outputs."""
    if len(weight) == num_classes:
        return weight, bias
    return simplex.embed(weight.T).T, None if bias is None else simplex.embed(bias)


def _autocast(x: Tensor) -> Tensor:
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _check(
    h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, num_classes: int, class_weight: Tensor | None,
    ignore_index: int, validate: bool,
) -> None:  # fmt: skip
    if weight.ndim != 2 or h.ndim < 1 or h.shape[-1] != weight.shape[1]:
        raise ValueError(f"expected h (..., d) and weight (K, d) of the same d, got {tuple(h.shape)} and {tuple(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"expected bias of shape ({len(weight)},), one per output, got {tuple(bias.shape)}")
    if not h.is_floating_point() or (h.dtype != weight.dtype and not torch.is_autocast_enabled(h.device.type)):
        raise TypeError(
            f"expected h and weight of one floating-point dtype, got {h.dtype} and {weight.dtype}; convert one of them"
        )
    if num_classes < 2:
        raise ValueError(f"expected a weight with two outputs or more, got {len(weight)}; or use Simplex(reduced=True) for one")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(
            f"expected integer class indices, got {target.dtype}; soft targets are as large as the outputs: "
            "use functional.square_loss, or mix the losses of several hard targets"
        )
    if target.shape != h.shape[:-1]:
        raise ValueError(
            f"expected class indices of shape {tuple(h.shape[:-1])} for h {tuple(h.shape)}, got {tuple(target.shape)}"
        )
    _checks.weight(class_weight, num_classes)
    if validate or _checks.readable(target):
        _checks.indices(target, num_classes, ignore_index)
