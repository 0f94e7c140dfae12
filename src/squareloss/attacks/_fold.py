"""A faster copy of a network: weights frozen, batch norm folded into the layer before it, ends kept in float32.

Pairs are found by running the network once and watching who feeds whom, so any module works whose layers run once per call. The
copy is compared with the original; a fold that changes the scores is not used.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from squareloss._precision import strict_float32
from squareloss._warnings import warn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WEIGHTED = (*_CONVOLUTIONS, nn.Linear)


class Float32(nn.Module):
    """A layer computed in float32 under autocast: the first one sees the perturbation, the last one tells classes apart.

    Arguments:
        layer: what is computed.
        lowered: give its output in the dtype of autocast, so that what follows, sums beside the layers too, is done in that.
    """

    def __init__(self, layer: nn.Module, *, lowered: bool = False) -> None:
        super().__init__()
        self.layer, self.lowered = layer, lowered

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        kind = x.device.type
        with torch.autocast(kind, enabled=False):
            out: Tensor = self.layer(x.float())
        return out.to(torch.get_autocast_dtype(kind)) if self.lowered and torch.is_autocast_enabled(kind) else out


def frozen_copy(model: nn.Module) -> nn.Module | None:
    """A copy whose weights carry no gradient; None if the module can't be copied."""
    try:
        return copy.deepcopy(model).eval().requires_grad_(False)
    except Exception:  # whatever a module's own deepcopy raises; TorchScript's modules can't be frozen so
        return None


def fold_batch_norm(model: nn.Module, x: Tensor) -> nn.Module:
    """A frozen copy with batch norm folded into the convolution or linear layer that feeds it; the model itself if none can be.

    Arguments:
        model: in eval mode; it is not changed.
        x: a few inputs (n, ...), to see which layer feeds which and to compare the scores before and after.
    """
    plain = frozen_copy(model)
    if plain is None:
        return model
    pairs = _pairs(plain, x)
    if not pairs:
        return plain
    twin = _folded(plain, pairs, x)
    if twin is None:  # some layer feeds another too: keep the pairs that are right by themselves
        twin = _folded(plain, [pair for pair in pairs if _folded(plain, [pair], x) is not None], x)
    if twin is None:
        warn("batch norm could not be folded: the folded copy gives other scores; going on without")
    return plain if twin is None else twin  # not `or`: a module may have a length


def keep_ends(model: nn.Module, x: Tensor) -> nn.Module:
    """The model, changed in place: its first and last convolution or linear layer compute in float32 under autocast."""
    order: list[nn.Module] = []
    hooks = [m.register_forward_hook(lambda m, _, __: order.append(m)) for m in model.modules() if isinstance(m, _WEIGHTED)]
    _run(model, x, hooks)
    once = [m for m in order if order.count(m) == 1]
    for layer in once[-1:] + once[:-1][:1]:
        _replace(model, layer, Float32(layer, lowered=layer is not once[-1]))
    return model


def lower(model: nn.Module) -> nn.Module:
    """The model, changed in place: weights that autocast would cast in every pass are bfloat16 for good, but for `Float32`."""
    kept = {id(m.layer) for m in model.modules() if isinstance(m, Float32)}
    for module in model.modules():
        if isinstance(module, _WEIGHTED) and id(module) not in kept:
            module.to(torch.bfloat16)
    return model


def _pairs(model: nn.Module, x: Tensor) -> list[tuple[str, str]]:
    """Names of (layer, batch norm) where the norm's input is the layer's output, each running once per call."""
    made: dict[int, nn.Module] = {}  # id of an output -> its layer
    kept: list[Tensor] = []  # outputs stay alive, so that ids stay theirs
    calls: dict[nn.Module, int] = {}
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        calls[module] = calls.get(module, 0) + 1
        if isinstance(module, _WEIGHTED):
            made[id(output)] = module
            kept.append(output)
        elif inputs and id(inputs[0]) in made and _foldable(made[id(inputs[0])], module):
            pairs.append((made[id(inputs[0])], module))

    hooks = [m.register_forward_hook(watch) for m in model.modules() if isinstance(m, (*_WEIGHTED, *NORMS))]
    _run(model, x, hooks)
    names = {module: name for name, module in model.named_modules()}
    return [(names[a], names[b]) for a, b in pairs if calls[a] == calls[b] == 1]


def _folded(model: nn.Module, pairs: list[tuple[str, str]], x: Tensor) -> nn.Module | None:
    """A frozen copy in which these pairs are one layer each; None if there are none, or the copy fails or differs at x."""
    if not pairs:
        return None
    twin = copy.deepcopy(model)
    try:
        for names in pairs:
            layer, norm = (cast(Any, twin.get_submodule(name)) for name in names)
            fused = fuse_linear_bn_eval(layer, norm) if isinstance(layer, nn.Linear) else fuse_conv_bn_eval(layer, norm)
            _replace(twin, layer, fused)
            _replace(twin, norm, nn.Identity())
        twin.eval().requires_grad_(False)
        return twin if _agree(twin, model, x) else None
    except Exception:  # layers that are not what they seem: parametrised ones, norms whose weights the model reads itself
        return None


def _foldable(layer: nn.Module, norm: Any) -> bool:
    """Whether they are torch's own, and shapes fit: a batch norm with statistics, of the layer's channels, on axis 1."""
    plain = all(any(type(m).forward is kind.forward for kind in (*_WEIGHTED, *NORMS)) for m in (layer, norm))
    if not plain or norm.running_mean is None:
        return False
    if isinstance(layer, nn.Linear):
        return isinstance(norm, nn.BatchNorm1d) and norm.num_features == layer.out_features
    return norm.num_features == layer.out_channels  # type: ignore[no-any-return]


def _run(model: nn.Module, x: Tensor, hooks: list[Any]) -> None:
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is a child."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old and parent is not new:
                setattr(parent, name, new)


def _agree(a: nn.Module, b: nn.Module, x: Tensor) -> bool:
    """Whether two networks give the same scores up to float32 rounding; TF32's, over fifty layers, would be a thousandth."""
    with torch.no_grad(), strict_float32():
        first, second = a(x), b(x)
    size = second.abs().amax().clamp_min(1e-6)
    return bool(((first - second).abs().amax() / size) < 1e-3)
