"""Many small networks at once: R multilayer perceptrons with their own data, seeds and penalties, trained by full batches.

On a GPU the R networks are one batched computation, compiled and replayed as a CUDA graph. On a CPU a batched product is no
faster than one network after the other, so there each network has a core to itself. Either way a network of the stack is the
network it would be alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from squareloss.lab.training.recipes import OPTIMISERS

Objective = Callable[[Tensor, Tensor], Tensor]  # outputs (..., n, width) and labels (..., n) to losses (..., n)
CHUNK = 100  # steps between two reports of progress


def square(outputs: Tensor, labels: Tensor) -> Tensor:
    """(f - y)^2 of one output and labels 0 or 1, read as y = -1 or +1: the paper's binary square loss."""
    return (outputs.squeeze(-1) - (2 * labels - 1)).square()


def logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    """log(1 + exp(-y f)) of one output and labels 0 or 1: cross-entropy with f the log odds."""
    return torch.nn.functional.softplus(-outputs.squeeze(-1) * (2 * labels - 1))


@dataclass(frozen=True)
class Optimiser:
    """Full-batch "rmsprop" (torch's, without momentum) or "sgd" (plain gradient descent); the paper's is the default."""

    name: str = "rmsprop"
    lr: float = 0.001
    decay: float = 0.99
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.name not in OPTIMISERS:
            raise ValueError(f"Unknown optimiser {self.name!r}. Available: {', '.join(OPTIMISERS)}")


class Stack:
    """R networks of the same widths: weights (R, out, in) and biases (R, out) of each layer.

    Arguments:
        widths: (inputs, hidden..., outputs).
        seeds: one per network: its weights are those of `MLP(..., generator=torch.Generator().manual_seed(seed))`.
        dtype, device: of the weights.
    """

    def __init__(
        self, widths: Sequence[int], seeds: Sequence[int], *, dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self.widths, self.device = tuple(widths), torch.device(device)
        drawn = [self._draw(seed) for seed in seeds]
        self.parameters = [torch.stack(same).to(device, dtype) for same in zip(*drawn, strict=True)]
        self.moments = [torch.zeros_like(p) for p in self.parameters]

    def _draw(self, seed: int) -> list[Tensor]:
        """Uniform on +-1/sqrt(fan in), weight then bias, layer by layer, as `MLP.reset` draws them."""
        generator, drawn = torch.Generator().manual_seed(seed), []
        for fan_in, fan_out in pairwise(self.widths):
            drawn += [torch.empty(fan_out, fan_in), torch.empty(fan_out)]
            for tensor in drawn[-2:]:
                tensor.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
        return drawn

    def __len__(self) -> int:
        return len(self.parameters[0])

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs (R, n, width) of points (R, n, d), or of the same points (n, d) for all."""
        return forward(self.parameters, x if x.ndim == 3 else x.expand(len(self), *x.shape))

    def select(self, index: int) -> list[Tensor]:
        """Weights and biases of one network, as views."""
        return [p[index] for p in self.parameters]


def forward(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """Outputs (..., n, width) of points (..., n, d): linear layers with ReLU between them."""
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight.mT + bias.unsqueeze(-2)
        x = torch.relu(x) if i < len(layers) - 1 else x
    return x


def penalised(parameters: Sequence[Tensor], x: Tensor, labels: Tensor, mu: Tensor, objective: Objective) -> Tensor:
    """The sum over networks of mean loss + (mu / n) |W|^2, over all weight matrices but no bias; networks do not interact."""
    loss = objective(forward(parameters, x), labels).mean(-1)
    squares = sum(weight.square().sum((-2, -1)) for weight in parameters[::2])
    return (loss + mu / x.shape[-2] * squares).sum()


def update(parameters: Sequence[Tensor], moments: Sequence[Tensor], gradients: Sequence[Tensor], optimiser: Optimiser) -> None:
    """One step of the optimiser, in place."""
    for p, moment, g in zip(parameters, moments, gradients, strict=True):
        if optimiser.name == "rmsprop":
            moment.mul_(optimiser.decay).addcmul_(g, g, value=1 - optimiser.decay)
            p.addcdiv_(g, moment.sqrt().add_(optimiser.eps), value=-optimiser.lr)
        else:
            p.add_(g, alpha=-optimiser.lr)


def train(
    stack: Stack,
    x: Tensor,
    labels: Tensor,
    mu: Tensor,
    objective: Objective,
    *,
    steps: int,
    optimiser: Optimiser | None = None,
    every: int = 0,
    watch: Callable[[int, Stack], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Train all networks of a stack in place.

    Arguments:
        stack: the networks, R of them.
        x, labels: their training data, (R, n, d) and (R, n).
        mu: their penalties, (R,).
        objective: the loss, such as `square` or `logistic`.
        steps: full-batch steps.
        optimiser: RMSProp with the paper's settings if None.
        every, watch: after every so many steps `watch(step, stack)` is called, for curves.
        progress: called with the number of steps done, now and then.
    """
    optimiser = Optimiser() if optimiser is None else optimiser
    if not len(stack) == len(x) == len(labels) == len(mu):
        raise ValueError(
            f"expected data and penalties for each of the {len(stack)} networks, got {len(x)}, {len(labels)} and {len(mu)}"
        )
    dtype = stack.parameters[0].dtype
    x, labels, mu = x.to(stack.device, dtype), labels.to(stack.device, dtype), mu.to(stack.device, dtype)
    advance = _captured if stack.device.type == "cuda" else _on_cores
    run = advance(stack, x, labels, mu, objective, optimiser)
    done = 0
    while done < steps:
        count = min(steps - done, every - done % every if every else CHUNK)
        run(count)
        done += count
        if progress:
            progress(done)
        if watch and every and done % every == 0:
            watch(done, stack)


Advance = Callable[[int], None]


def _captured(stack: Stack, x: Tensor, labels: Tensor, mu: Tensor, objective: Objective, optimiser: Optimiser) -> Advance:
    """A function that advances the stack by so many steps: gradient and update compiled together, replayed as a graph."""

    def step(parameters: list[Tensor], moments: list[Tensor]) -> None:
        gradients = torch.func.grad(lambda ps: penalised(ps, x, labels, mu, objective))(parameters)
        update(parameters, moments, gradients, optimiser)

    compiled = torch.compile(step, fullgraph=True, dynamic=False)
    kept = [t.clone() for t in (*stack.parameters, *stack.moments)]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()  # the copies were made on another stream
    with torch.cuda.stream(stream):
        for _ in range(3):
            compiled(stack.parameters, stack.moments)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            compiled(stack.parameters, stack.moments)
        torch._foreach_copy_([*stack.parameters, *stack.moments], kept)
    stream.synchronize()

    def run(count: int) -> None:
        with torch.cuda.stream(stream):
            for _ in range(count):
                graph.replay()
        stream.synchronize()

    return run


def _on_cores(stack: Stack, x: Tensor, labels: Tensor, mu: Tensor, objective: Objective, optimiser: Optimiser) -> Advance:
    """A function that advances the stack by so many steps: one network per core at a time."""

    def one(index: int, count: int) -> None:
        # copies: views of the stack would share its version counters between threads
        leaves = [p[index].clone().requires_grad_() for p in stack.parameters]
        moments = [m[index].clone() for m in stack.moments]
        for _ in range(count):
            value = penalised(leaves, x[index], labels[index], mu[index], objective)
            gradients = torch.autograd.grad(value, leaves)
            with torch.no_grad():
                update(leaves, moments, gradients, optimiser)
        for kept, new in zip((*stack.parameters, *stack.moments), (*leaves, *moments), strict=True):
            kept[index] = new.detach()

    def run(count: int) -> None:
        threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        torch.set_num_threads(1)  # each network's products on one core; the products release the interpreter lock
        try:
            with ThreadPoolExecutor(cores) as pool:
                list(pool.map(one, range(len(stack)), [count] * len(stack)))
        finally:
            torch.set_num_threads(threads)

    return run
