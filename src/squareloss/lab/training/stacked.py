"""Many small networks at once: R multilayer perceptrons with their own data, seeds and penalties, trained by full batches.

On a GPU the R networks are one batched computation, compiled and replayed as a CUDA graph. On a CPU a batched product is no
faster than one network after the other, so there each network has a core to itself; only tiny ones, whose steps are mostly
overhead, are batched there too. Either way a network of the stack is the network it would be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from squareloss.lab.training.recipes import OPTIMISERS

Objective = Callable[[Tensor, Tensor], Tensor]  # outputs (..., n, width) and labels (..., n) to losses (..., n)
WeightedObjective = Callable[[Tensor, Tensor, Tensor], Tensor]  # with weights (..., k), a row for each network
CHUNK = 100  # steps between two reports of progress
_BLOCK = 2**17  # values of one layer that a CPU's cache holds: so many networks step together there


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
        drawn = {seed: self._draw(seed) for seed in seeds}  # many networks may start from the same weights
        layers = zip(*(drawn[seed] for seed in seeds), strict=True)
        self.parameters = [torch.stack(same).to(device, dtype) for same in layers]
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


Advance = Callable[[int], None]


@dataclass(frozen=True)
class Problem:
    """What a stack is trained on: data (R, n, d) and (R, n), penalties (R,), the loss with its weights (R, k), how to step."""

    x: Tensor
    labels: Tensor
    mu: Tensor
    objective: Any
    weights: Tensor | None
    optimiser: Optimiser

    def value(self) -> Callable[[Sequence[Tensor]], Tensor]:
        """`penalised` as a function of the parameters; plain closures, which torch.compile traces."""
        x, labels, mu, objective, weights = self.x, self.labels, self.mu, self.objective, self.weights
        weighted = objective if weights is None else lambda outputs, labels: objective(outputs, labels, weights)
        return lambda parameters: penalised(parameters, x, labels, mu, weighted)

    def part(self, block: slice) -> Problem:
        """That of some of the networks."""
        weights = None if self.weights is None else self.weights[block]
        return Problem(self.x[block], self.labels[block], self.mu[block], self.objective, weights, self.optimiser)


def train(
    stack: Stack,
    x: Tensor,
    labels: Tensor,
    mu: Tensor,
    objective: Objective | WeightedObjective,
    *,
    steps: int,
    weights: Tensor | None = None,
    optimiser: Optimiser | None = None,
    every: int = 0,
    watch: Callable[[int, Stack], None] | None = None,
    progress: Callable[[int], None] | None = None,
    fuse: bool = True,
    tf32: bool = False,
) -> None:
    """Train all networks of a stack in place.

    Arguments:
        stack: the networks, R of them.
        x, labels: their training data, (R, n, d) and (R, n).
        mu: their penalties, (R,).
        objective: the loss, such as `square` or `logistic`.
        steps: full-batch steps.
        weights: (R, k), handed to the objective as a third argument: so networks with different losses train as one stack.
        optimiser: RMSProp with the paper's settings if None.
        every, watch: after every so many steps `watch(step, stack)` is called, for curves.
        progress: called with the number of steps done, now and then.
        fuse: compile the step, on a GPU. It takes some ten seconds for each new shape, and pays where products are small.
        tf32: TF32 products on a GPU, several times as fast.
    """
    optimiser = Optimiser() if optimiser is None else optimiser
    if not len(stack) == len(x) == len(labels) == len(mu):
        raise ValueError(
            f"expected data and penalties for each of the {len(stack)} networks, got {len(x)}, {len(labels)} and {len(mu)}"
        )
    dtype = stack.parameters[0].dtype
    x, labels, mu = x.to(stack.device, dtype), labels.to(stack.device, dtype), mu.to(stack.device, dtype)
    weights = None if weights is None else weights.to(stack.device, dtype)
    problem = Problem(x, labels, mu, objective, weights, optimiser)
    with _products(tf32 and stack.device.type == "cuda"):
        run = _captured(stack, problem, fuse) if stack.device.type == "cuda" else _on_cores(stack, problem)
        _advance(run, stack, steps, every, watch, progress)


def _advance(
    run: Advance, stack: Stack, steps: int, every: int,
    watch: Callable[[int, Stack], None] | None, progress: Callable[[int], None] | None,
) -> None:  # fmt: skip
    done = 0
    while done < steps:
        count = min(steps - done, every - done % every if every else CHUNK)
        run(count)
        done += count
        if progress:
            progress(done)
        if watch and every and done % every == 0:
            watch(done, stack)


@contextmanager
def _products(tf32: bool) -> Iterator[None]:
    """TF32 products for a while, if asked for."""
    if not tf32:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def stepper(problem: Problem) -> Callable[[list[Tensor], list[Tensor]], None]:
    """One step of a whole stack in place, of parameters and moments: what a GPU records and replays."""
    value, optimiser = problem.value(), problem.optimiser

    def step(parameters: list[Tensor], moments: list[Tensor]) -> None:
        update(parameters, moments, torch.func.grad(value)(parameters), optimiser)

    return step


def _captured(stack: Stack, problem: Problem, fuse: bool) -> Advance:
    """A function that advances the stack by so many steps: gradient and update, compiled together, replayed as a graph."""

    step = stepper(problem)
    if fuse:
        torch.compiler.reset()  # or the shapes of earlier stacks count against the limit of recompilations
    advance = torch.compile(step, fullgraph=True, dynamic=False) if fuse else step
    kept = [t.clone() for t in (*stack.parameters, *stack.moments)]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()  # the copies were made on another stream
    with torch.cuda.stream(stream):
        for _ in range(3):
            advance(stack.parameters, stack.moments)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            advance(stack.parameters, stack.moments)
        torch._foreach_copy_([*stack.parameters, *stack.moments], kept)
    stream.synchronize()

    def run(count: int) -> None:
        with torch.cuda.stream(stream):
            for _ in range(count):
                graph.replay()
        stream.synchronize()

    return run


def _on_cores(stack: Stack, problem: Problem) -> Advance:
    """A function that advances the stack by so many steps: one network, or one block of tiny ones, per core at a time."""
    block = max(1, _BLOCK // (problem.x.shape[-2] * max(stack.widths)))
    blocks = [slice(i, i + block) for i in range(0, len(stack), block)]

    def one(block: slice, count: int) -> None:
        # copies: views of the stack would share its version counters between threads
        value = problem.part(block).value()
        leaves = [p[block].clone().requires_grad_() for p in stack.parameters]
        moments = [m[block].clone() for m in stack.moments]
        for _ in range(count):
            gradients = torch.autograd.grad(value(leaves), leaves)
            with torch.no_grad():
                update(leaves, moments, gradients, problem.optimiser)
        for kept, new in zip((*stack.parameters, *stack.moments), (*leaves, *moments), strict=True):
            kept[block] = new.detach()

    def run(count: int) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # each network's products on one core; the products release the interpreter lock
        try:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(one, blocks, [count] * len(blocks)))
        finally:
            torch.set_num_threads(threads)

    return run
