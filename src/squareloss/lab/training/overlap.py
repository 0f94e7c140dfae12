"""Convolutions whose weight gradients are computed beside the rest of the backward pass, on a second stream.

The backward pass is a chain through the gradients by the activations; those by the weights hang off it, and nobody waits for
them before the update. At a small batch neither fills a large chip, so both run at once. `join` makes the update wait.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OverlappedConv2d(nn.Conv2d):
    """A convolution without bias, as in `nn.Conv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H', W')."""
        stride, padding = self.stride[0], self.padding[0]
        assert isinstance(padding, int)
        out: Tensor = convolution(x.to(self.weight.dtype), self.weight, stride, padding)
        return out


def overlap(network: nn.Module) -> None:
    """Let the plain convolutions of a network, without bias and groups, be overlapped ones."""
    for module in network.modules():
        if type(module) is nn.Conv2d and module.bias is None and module.groups == 1 and module.dilation == (1, 1):
            square = len({*module.stride}) == 1 and not isinstance(module.padding, str) and len({*module.padding}) == 1
            if square and module.padding_mode == "zeros":
                module.__class__ = OverlappedConv2d


def join() -> None:
    """Let the current stream wait for the weight gradients."""
    main = torch.cuda.current_stream()
    main.wait_stream(_beside(main.stream_id))


@functools.cache
def _beside(stream_id: int) -> torch.cuda.Stream:
    """The stream beside a stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@torch.library.custom_op("squareloss::convolution", mutates_args=())
def convolution(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """`F.conv2d` without bias."""
    return F.conv2d(x, weight, None, stride, padding)


@convolution.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    return F.conv2d(x, weight, None, stride, padding)


@torch.library.custom_op("squareloss::weight_gradient", mutates_args=())
def weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """The gradient by the weight, on a GPU computed on the stream beside the current one."""
    if not gradient.is_cuda:
        return _backward(gradient, x, weight, stride, padding, 1)
    main = torch.cuda.current_stream()
    side = _beside(main.stream_id)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        result = _backward(gradient, x, weight, stride, padding, 1)
    for used in (gradient, x):
        used.record_stream(side)  # do not reuse its memory before the side stream is done with it
    result.record_stream(main)
    return result


@weight_gradient.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    return _backward(gradient, x, weight, stride, padding, 1)


def _backward(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, which: int) -> Tensor:
    """The gradient by the input (which = 0) or by the weight (1)."""
    mask = [which == 0, which == 1, False]
    both: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1, mask
    )
    return both[which]


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    x, weight, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, weight = ctx.saved_tensors
    stride, padding = ctx.stride, ctx.padding
    by_weight = weight_gradient(gradient, x, weight, stride, padding) if ctx.needs_input_grad[1] else None
    by_x = _backward(gradient, x, weight, stride, padding, 0) if ctx.needs_input_grad[0] else None
    return by_x, by_weight, None, None


convolution.register_autograd(_differentiate, setup_context=_setup)
