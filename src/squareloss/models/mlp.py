"""A multilayer perceptron with ReLU between its layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers of the given widths with ReLU between them; the paper's synthetic network is MLP(2, (500, 500), 1).

    Arguments:
        inputs: features per sample; inputs with more axes are flattened.
        hidden: width of each hidden layer; empty for a linear model.
        outputs: number of outputs.
        generator: where the initial weights come from; torch's global generator if None.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if not isinstance(hidden, Iterable):
            raise TypeError(f"expected hidden to be a width for each hidden layer, such as (100,), got {hidden!r}")
        self.spec: dict[str, Any] = {"name": "mlp", "inputs": inputs, "hidden": list(hidden), "outputs": outputs}
        # with a generator of our own, torch's global one is not even moved
        linear = nn.Linear if generator is None else partial(nn.utils.skip_init, nn.Linear)
        self.layers = nn.ModuleList(linear(a, b) for a, b in pairwise([inputs, *hidden, outputs]))
        if generator is not None:
            self.reset(generator)

    def reset(self, generator: torch.Generator) -> None:
        """Draw all weights anew, as `nn.Linear` does: uniform on +-1/sqrt(fan in)."""
        with torch.no_grad():
            for layer in self.layers:
                assert isinstance(layer, nn.Linear)
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (N, outputs) of inputs (N, ...)."""
        x = x.flatten(1)
        *inner, last = self.layers  # torch.export of 2.5 can not slice them
        for layer in inner:
            x = torch.relu(layer(x))
        out: Tensor = last(x)
        return out
