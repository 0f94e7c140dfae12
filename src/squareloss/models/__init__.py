"""Networks that ship with the package. Each knows its `spec`, a small dict from which `build` makes it again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from squareloss._checks import choose
from squareloss.models.mlp import MLP
from squareloss.models.one_hidden import OneHidden
from squareloss.models.resnet import BLOCKS, ResNet
from squareloss.models.wide_resnet import WideResNet

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "one_hidden": OneHidden,
    "wide_resnet": WideResNet,
    "wrn16_10": partial(WideResNet, depth=16, widen=10),
    **{name: partial(ResNet, name) for name in BLOCKS},
}


def build(spec: dict[str, Any]) -> nn.Module:
    """The network that `spec` describes: its name under "name", and the arguments of its builder.

    Example: `build({"name": "mlp", "inputs": 64, "hidden": [500, 500], "outputs": 10})`.
    """
    arguments = dict(spec)
    name = arguments.pop("name", None)
    return BUILDERS[choose("network", name, sorted(BUILDERS))](**arguments)


__all__ = ["BUILDERS", "MLP", "OneHidden", "ResNet", "WideResNet", "build"]
