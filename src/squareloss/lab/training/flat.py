"""The weights of a network in flat buffers, so that a step of SGD is one pass over memory, not a kernel per tensor."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from squareloss.lab.training.recipes import Recipe


class FlatWeights:
    """Parameters, momentum and, for bfloat16, the copies that the network computes with, each in one buffer.

    Autocast would cast every weight in every step, a kernel each; here the update writes the bfloat16 copies on its way. The
    values are those of autocast and `torch.optim.SGD`. The parameters of the network become views of the buffer until
    `release`.

    Attributes:
        leaves: what to differentiate by, in the order of `update`'s gradients: name in the network -> tensor.
    """

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        named = {name: p for name, p in network.named_parameters() if p.requires_grad}
        low = _low_precision(network) if recipe.precision == "bfloat16" else set()
        self.recipe, self.network = recipe, network
        by_dtype = {
            torch.bfloat16: {name: p for name, p in named.items() if p in low},
            torch.float32: {name: p for name, p in named.items() if p not in low},
        }
        self.groups = [_Group(parameters, dtype) for dtype, parameters in by_dtype.items() if parameters]
        self.leaves = {name: leaf for group in self.groups for name, leaf in group.leaves.items()}

    def momentum(self) -> dict[nn.Parameter, Tensor]:
        """The momentum of each parameter, as a view."""
        return {p: m for group in self.groups for p, m in zip(group.parameters.values(), group.momenta, strict=True)}

    def refresh(self) -> None:
        """Write the copies anew, after the parameters were changed by hand."""
        for group in self.groups:
            if group.copy is not None:
                group.copy.copy_(group.flat)

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], lr: Tensor, step: Callable[..., None] | None = None) -> None:
        """One step of SGD; gradients in the order of `leaves`, lr a tensor of shape (), `step` perhaps a compiled `sgd`."""
        start = 0
        for group in self.groups:
            end = start + len(group.parameters)
            rows = [_flatten(g) for g in gradients[start:end]]
            if group.fused is not None:
                group.fused(group.flat, group.moment, group.copy, rows, lr, self.recipe)
            else:
                (step or sgd)(group.flat, group.moment, group.copy, torch.cat(rows), lr, self.recipe)
            start = end

    def release(self) -> None:
        """Give each parameter a storage of its own again."""
        for p in self.network.parameters():
            p.data = p.data.clone()


def sgd(flat: Tensor, moment: Tensor, copy: Tensor | None, gradient: Tensor, lr: Tensor, recipe: Recipe) -> None:
    """`torch.optim.SGD` on flat buffers, in place; plain torch, which the engine compiles into one kernel."""
    gradient = gradient.float() + recipe.weight_decay * flat
    if recipe.momentum:
        moment.mul_(recipe.momentum).add_(gradient)
        gradient = gradient + recipe.momentum * moment if recipe.nesterov else moment
    flat.sub_(lr * gradient)
    if copy is not None:
        copy.copy_(flat)


class _Group:
    """Parameters that are computed with in one dtype.

    Attributes:
        flat, moment, copy: the buffers; the last is None if the dtype is the parameters' own.
        fused: the step of SGD as one kernel, for copies on a GPU.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], dtype: torch.dtype) -> None:
        self.parameters = parameters
        first = next(iter(parameters.values()))
        copied = first.dtype == torch.float32 and dtype == torch.bfloat16
        kernels = _triton_sgd() if copied and first.is_cuda else None
        sizes, grain = [p.numel() for p in parameters.values()], 1 if kernels is None else kernels.GRAIN
        *self.starts, end = itertools.accumulate((-(-size // grain) * grain for size in sizes), initial=0)
        self.flat = torch.zeros(end, dtype=first.dtype, device=first.device)
        self.moment = torch.zeros_like(self.flat)
        for p, view in zip(parameters.values(), self._views(self.flat), strict=True):
            view.copy_(p.detach())
            p.data = view
        self.copy = self.flat.to(dtype) if dtype != self.flat.dtype else None
        self.momenta = self._views(self.moment)
        leaves = parameters.values() if self.copy is None else [v.detach().requires_grad_() for v in self._views(self.copy)]
        self.leaves: dict[str, Tensor] = dict(zip(parameters, leaves, strict=True))
        self.fused = None if kernels is None else kernels.Fused(sizes, self.starts, first.device)

    def _views(self, flat: Tensor) -> list[Tensor]:
        """Slices of a flat buffer in the shapes of the parameters."""
        return [
            _shaped(flat[start : start + p.numel()], p.shape)
            for start, p in zip(self.starts, self.parameters.values(), strict=True)
        ]


@functools.cache
def _triton_sgd() -> Any:
    """The module of the kernel, imported at first use; None where there is no Triton."""
    try:
        from squareloss.lab.training import _triton_sgd
    except ImportError:
        return None
    return _triton_sgd


def _flatten(tensor: Tensor) -> Tensor:
    """All entries in a row; convolution weights in channels_last order, which costs no copy."""
    return tensor.permute(0, 2, 3, 1).reshape(-1) if tensor.ndim == 4 else tensor.reshape(-1)


def _shaped(row: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `_flatten`, as a view."""
    if len(shape) != 4:
        return row.view(shape)
    out, channels, height, width = shape
    return row.view(out, height, width, channels).permute(0, 3, 1, 2)


def _low_precision(network: nn.Module) -> set[nn.Parameter]:
    """The parameters that autocast would cast."""
    layers = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    return {p for layer in layers for p in layer.parameters()}
