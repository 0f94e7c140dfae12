"""AdamW on a small MLP, forward and backward written out.

At batch 200 and width 100 a step is a tenth of a millisecond of arithmetic, and a training loop through autograd, an
optimiser object and a data loader spends several times that on bookkeeping. Here the parameters are slices of one flat tensor,
so that the optimiser is one call; the gradient of square loss is its residuals; and rows are gathered a block of batches at a
time. The tests hold it to autograd and `torch.optim.AdamW`; `benchmarks/estimator.py` has what it gains.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from squareloss.losses import Loss, SquareLoss
from squareloss.models import MLP

BLOCK = 32  # batches gathered at once: few calls, and memory stays bounded
FLOPS_PER_THREAD = 1e8  # of one step; below it, waking a second thread costs more than it brings

Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]


class Samples(NamedTuple):
    """Inputs (N, d), class indices (N,) and weights (N,), on one device."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def take(self, index: Tensor) -> Samples:
        """These rows. `index_select` is three times as fast as indexing here."""
        return Samples(*(t.index_select(0, index) for t in self))


class Moments(NamedTuple):
    """The state of Adam: running means of the gradient and of its square (both flat), and the number of steps ()."""

    first: Tensor
    second: Tensor
    step: Tensor


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
        self.network, self.loss = network, loss
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.flat = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
        self.grad = torch.zeros_like(self.flat)
        step = torch.zeros((), device=self.flat.device)
        self.moments = moments or Moments(torch.zeros_like(self.flat), torch.zeros_like(self.flat), step)
        parameters, gradients = self._slices(self.flat), self._slices(self.grad)
        self.weights, self.biases = parameters[::2], parameters[1::2]  # (out, in) and (out,) of each layer
        self.weight_grads, self.bias_grads = gradients[::2], gradients[1::2]
        self.gradient = output_gradient(loss, outputs=len(self.biases[-1]))

    @torch.no_grad()
    def epoch(self, samples: Samples, order: Tensor, batch_size: int) -> float:
        """Step through the samples in this order (N,), the last batch as large as what is left; their mean loss on the way."""
        total = torch.zeros((), device=self.flat.device)
        for index in torch.split(order, BLOCK * batch_size):
            block = samples.take(index)
            batches = zip(*(torch.split(t, batch_size) for t in block), strict=True)
            outputs = torch.cat([self.step(Samples(*batch)) for batch in batches])
            total += (self.loss(outputs, block.y) * block.weight).sum()
        return float(total) / len(order)

    def step(self, batch: Samples) -> Tensor:
        """One step of AdamW on the batch; the outputs before it (B, outputs)."""
        outputs = self.backward(batch)
        adamw(
            [self.flat], [self.grad], [self.moments.first], [self.moments.second], [], [self.moments.step],
            fused=self.flat.device.type in ("cpu", "cuda"), amsgrad=False, beta1=0.9, beta2=0.999, lr=self.learning_rate,
            weight_decay=self.weight_decay, eps=1e-8, maximize=False,
        )  # fmt: skip
        return outputs

    def backward(self, batch: Samples) -> Tensor:
        """Fill the gradient of sum_i weight_i loss_i / B; the outputs (B, outputs)."""
        *activations, outputs = self.forward(batch.x)
        delta = self.gradient(outputs, batch.y, batch.weight / len(batch.y))  # (B, outputs)
        for layer in reversed(range(len(self.weights))):
            torch.mm(delta.t(), activations[layer], out=self.weight_grads[layer])
            torch.sum(delta, 0, out=self.bias_grads[layer])
            if layer:
                # the sign of a ReLU's output is its derivative, and float times float is faster than a mask
                delta = torch.mm(delta, self.weights[layer]).mul_(activations[layer].sign())
        return outputs

    def forward(self, x: Tensor) -> list[Tensor]:
        """The input of each layer, (B, width) each, and the outputs (B, outputs)."""
        layers = [x]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layers.append(torch.addmm(bias, layers[-1], weight.t()).relu_())
        return [*layers, torch.addmm(self.biases[-1], layers[-1], self.weights[-1].t())]

    @torch.no_grad()
    def mean_loss(self, samples: Samples) -> float:
        """sum_i weight_i loss_i / sum_i weight_i with the weights as they are now."""
        total = torch.zeros((), device=self.flat.device)
        for x, y, weight in zip(*(torch.split(t, 4096) for t in samples), strict=True):
            total += (self.loss(self.forward(x)[-1], y) * weight).sum()
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


def output_gradient(loss: Loss, outputs: int) -> Gradient:
    """The function (f, y, rows) -> gradient of sum_i rows_i loss(f_i, y_i) by f (B, outputs).

    The residuals for square loss with hard labels; by autograd, of the loss alone, otherwise.
    """
    weight = loss.weight
    if not isinstance(loss, SquareLoss) or loss.label_smoothing or loss.coding.num_classes(outputs) != outputs:
        return lambda f, y, rows: _by_autograd(loss, f, y, rows)
    off, on, on_weight = loss.coding.levels(outputs)
    slope = 2 * loss.scale / outputs

    def residuals(f: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        rows = rows if weight is None else rows * weight[y]
        index = y.unsqueeze(1)
        at_class = (f.gather(1, index) - on).mul_(on_weight)
        return (f - off).scatter_(1, index, at_class).mul_((rows * slope).unsqueeze(1))

    return residuals


def _by_autograd(loss: Loss, f: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = f.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((loss(leaf, y) * rows).sum(), leaf)
    return gradient


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
