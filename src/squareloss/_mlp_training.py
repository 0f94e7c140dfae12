"""AdamW on a small MLP, forward and backward written out.

At batch 200 and width 100 a step is a tenth of a millisecond of arithmetic, and a training loop through autograd, an
optimiser object and a data loader spends several times that on bookkeeping. Here the parameters are slices of one flat tensor,
so that the optimiser is one call; the gradient of square loss by the outputs is two; and what does not depend on the weights is
made for a block of batches at a time. The tests hold it to autograd and `torch.optim.AdamW`; `benchmarks/estimator.py` has what
it gains.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from squareloss.losses import Loss, SquareLoss
from squareloss.models import MLP

BLOCK = 32  # batches made ready at once: few calls, and memory stays bounded
FLOPS_PER_THREAD = 1e8  # of one step; below it, waking a second thread costs more than it brings


class Samples(NamedTuple):
    """Inputs (N, d), class indices (N,) and weights (N,), on one device."""

    x: Tensor
    y: Tensor
    weight: Tensor


class Moments(NamedTuple):
    """The state of Adam: running means of the gradient and of its square (both flat), and the number of steps ()."""

    first: Tensor
    second: Tensor
    step: Tensor


class Objective(Protocol):
    """sum_i w_i loss(f_i, y_i), as a function of the outputs f."""

    def prepare(self, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """What `gradient` and `value` need of classes (B,) and weights (B,), along the same axis."""

    def gradient(self, outputs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """The gradient by the outputs (B, width), given what `prepare` made."""

    def value(self, outputs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """The sum (), given what `prepare` made."""


class Trainer:
    """Trains an MLP: `epoch` steps through the samples, `write_back` puts the weights into the network.

    Arguments:
        network: where the weights start from; it is not changed before `write_back`.
        loss: its `reduction` must be "none": samples are weighted here.
        learning_rate, weight_decay: of AdamW.
        moments: the state an earlier trainer left, to go on from.
    """

    def __init__(
        self, network: MLP, loss: Loss, *, learning_rate: float, weight_decay: float = 0.0, moments: Moments | None = None
    ) -> None:
        assert loss.reduction == "none"
        self.network = network
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.flat = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
        self.grad = torch.zeros_like(self.flat)
        step = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        self.moments = moments or Moments(torch.zeros_like(self.flat), torch.zeros_like(self.flat), step)
        parameters, gradients = self._slices(self.flat), self._slices(self.grad)
        self.weights, self.biases = parameters[::2], parameters[1::2]  # (out, in) and (out,) of each layer
        self.transposed = [w.t() for w in self.weights]
        self.weight_grads, self.bias_grads = gradients[::2], gradients[1::2]
        self.objective = objective(loss, width=len(self.biases[-1]))

    @torch.no_grad()
    def epoch(self, samples: Samples, order: Tensor, batch_size: int) -> float:
        """Step through the samples in this order (N,); the mean of their weighted losses on the way.

        A step follows the gradient of sum_i w_i loss_i / batch_size, so samples in a last, smaller batch weigh as the others.
        """
        batch_size = min(batch_size, len(order))
        total = torch.zeros((), device=self.flat.device)
        for index in torch.split(order, BLOCK * batch_size):
            # three times as fast as samples.x[index]
            x, y, weight = (t.index_select(0, index) for t in samples)
            ready = self.objective.prepare(y, weight / batch_size)
            batches = zip(*(torch.split(t, batch_size) for t in (x, *ready)), strict=True)
            outputs = torch.cat([self.step(*batch) for batch in batches])
            total += self.objective.value(outputs, *ready)
        return float(total) * batch_size / len(order)

    def step(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """One step of AdamW on inputs (B, d) and what the objective made ready; the outputs before it (B, width)."""
        outputs = self.backward(x, first, second)
        adamw(
            [self.flat], [self.grad], [self.moments.first], [self.moments.second], [], [self.moments.step],
            fused=self.flat.device.type in ("cpu", "cuda"), amsgrad=False, beta1=0.9, beta2=0.999, lr=self.learning_rate,
            weight_decay=self.weight_decay, eps=1e-8, maximize=False,
        )  # fmt: skip
        return outputs

    def backward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Fill the gradient of the objective; the outputs (B, width)."""
        *activations, outputs = self.forward(x)
        delta = self.objective.gradient(outputs, first, second)
        for layer in reversed(range(len(self.weights))):
            torch.mm(delta.t(), activations[layer], out=self.weight_grads[layer])
            torch.sum(delta, 0, out=self.bias_grads[layer])
            if layer:
                # the sign of a ReLU's output is its derivative, and float times float is faster than a mask
                delta = torch.mm(delta, self.weights[layer]).mul_(activations[layer].sign())
        return outputs

    def forward(self, x: Tensor) -> list[Tensor]:
        """The input of each layer, (B, its width), and the outputs (B, width)."""
        layers = [x]
        for weight, bias in zip(self.transposed[:-1], self.biases[:-1], strict=True):
            layers.append(torch.addmm(bias, layers[-1], weight).relu_())
        return [*layers, torch.addmm(self.biases[-1], layers[-1], self.transposed[-1])]

    @torch.no_grad()
    def mean_loss(self, samples: Samples) -> float:
        """sum_i w_i loss_i / sum_i w_i with the weights of the network as they are now."""
        total = torch.zeros((), device=self.flat.device)
        for x, y, weight in zip(*(torch.split(t, 4096) for t in samples), strict=True):
            total += self.objective.value(self.forward(x)[-1], *self.objective.prepare(y, weight))
        return float(total / samples.weight.sum())

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the weights into the network."""
        for parameter, value in zip(self.network.parameters(), self._slices(self.flat), strict=True):
            parameter.copy_(value)

    def _slices(self, flat: Tensor) -> list[Tensor]:
        parameters = list(self.network.parameters())
        parts = torch.split(flat, [p.numel() for p in parameters])
        return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


def objective(loss: Loss, width: int) -> Objective:
    """The closed form for square loss with K outputs and hard labels; autograd, of the loss alone, for all else."""
    if isinstance(loss, SquareLoss) and not loss.label_smoothing and loss.coding.num_classes(width) == width:
        return Quadratic(loss, width)
    return ByAutograd(loss)


class Quadratic:
    """1/2 sum_ij c_ij (f_ij - t_ij)^2: square loss. `prepare` makes the targets t and the curvatures c, (B, K) each."""

    def __init__(self, loss: SquareLoss, num_classes: int) -> None:
        self.num_classes, self.weight = num_classes, loss.weight
        self.off, self.on, self.on_weight = loss.coding.levels(num_classes)
        self.curvature = 2 * loss.scale / num_classes

    def prepare(self, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and curvatures."""
        weight = weight if self.weight is None else weight * self.weight[y].to(weight)  # NumPy's class weights are float64
        rows = weight.unsqueeze(1) * self.curvature  # (B, 1)
        target = rows.new_full((len(y), self.num_classes), self.off).scatter_(1, y.unsqueeze(1), self.on)
        if self.on_weight == 1:
            return target, rows  # the same for all outputs of a sample
        return target, rows.repeat(1, self.num_classes).scatter_(1, y.unsqueeze(1), rows * self.on_weight)

    def gradient(self, outputs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """c (f - t)."""
        return (outputs - first).mul_(second)

    def value(self, outputs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """1/2 sum c (f - t)^2."""
        return (outputs - first).square_().mul_(second).sum() / 2


class ByAutograd:
    """Any loss. `prepare` passes classes and weights on."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def prepare(self, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The arguments."""
        return y, weight

    def gradient(self, outputs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """By autograd."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.value(leaf, first, second), leaf)
        return gradient

    def value(self, outputs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """The weighted sum of the samples' losses."""
        total: Tensor = (self.loss(outputs, first) * second).sum()
        return total


@contextlib.contextmanager
def enough_threads(network: MLP, batch_size: int) -> Iterator[None]:
    """Within it torch uses no more threads than a step of this network can feed; the count from before comes back after."""
    before = torch.get_num_threads()
    flops = 6 * batch_size * sum(p.numel() for p in network.parameters())  # two forward, four backward
    torch.set_num_threads(min(before, max(1, math.ceil(flops / FLOPS_PER_THREAD))))
    try:
        yield
    finally:
        torch.set_num_threads(before)
