"""A network as attacks run it: a fast copy to search with, the model itself, in float32, to decide."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from typing import Any, Literal

import torch
from torch import Tensor, nn

from squareloss._precision import strict_float32
from squareloss._warnings import warn
from squareloss.attacks._common import batches, check_labels, check_scores
from squareloss.attacks._fold import fold_batch_norm, frozen_copy, keep_ends, lower
from squareloss.attacks._fuse import fuse
from squareloss.attacks.losses import Objective

Precision = Literal["float32", "bfloat16"]
# sizes with so many binary digits after the leading one are captured once they were asked for so often, or if no larger one
# is there: coarse ones soon, fine ones where a long attack pays for it
_PATIENCE = {1: 20, 3: 200}
_kept: ContextVar[dict[Any, Network] | None] = ContextVar("kept", default=None)


class Network:
    """A model prepared for an attack. The model itself is left as it is.

    `scores` and `gradient` run the fast copy: frozen weights, batch norm folded, on CUDA convolutions joined with ReLUs, steps
    captured at a few batch sizes and, with precision "bfloat16", in that but for the first and last layer. `exact` runs the
    model, in float32 with TF32 off.

    Arguments:
        model: in eval mode.
        x, y: points (N, ...) in [0, 1] and labels (N,); a few are used for the checks.
        batch_size: points per pass.
        precision: of the search; None is "bfloat16" on CUDA, if points and weights are float32, and "float32" elsewhere.
        plain: search with a plain copy: no folding, no lower precision, no capture.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int | None = None,
        precision: Precision | None = None,
        plain: bool = False,
    ) -> None:
        self.model = model
        self.device = next((p.device for p in [*model.parameters(), *model.buffers()]), x.device)
        self.cuda = self.device.type == "cuda"
        fitting = _fitting(x[0].numel()) if self.cuda else 250
        self.batch_size = fitting if batch_size is None else batch_size
        sample = x[: min(len(x), 32)].to(self.device)
        scores = self.exact(sample)
        self.num_classes = check_scores(scores, self.exact(sample), len(sample), y)
        self.precision: Precision = precision or self._fastest(x, plain)
        if self.rounds and (other := _odd_dtype(model)):
            raise ValueError(f"expected float32 weights for a search in bfloat16, got {other}; use precision='float32'")
        self.captured = self.cuda and not plain
        self._search = self._prepare(sample, plain)
        self._steps: dict[Any, dict[int, _Captured]] = {}
        self._asked: Counter[Any] = Counter()
        self._clean: tuple[Any, Tensor, Tensor] | None = None
        self._pool: Any = torch.cuda.graph_pool_handle() if self.captured else None

    @property
    def rounds(self) -> bool:
        """Whether the search sees other scores than the model's by more than float32 rounding."""
        return self.precision != "float32"

    def exact(self, x: Tensor) -> Tensor:
        """The model's scores (n, K), in float32 without TF32."""
        with torch.no_grad(), strict_float32():
            parts = [self.model(batch) for batch in batches(x, self.batch_size)]
        if not isinstance(parts[0], Tensor):
            raise TypeError(
                f"expected a model that gives its scores (N, K) as a tensor, got {type(parts[0]).__name__}; "
                "wrap it in a module that returns the scores alone"
            )
        return torch.cat(parts)

    def clean(self, x: Tensor, at_once: int) -> Tensor:
        """The model's scores (N, K) on points as they are, on their device; kept for the next attack on the same points.

        Arguments:
            x: the points (N, ...), on any device.
            at_once: how many to move to the model's device at a time.
        """
        mark = (x.data_ptr(), x.shape, x.stride(), x.device, _version(x))
        if self._clean is None or self._clean[0] != mark:
            scores = torch.cat([self.exact(part.to(self.device)).to(x.device) for part in batches(x, at_once)])
            self._clean = (mark, x, scores)  # x is held, so that no other tensor comes to lie where it does
        return self._clean[2]

    def scores(self, x: Tensor) -> Tensor:
        """The fast copy's scores (n, K)."""
        with torch.no_grad():
            return _join([self._call("scores", self._forward, (batch,))[0] for batch in batches(x, self.batch_size)])

    def gradient(self, x: Tensor, objective: Objective, y: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (n, K), values of the loss (n,), and its gradient in x (n, ...)."""
        step = lambda *inputs: self._backward(objective, *inputs)
        parts = [
            self._call(objective, step, inputs)
            for inputs in zip(*(batches(t, self.batch_size) for t in (x, y, targets)), strict=True)
        ]
        scores, values, gradients = (_join(list(p)) for p in zip(*parts, strict=True))
        return scores, values, gradients.contiguous()

    def _fastest(self, x: Tensor, plain: bool) -> Precision:
        able = self.cuda and not plain and x.dtype == torch.float32 and not _odd_dtype(self.model)
        able = able and torch.cuda.is_bf16_supported()
        return "bfloat16" if able else "float32"

    def _prepare(self, sample: Tensor, plain: bool) -> nn.Module:
        if plain:
            twin = frozen_copy(self.model)
            return self.model if twin is None else twin
        search = fold_batch_norm(self.model, sample)
        if search is not self.model and sample.ndim == 4:
            search = search.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.rounds and search is not self.model:
            search = lower(keep_ends(search, sample))
        return self._fused(search, sample) if self.cuda else search

    def _fused(self, search: nn.Module, sample: Tensor) -> nn.Module:
        """The network with its convolutions and ReLUs joined; as it was if they can't be, or if that changes its scores."""
        twin = frozen_copy(search)
        if twin is None:
            return search
        try:
            with torch.enable_grad(), self._low():  # traced as it is run
                fused = fuse(twin)
            with torch.no_grad():
                before, after = (self._forward(sample, network)[0] for network in (search, fused))
        except Exception:  # whatever a network does that was not foreseen
            return search
        slack = (0.1 if self.rounds else 0.01) * before.abs().amax()
        same = after.shape == before.shape and bool((after - before).abs().amax() <= slack)
        return fused if same else search

    def _low(self) -> AbstractContextManager[Any]:
        if not self.rounds:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)  # no cache: steps are captured

    def _forward(self, x: Tensor, network: nn.Module | None = None) -> tuple[Tensor, ...]:
        with self._low():
            scores: Tensor = (self._search if network is None else network)(x)
        return (scores.to(x.dtype),)

    def _backward(self, objective: Objective, x: Tensor, y: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (scores,) = self._forward(x)
            values = objective(scores, y, targets)
            if values.shape != y.shape:
                raise ValueError(
                    f"expected a loss with one value per point, shape {tuple(y.shape)}, got {tuple(values.shape)}; "
                    "do not average over the points: reduction='none'"
                )
            if not values.requires_grad:
                why = "the model detaches or rounds: use square_attack, which needs no gradient"
                if torch.is_inference_mode_enabled():
                    why = "gradients are off inside torch.inference_mode(): attack outside of it"
                raise ValueError(f"expected scores that depend on the input differentiably, got none with a gradient; {why}")
            (gradient,) = torch.autograd.grad(values.sum(), x)
        return scores.detach(), values.detach(), gradient

    def _call(self, key: Any, step: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One pass over one batch: captured on CUDA, eager elsewhere."""
        if not self.captured:
            return step(*inputs)
        try:
            captured = self._graph(key, step, inputs)
        except RuntimeError as error:  # the model waits for the device, or looks at values, in its forward pass
            warn(f"the model can't be captured as a CUDA graph, going on without: {error}")
            self.captured = False
            return step(*inputs)
        return captured(*inputs)

    def _graph(self, key: Any, step: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> _Captured:
        """The captured step for this many points: the smallest that holds them, captured now if that will pay."""
        n, known = len(inputs[0]), self._steps.setdefault(key, {})
        for digits, patience in _PATIENCE.items():
            size = min(_round_up(n, digits), self.batch_size)
            self._asked[key, digits, size] += 1
            if size not in known and (self._asked[key, digits, size] >= patience or n > max(known, default=0)):
                known[size] = _Captured(step, inputs, size, self._pool)
        return known[min(size for size in known if size >= n)]


class Prepared:
    """Within it, attacks on one model share what they prepare of it: the fast copy and, on CUDA, its captured steps.

        with Prepared():
            results = [pgd(model, x, y, level / 255) for level in (2, 4, 8)]

    Results are the same with it as without. A model whose weights change is prepared anew; leave the rest of it as it is. One
    may be entered again and again; inside another, the outer one serves. What it holds is freed with it.
    """

    def __init__(self) -> None:
        self._networks: dict[Any, Network] = {}
        self._tokens: list[Token[dict[Any, Network] | None]] = []

    def __enter__(self) -> Prepared:
        outer = _kept.get()
        self._tokens.append(_kept.set(self._networks if outer is None else outer))
        return self

    def __exit__(self, *_: object) -> None:
        _kept.reset(self._tokens.pop())


def prepare(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    batch_size: int | None = None,
    precision: Precision | None = None,
    plain: bool = False,
) -> Network:
    """The model prepared for an attack, as `Network` is; within `Prepared` the one that is there."""
    kept = _kept.get()
    if kept is None:
        return Network(model, x, y, batch_size=batch_size, precision=precision, plain=plain)
    tensors = [*model.parameters(), *model.buffers()]
    weights = tuple((t.data_ptr(), _version(t)) for t in tensors)
    key = (id(model), weights, x.shape[1:], x.dtype, batch_size, precision, plain)
    if key not in kept:
        kept[key] = Network(model, x, y, batch_size=batch_size, precision=precision, plain=plain)  # holds the model and its id
    check_labels(y, kept[key].num_classes)
    return kept[key]


class _Captured:
    """A step recorded at a fixed number of points; fewer are padded with what is left in the buffers."""

    def __init__(self, step: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...], size: int, pool: Any) -> None:
        self.inputs = tuple(_buffer(t, size) for t in inputs)
        self.replay, self.outputs = _record(step, self.inputs, pool)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        n = len(inputs[0])
        for buffer, value in zip(self.inputs, inputs, strict=True):
            buffer[:n].copy_(value)
        self.replay()
        return tuple(t[:n].clone() for t in self.outputs)  # graphs share their memory: copy before the next one runs


def _record(
    step: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...], pool: Any
) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """The step as a CUDA graph: how to replay it, and where its outputs are."""
    device = inputs[0].device
    with torch.cuda.device(device):
        stream = _beside(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm up outside the capture: libraries allocate and choose algorithms
            for _ in range(3):
                step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            outputs = step(*inputs)

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay, outputs


@functools.cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """The stream on which steps are warmed up and captured: always one, since libraries keep a workspace for each."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _buffer(like: Tensor, size: int) -> Tensor:
    """A buffer of `size` points filled with the first of `like`, images channels last."""
    buffer = like[:1].expand(size, *like.shape[1:])
    layout = torch.channels_last if like.ndim == 4 else torch.contiguous_format
    return torch.empty(buffer.shape, dtype=like.dtype, device=like.device).contiguous(memory_format=layout).copy_(buffer)


def _fitting(values: int) -> int:
    """How many points of so many values to run at once on a GPU: 1024 images of CIFAR, 32 of ImageNet."""
    return min(1024, max(32, (1 << 22) // values))


def _odd_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype of a weight that is neither float32 nor an integer; None if there is none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point() and p.dtype != torch.float32), None)


def _version(tensor: Tensor) -> int:
    """How often it was written to; torch does not count for tensors made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _round_up(n: int, digits: int) -> int:
    """The next size with so many binary digits after the leading one, at least 16: with one, a third at most is padding."""
    grain = max(16, 1 << max((n - 1).bit_length() - 1 - digits, 0))
    return -(-n // grain) * grain
