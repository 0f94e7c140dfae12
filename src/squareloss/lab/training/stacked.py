"""Many small networks at once: R multilayer perceptrons with their own data, seeds and penalties, trained by full batches.

On a GPU the R networks are one batched computation, compiled and replayed as a CUDA graph. On a CPU a batched product is no
faster than one network after the other, so there each network has a core to itself; only tiny ones, whose steps are mostly
overhead, are batched there too. Either way a network of the stack is the network it would be alone.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from squareloss._checks import choose
from squareloss._warnings import warn
from squareloss.lab.training.recipes import OPTIMISERS

Objective = Callable[[Tensor, Tensor], Tensor]  # outputs (..., n, width) and labels (..., n) to losses (..., n)
WeightedObjective = Callable[[Tensor, Tensor, Tensor], Tensor]  # with weights (..., k), a row for each network
PRODUCTS = ("float32", "tf32", "bfloat16")
CHUNK = 100  # steps between two reports of progress
NARROW = 4  # inputs of a layer, at most, that a compiled step adds up without a product
ALIGNED = 8  # bfloat16 numbers: a GPU's fast products want rows of 16 bytes
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
        choose("optimiser", self.name, OPTIMISERS)


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


def forward(parameters: Sequence[Tensor], x: Tensor, half: bool = False) -> Tensor:
    """Outputs (..., n, width) of points (..., n, d): linear layers with ReLU between them.

    With `half`, hidden layers are kept, and multiplied by each other, in bfloat16; inputs and outputs never are.
    """
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for i, (weight, bias) in enumerate(layers):
        x = _linear(x, weight, bias, half and 0 < i < len(layers) - 1)
        if i < len(layers) - 1:
            x = torch.relu(x.bfloat16() if half else x)
    return x


def _linear(x: Tensor, weight: Tensor, bias: Tensor, half: bool) -> Tensor:
    """x W' + b. A compiled step does thin layers without products: these would each go to memory, sums are fused."""
    if half:
        return x @ weight.bfloat16().mT + bias.bfloat16().unsqueeze(-2)
    x = x.to(bias.dtype)
    if torch.compiler.is_compiling() and weight.shape[-2] == 1:
        return (x * weight).sum(-1, keepdim=True) + bias.unsqueeze(-2)
    if torch.compiler.is_compiling() and weight.shape[-1] <= NARROW:
        total = bias.unsqueeze(-2)
        for i in range(weight.shape[-1]):
            total = total + x[..., i, None] * weight[..., None, :, i]
        return total
    return x @ weight.mT + bias.unsqueeze(-2)


def penalised(
    parameters: Sequence[Tensor], x: Tensor, labels: Tensor, mu: Tensor, objective: Any, weights: Tensor | None = None,
    half: bool = False,
) -> Tensor:  # fmt: skip
    """The sum over networks of mean loss + (mu / n) |W|^2, over all weight matrices but no bias; networks do not interact."""
    outputs = forward(parameters, x, half)
    losses = objective(outputs, labels) if weights is None else objective(outputs, labels, weights)
    squares = sum(weight.square().sum((-2, -1)) for weight in parameters[::2])
    return (losses.mean(-1) + mu / x.shape[-2] * squares).sum()  # type: ignore[no-any-return]


def update(
    parameters: Sequence[Tensor], moments: Sequence[Tensor], gradients: Sequence[Tensor], optimiser: Optimiser,
    rates: Tensor | None = None,
) -> None:  # fmt: skip
    """One step of the optimiser, in place; `rates` (R,) stand in for its learning rate."""
    for p, moment, g in zip(parameters, moments, gradients, strict=True):
        if optimiser.name == "rmsprop":
            moment.mul_(optimiser.decay).addcmul_(g, g, value=1 - optimiser.decay)
            g = g / moment.sqrt().add_(optimiser.eps)
        if rates is None:
            p.add_(g, alpha=-optimiser.lr)
        else:
            p.sub_(rates.view(-1, *[1] * (p.ndim - 1)) * g)


Advance = Callable[[int], None]


@dataclass(frozen=True)
class Problem:
    """What a stack is trained on, and how.

    Arguments:
        x, labels, mu: points (R, n, d), labels (R, n) and penalties (R,).
        objective, weights: the loss, and its weights (R, k) if it has some.
        optimiser, rates: how to step, and learning rates (R,) if they differ.
    """

    x: Tensor
    labels: Tensor
    mu: Tensor
    objective: Any
    weights: Tensor | None
    optimiser: Optimiser
    rates: Tensor | None = None

    def value(self, parameters: Sequence[Tensor]) -> Tensor:
        """`penalised` as a function of the parameters."""
        return penalised(parameters, self.x, self.labels, self.mu, self.objective, self.weights)

    def part(self, block: slice) -> Problem:
        """That of some of the networks."""
        weights, rates = (None if values is None else values[block] for values in (self.weights, self.rates))
        return Problem(self.x[block], self.labels[block], self.mu[block], self.objective, weights, self.optimiser, rates)

    def tensors(self) -> tuple[Tensor | None, ...]:
        """What a step of `stepper` takes besides parameters and moments."""
        return self.x, self.labels, self.mu, self.weights, self.rates


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
    rates: Tensor | None = None,
    every: int = 0,
    watch: Callable[[int, Stack], None] | None = None,
    progress: Callable[[int], None] | None = None,
    fuse: bool = True,
    products: str = "float32",
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
        rates: learning rates (R,), where networks have their own; the optimiser's if None.
        every, watch: after every so many steps `watch(step, stack)` is called, for curves.
        progress: called with the number of steps done, now and then.
        fuse: compile the step, on a GPU. It takes some ten seconds for each new shape, and pays where products are small.
        products: on a GPU, "float32", "tf32" (several times as fast), or "bfloat16": twice as fast again, with hidden layers
            of 8 bits, for large n; weights, moments, inputs and outputs stay float32. On a CPU all are float32.
    """
    choose("products", products, PRODUCTS)
    optimiser = Optimiser() if optimiser is None else optimiser
    shapes = [tuple(getattr(values, "shape", ())) for values in (x, labels, mu)]
    if any(shape[:1] != (len(stack),) for shape in shapes):
        raise ValueError(
            f"expected x (R, n, d), labels (R, n) and mu (R,) for each of the R = {len(stack)} networks, got the shapes "
            + ", ".join(map(str, shapes))
        )
    dtype = stack.parameters[0].dtype
    x, labels, mu = x.to(stack.device, dtype), labels.to(stack.device, dtype), mu.to(stack.device, dtype)
    weights, rates = (None if values is None else values.to(stack.device, dtype) for values in (weights, rates))
    problem = Problem(x, labels, mu, objective, weights, optimiser, rates)
    if stack.device.type != "cuda":
        return _advance(_on_cores(stack, problem), stack, steps, every, watch, progress)
    with _precision(products):
        run = _captured(stack, problem, fuse, products == "bfloat16")
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
def _precision(products: str) -> Iterator[None]:
    """How products are done on a GPU, for a while."""
    matmul: Any = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("high" if products == "tf32" else "highest")
    matmul.allow_bf16_reduced_precision_reduction = False  # sums of bfloat16 products are float32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]


Step = Callable[..., None]


def stepper(objective: Any, optimiser: Optimiser, half: bool = False) -> Step:
    """One step of a whole stack in place, of parameters, moments and `Problem.tensors`: what a GPU records and replays."""

    def step(
        parameters: list[Tensor], moments: list[Tensor], x: Tensor, labels: Tensor, mu: Tensor,
        weights: Tensor | None, rates: Tensor | None,
    ) -> None:  # fmt: skip
        gradients = torch.func.grad(lambda p: penalised(p, x, labels, mu, objective, weights, half))(parameters)
        update(parameters, moments, gradients, optimiser, rates)

    return step


@functools.lru_cache(maxsize=1)
def _compiled(objective: Any, optimiser: Optimiser, half: bool, shapes: tuple[Any, ...]) -> Step:
    """The step compiled for stacks of these shapes; kept, since stacks of one shape follow each other."""
    torch.compiler.reset()  # or the shapes of earlier stacks count against the limit of recompilations
    step: Step = torch.compile(stepper(objective, optimiser, half), fullgraph=True, dynamic=False)
    return step


def _usable(compiled: Step, plain: Step, *arguments: Any) -> Step:
    """The compiled step, after one step with it; where torch can't compile, the plain one and a warning."""
    from torch._dynamo.exc import TorchDynamoException  # takes a second to import

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32")  # torch advises it; who asks for float32 has chosen
            compiled(*arguments)
    except TorchDynamoException as error:
        reason = str(error).strip().partition("\n")[0]
        warn(f"training without compilation, which takes longer: {reason}", RuntimeWarning)
        return plain
    return compiled


def _captured(stack: Stack, problem: Problem, fuse: bool, half: bool) -> Advance:
    """A function that advances the stack by so many steps: gradient and update, compiled together, replayed as a graph."""
    state = [*stack.parameters, *stack.moments]
    room = [_aligned(t, i % len(stack.parameters), len(stack.parameters)) for i, t in enumerate(state)] if half else state
    parameters, moments, data = room[: len(room) // 2], room[len(room) // 2 :], problem.tensors()
    shapes = tuple((t.shape, t.dtype) for t in (*parameters, *data) if t is not None)
    step = stepper(problem.objective, problem.optimiser, half)
    advance = step
    kept = [t.clone() for t in room]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()  # the copies were made on another stream
    with torch.cuda.stream(stream):
        if fuse:
            compiled = _compiled(problem.objective, problem.optimiser, half, shapes)
            advance = _usable(compiled, step, parameters, moments, *data)
        for _ in range(3):
            advance(parameters, moments, *data)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            advance(parameters, moments, *data)
        torch._foreach_copy_(room, kept)
    stream.synchronize()

    def run(count: int) -> None:
        with torch.cuda.stream(stream):
            for _ in range(count):
                graph.replay()
            for mine, wide in zip(state, room, strict=True):
                if mine is not wide:
                    mine.copy_(wide[tuple(map(slice, mine.shape))])
        stream.synchronize()

    return run


def _aligned(tensor: Tensor, place: int, count: int) -> Tensor:
    """A weight or bias with hidden units of weight zero added, which stay zero, until a layer's rows are aligned.

    Arguments:
        tensor: (R, out, in) or (R, out).
        place, count: which of how many parameters: the first layer's inputs and the last one's outputs are left as they are.
    """
    out, inputs = tensor.shape[1], tensor.shape[-1]
    after = 0 if place >= count - 2 else -out % ALIGNED
    before = 0 if place < 2 else -inputs % ALIGNED
    padding = (0, before, 0, after) if tensor.ndim == 3 else (0, after)
    return torch.nn.functional.pad(tensor, padding)


def _on_cores(stack: Stack, problem: Problem) -> Advance:
    """A function that advances the stack by so many steps: one network, or one block of tiny ones, per core at a time."""
    block = max(1, _BLOCK // (problem.x.shape[-2] * max(stack.widths)))
    blocks = [slice(i, i + block) for i in range(0, len(stack), block)]

    def one(block: slice, count: int) -> None:
        # copies: views of the stack would share its version counters between threads
        part = problem.part(block)
        leaves = [p[block].clone().requires_grad_() for p in stack.parameters]
        moments = [m[block].clone() for m in stack.moments]
        for _ in range(count):
            gradients = torch.autograd.grad(part.value(leaves), leaves)
            with torch.no_grad():
                update(leaves, moments, gradients, part.optimiser, part.rates)
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
