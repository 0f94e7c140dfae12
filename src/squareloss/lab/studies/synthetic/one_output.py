"""Binary losses of one output f and labels y = -1 or +1, all members of one family, so that one stack trains them together.

    loss(f, y) = a (f - y)^2 + b log(1 + exp(-y f)) + c f^2 + d y f

| name | a, b, c, d | as two outputs |
|---|---|---|
| SL | 1, 0, 0, 0 | (f - y)^2 is square loss with simplex coding of radius 1, whose K - 1 coordinates are one here |
| CE | 0, 1, 0, 0 | softmax cross-entropy of the logits (-f/2, f/2): f is the log odds |
| squentropy | 0, 1, 1/4, 0 | of the logits (-f/2, f/2): the square of the wrong one is f^2/4 |
| smoothed | 0, 1, 0, s/2 | cross-entropy with label smoothing s = 0.1: (1 - s/2) log(1 + exp(-y f)) + s/2 log(1 + exp(y f)) |

Two outputs that are not tied to -f/2 and f/2 have a sum of their own: cross-entropy does not see it, squentropy would drive
it to where the wrong logit is small. The one output leaves it at zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMOOTHING = 0.1
LOSSES = {
    "SL": (1.0, 0.0, 0.0, 0.0),
    "CE": (0.0, 1.0, 0.0, 0.0),
    "squentropy": (0.0, 1.0, 0.25, 0.0),
    "smoothed": (0.0, 1.0, 0.0, SMOOTHING / 2),
}


def blended(outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Losses (..., n) of outputs (..., n, 1), labels (..., n) in {0, 1} and weights (..., 4), a row of `LOSSES` each."""
    f, y = outputs.squeeze(-1), 2 * labels - 1
    a, b, c, d = weights.unsqueeze(-2).unbind(-1)
    yf = y * f
    return a * (f - y).square() + b * torch.nn.functional.softplus(-yf) + c * f.square() + d * yf


def probabilities(loss: str, f: Tensor) -> Tensor:
    """P(y = 1) as the loss has it: (1 + f)/2 brought to [0, 1] for square loss, the sigmoid for the others."""
    return ((1 + f) / 2).clamp(0, 1) if loss == "SL" else torch.sigmoid(f)


def other_readings(loss: str, f: Tensor, temperature: Tensor) -> dict[str, Tensor]:
    """Other probabilities of the same outputs f (R, n); temperature is (R,), fitted on validation points.

    SL "unclipped": (1 + f)/2 as it is. CE "temperature": sigmoid(f / T). Smoothed "undone": cross-entropy fits
    (1 - s) eta + s/2, so (sigmoid(f) - s/2)/(1 - s), brought to [0, 1].
    """
    if loss == "SL":
        return {"unclipped": (1 + f) / 2}
    if loss == "CE":
        return {"temperature": torch.sigmoid(f / temperature[:, None])}
    if loss == "smoothed":
        return {"undone": ((torch.sigmoid(f) - SMOOTHING / 2) / (1 - SMOOTHING)).clamp(0, 1)}
    return {}


def temperatures(f: Tensor, labels: Tensor) -> Tensor:
    """T (R,) that minimises the mean of log(1 + exp(-y f / T)) over held-out f (R, n), labels (R, n) in {0, 1}.

    The derivative in the slope 1/T grows with it, so bisection on its logarithm finds the zero, within a factor of 1000 of
    the spread of f; where there is none, T is at that bound.
    """
    f, labels = f.double(), labels.double()
    spread = f.square().mean(-1).sqrt().clamp_min(1e-30)
    low, high = -torch.log(1000 * spread), torch.log(1000 / spread)
    for _ in range(50):
        middle = (low + high) / 2
        slope = torch.exp(middle)[:, None]
        rising = ((torch.sigmoid(slope * f) - labels) * f).mean(-1) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return torch.exp(-(low + high) / 2).float()
