"""The one-hidden-layer network of the paper's theory: only the hidden weights are trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class OneHidden(nn.Module):
    """f(x) = 1/sqrt(m) sum_r a_r relu(w_r . x) in the NTK parametrisation: W is trained, a is fixed.

    W_r(0) ~ N(0, xi^2 I_d) and a_r is +1 or -1 with equal probability.

    Arguments:
        inputs: dimension d of the data.
        width: number m of hidden units.
        xi: standard deviation of the initial weights.
        antisymmetric: pair every unit with a copy of opposite sign, so that f is 0 at the start; needs an even width.
        generator: where the initial values come from; torch's global generator if None.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        *,
        xi: float = 1.0,
        antisymmetric: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if antisymmetric and width % 2:
            raise ValueError(f"expected an even width for an antisymmetric start, got {width}")
        self.spec: dict[str, Any] = {
            "name": "one_hidden", "inputs": inputs, "width": width, "xi": xi, "antisymmetric": antisymmetric,
        }  # fmt: skip
        drawn = width // 2 if antisymmetric else width
        weight = xi * torch.randn(drawn, inputs, generator=generator)
        signs = torch.randint(0, 2, (drawn,), generator=generator) * 2.0 - 1.0
        if antisymmetric:
            weight, signs = torch.cat([weight, weight]), torch.cat([signs, -signs])
        self.weight = nn.Parameter(weight)  # (m, d)
        self.signs: Tensor
        self.register_buffer("signs", signs)  # (m,)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (N, 1) of points (N, d)."""
        hidden = torch.relu(x @ self.weight.T)  # (N, m)
        out: Tensor = hidden @ self.signs / len(self.signs) ** 0.5
        return out.unsqueeze(1)
