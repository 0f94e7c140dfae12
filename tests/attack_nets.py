"""Small networks on scikit-learn's digits for the attacks to break: trained in seconds, normally and adversarially."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images (N, 1, 8, 8) in [0, 1] with their labels: 1200 and 300."""
    data = load_digits()
    x = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1500]
    return x[order[:1200]], y[order[:1200]], x[order[1200:]], y[order[1200:]]


def cnn(width: int = 6, classes: int = 10, seed: int = 0) -> nn.Sequential:
    """Three convolutions with batch norm, and a linear layer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            *_block(1, width),
            *_block(width, width),
            nn.MaxPool2d(2),
            *_block(width, 2 * width),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, classes),
        )


def train(
    net: nn.Module, x: Tensor, y: Tensor, *, eps: float = 0.0, epochs: int = 8, loss: Loss = F.cross_entropy
) -> nn.Module:
    """Adam, batches of 100; with `eps`, on examples of five PGD steps in that l_inf ball. Returned in eval mode."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(100):
            batch = _adversarial(net, x[rows], y[rows], eps, generator) if eps else x[rows]
            net.train()
            optimizer.zero_grad()
            loss(net(batch), y[rows]).backward()
            optimizer.step()
    return net.eval()


@cache
def trained(kind: str) -> nn.Module:
    """The "normal" or the "adversarial" network."""
    x, y, _, _ = digits()
    return train(cnn(), x, y) if kind == "normal" else train(cnn(), x, y, eps=0.15, epochs=15)


class Counted:
    """How many forward calls a run makes, copies of the model included."""

    def __init__(self) -> None:
        self.calls = 0

    def __deepcopy__(self, memo: object) -> Counted:
        return self


class Limited(nn.Module):
    """A model that is interrupted after so many calls; copies of it share the counter."""

    def __init__(self, model: nn.Module, limit: int | None) -> None:
        super().__init__()
        self.model, self.limit, self.counter = model, limit, Counted()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.counter.calls += 1
        if self.limit is not None and self.counter.calls > self.limit:
            raise KeyboardInterrupt
        out: Tensor = self.model(x)
        return out


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def _adversarial(net: nn.Module, x: Tensor, y: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    net.eval()
    delta = torch.empty_like(x).uniform_(-eps, eps, generator=generator)
    for _ in range(5):
        delta.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(net((x + delta).clamp(0, 1)), y), delta)
        delta = (delta.detach() + eps / 2.5 * gradient.sign()).clamp(-eps, eps)
    return (x + delta).clamp(0, 1)
