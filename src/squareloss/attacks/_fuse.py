"""Convolution, shortcut and ReLU as one layer: cuDNN does in one pass over memory what modules of PyTorch do in three or four.

The network is traced by `torch.fx`, as a whole or, where it can't be traced, child by child; what matches is replaced.
"""

from __future__ import annotations

import copy
import inspect
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from squareloss.attacks._fold import NORMS, Float32

_RELUS = {torch.relu, torch.relu_, F.relu, F.relu_, "relu", "relu_"}
_SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}


class ConvReLU(nn.Module):
    """relu(convolution(x) + shortcut), in one kernel on CUDA; gradients go to x and to the shortcut alone."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H', W'), with what the shortcut is broadcast to if it is not as large."""
        fits = shortcut is None or shortcut.shape == output_shape(self.convolution, x)
        if not (x.is_cuda and fits):
            out = self.convolution(x)
            return torch.relu(out if shortcut is None else out + shortcut)
        weight = self.convolution.weight
        shortcut = None if shortcut is None else shortcut.to(weight.dtype)
        return _OnePass.apply(x.to(weight.dtype), shortcut, self.convolution)  # type: ignore[no-any-return, no-untyped-call]


def output_shape(layer: nn.Conv2d, x: Tensor) -> tuple[int, ...]:
    """What shape (N, C', H', W') the layer gives x (N, C, H, W)."""
    padding = [int(p) for p in layer.padding]  # padding by name never gets here
    sides = zip(x.shape[2:], layer.kernel_size, layer.stride, padding, layer.dilation, strict=True)
    return (len(x), layer.out_channels, *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides))


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shortcut: Tensor | None, layer: nn.Conv2d) -> Tensor:
        bias = layer.weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
        where = (layer.stride, layer.padding, layer.dilation, layer.groups)
        if shortcut is None:
            out: Tensor = torch.cudnn_convolution_relu(x, layer.weight, bias, *where)  # type: ignore[arg-type]
        else:
            out = torch.cudnn_convolution_add_relu(x, layer.weight, shortcut, 1.0, bias, *where)  # type: ignore[arg-type]
        ctx.save_for_backward(x, out)
        ctx.layer, ctx.added = layer, shortcut is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, out = ctx.saved_tensors
        layer: nn.Conv2d = ctx.layer
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
        into_x = torch.ops.aten.convolution_backward(
            grad, x, layer.weight, None, layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups,
            [True, False, False],
        )[0]  # fmt: skip
        return into_x, grad if ctx.added else None, None


class Thinned(nn.Module):
    """A 1 x 1 convolution with a stride as one without on every so many pixels: cuDNN has fast kernels for that alone."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.stride, self.convolution = convolution.stride, copy.copy(convolution)
        self.convolution.stride = (1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H / stride, W / stride), rounded up."""
        return self.convolution(_EveryPixel.apply(x, self.stride))  # type: ignore[no-any-return, no-untyped-call]


class _EveryPixel(torch.autograd.Function):
    """x[:, :, ::a, ::b] with a gradient that lies in memory as x does; with PyTorch's own all sums after it are slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: tuple[int, int]) -> Tensor:
        ctx.like, ctx.stride = torch.empty_like(x, device="meta"), stride
        return x[:, :, :: stride[0], :: stride[1]]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        whole = torch.zeros_like(ctx.like, device=grad.device, dtype=grad.dtype)
        whole[:, :, :: ctx.stride[0], :: ctx.stride[1]] = grad
        return whole, None


def fuse(model: nn.Module) -> nn.Module:
    """The model with convolutions, the shortcuts added to them and ReLUs joined, where that can be seen; changed in place."""
    graph = _trace(model)
    if graph is None:
        for name, child in model.named_children():
            setattr(model, name, fuse(child))
        return model
    traced = fx.GraphModule(model, graph)
    changes = [_join(traced, node) for node in list(graph.nodes) if _is_relu(traced, node)]
    changes += [_thin(traced, node) for node in list(graph.nodes)]
    if not any(changes):
        return model
    traced.recompile()
    return traced


def _trace(model: nn.Module) -> fx.Graph | None:
    """What the model computes; None where a trace can't follow, or leaves out what it does not see.

    It does not see hooks, nor contexts such as no_grad, and an argument that may be None is never None to it.
    """
    if _hooked(model) or any(a.default is not a.empty for a in inspect.signature(model.forward).parameters.values()):
        return None
    try:
        return _Tracer().trace(model)
    except Exception:  # whatever a forward pass does that a trace can't follow
        return None


class _Value(fx.Proxy):
    """A value whose += and *= stay in place; to torch's own, `a += b` is `a = a + b`, whoever else holds a."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._write(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._write(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._write(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._write(operator.itruediv, other)

    def _write(self, how: Any, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", how, (self, other), {})


class _Tracer(fx.Tracer):
    """Looks not into batch norms and layers with hooks, which stay as they are; raises at a context that changes results."""

    def __init__(self) -> None:
        super().__init__()
        self.modes = _modes()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Float32, *NORMS)) or _hooked(m) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            raise ValueError("expected the same gradient mode and autocast throughout")
        return super().create_node(*args, **kwargs)


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), *(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


def _hooked(module: nn.Module) -> bool:
    kinds = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    return any(kinds)


def _join(traced: fx.GraphModule, relu: fx.Node) -> bool:
    """Join a ReLU with the convolution before it; whether that was done."""
    before = _source(traced, relu.args[0] if relu.args else None)
    if before is None:
        return False
    choices = [(_source(traced, a), b) for a, b in _orders(before)] if _is_sum(before) else [(before, None)]
    for convolution, shortcut in choices:
        layer = _layer(traced, convolution)
        if convolution is None or layer is None or (shortcut is not None and isinstance(layer, Float32)):
            continue
        nodes = list(traced.graph.nodes)
        span = nodes[nodes.index(convolution) : nodes.index(relu) + 1]
        if any(_writes(traced, node) for node in span if node not in (before, relu)):  # the layer will see its input after that
            continue
        _put(traced, layer, span, shortcut)
        return True
    return False


def _put(traced: fx.GraphModule, layer: nn.Conv2d | Float32, span: list[fx.Node], shortcut: Any) -> None:
    """Put one layer for what goes from the convolution, first in the span, to the ReLU, last in it."""
    convolution, relu, graph = span[0], span[-1], traced.graph
    if isinstance(layer, Float32):
        traced.set_submodule(str(convolution.target), Float32(ConvReLU(layer.layer), lowered=layer.lowered))  # type: ignore[arg-type]
    else:
        _take_bias(layer, _layer(traced, _source(traced, shortcut)))
        traced.set_submodule(str(convolution.target), ConvReLU(layer))
    with graph.inserting_before(relu):
        arguments = (convolution.args[0],) if shortcut is None else (convolution.args[0], shortcut)
        relu.replace_all_uses_with(graph.call_module(str(convolution.target), arguments))
    for node in reversed(span):
        if not node.users:
            graph.erase_node(node)


def _take_bias(layer: nn.Conv2d, other: Any) -> None:
    """Add the bias of the convolution in the shortcut, if there is one, to that of the layer, where it costs nothing."""
    if not isinstance(other, nn.Conv2d) or layer.bias is None or other.bias is None:
        return
    if layer.out_channels == other.out_channels:  # else one is broadcast
        layer.bias = nn.Parameter(layer.bias + other.bias, requires_grad=False)
        other.bias = None


def _thin(traced: fx.GraphModule, node: fx.Node) -> bool:
    layer = _layer(traced, node)
    if not isinstance(layer, nn.Conv2d) or layer.kernel_size != (1, 1) or layer.padding != (0, 0) or layer.stride == (1, 1):
        return False
    traced.set_submodule(str(node.target), Thinned(layer))
    return True


def _source(traced: fx.GraphModule, node: Any) -> fx.Node | None:
    """What made this value, identities passed over; None if others use it too."""
    while isinstance(node, fx.Node) and len(node.users) == 1:
        if not _calls(traced, node, nn.Identity):
            return node
        node = node.args[0]
    return None


def _layer(traced: fx.GraphModule, node: Any) -> nn.Conv2d | Float32 | None:
    """The convolution that this node calls, and no other node does; None if it is none that cuDNN can join with a ReLU."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or node.kwargs:
        return None
    layer = traced.get_submodule(str(node.target))
    inner = layer.layer if isinstance(layer, Float32) else layer
    calls = sum(other.op == "call_module" and other.target == node.target for other in traced.graph.nodes)
    plain = type(inner) is nn.Conv2d and inner.padding_mode == "zeros" and isinstance(inner.padding, tuple)
    return layer if plain and calls == 1 and not _hooked(inner) else None  # type: ignore[return-value]


def _calls(traced: fx.GraphModule, node: fx.Node, kind: type[nn.Module]) -> bool:
    """Whether the node calls a layer of just that kind."""
    layer = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    return type(layer) is kind and not _hooked(layer)


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    functional = node.op in ("call_function", "call_method") and node.target in _RELUS
    return functional or _calls(traced, node, nn.ReLU)


def _is_sum(node: fx.Node) -> bool:
    """Whether two values are added."""
    two = len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args) and node.args[0] is not node.args[1]
    return node.op in ("call_function", "call_method") and node.target in _SUMS and two and not node.kwargs


def _orders(total: fx.Node) -> list[tuple[Any, ...]]:
    """Both orders of what is added; in place only the one that writes to the first, since the second must stay as it is."""
    return [total.args] if _writes_by_name(total) else [total.args, total.args[::-1]]


def _writes(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the node may change a value in place."""
    if node.op == "call_module":
        layer = traced.get_submodule(str(node.target))
        return bool(getattr(layer, "inplace", False)) or _hooked(layer)
    return _writes_by_name(node) or bool(node.kwargs.get("inplace")) or "out" in node.kwargs


def _writes_by_name(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else node.target.__name__
    operators = getattr(node.target, "__module__", "") == "_operator" and name.startswith("i")  # iadd, imul
    return name.endswith("_") or operators
