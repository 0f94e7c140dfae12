"""Many networks at once: one network of a stack is the network it would be alone."""

import pytest
import torch

from squareloss.lab.training import stacked
from squareloss.lab.training.stacked import Optimiser, Stack, logistic, square
from squareloss.models import MLP


def data(replications=3, n=40, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(replications, n, 2, generator=g, dtype=dtype)
    return x, (x[..., 0] * x[..., 1] > 0).long()


def alone(seed, x, y, mu, objective, steps, name):
    net = MLP(2, (30, 20), 1, generator=torch.Generator().manual_seed(seed)).double()
    if name == "rmsprop":
        optimiser = torch.optim.RMSprop(net.parameters(), lr=0.001, alpha=0.99, eps=1e-8)
    else:
        optimiser = torch.optim.SGD(net.parameters(), lr=0.001)
    for _ in range(steps):
        optimiser.zero_grad()
        penalty = sum(layer.weight.square().sum() for layer in net.layers)
        (objective(net(x), y.double()).mean() + mu / len(x) * penalty).backward()
        optimiser.step()
    return net


@pytest.mark.parametrize("objective", [square, logistic])
@pytest.mark.parametrize("name", ["rmsprop", "sgd"])
def test_one_of_a_stack_equals_the_same_network_alone(objective, name):
    x, y = data()
    mu, seeds = torch.tensor([0.0, 0.01, 1.0]), [5, 6, 7]
    stack = Stack((2, 30, 20, 1), seeds, dtype=torch.float64)
    stacked.train(stack, x, y, mu, objective, steps=100, optimiser=Optimiser(name))
    for r, seed in enumerate(seeds):
        net = alone(seed, x[r], y[r], mu[r].double(), objective, 100, name)
        for mine, theirs in zip(stack.select(r), net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-10, atol=1e-10)


def test_the_batched_step_equals_the_step_on_cores():
    # the computation a GPU replays, here uncompiled and on the CPU
    x, y = data()
    y, mu = y.double(), torch.tensor([0.0, 0.01, 1.0], dtype=torch.float64)
    cores, batched = (Stack((2, 30, 20, 1), [5, 6, 7], dtype=torch.float64) for _ in range(2))
    stacked.train(cores, x, y, mu, square, steps=20)
    step = stacked.stepper(stacked.Problem(x, y, mu, square, None, Optimiser()))
    for _ in range(20):
        step(batched.parameters, batched.moments)
    for a, b in zip(cores.parameters, batched.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def weighted(outputs, labels, weights):
    a, b = weights.unsqueeze(-2).unbind(-1)
    return a * square(outputs, labels) + b * logistic(outputs, labels)


def test_networks_with_different_losses_train_as_one_stack():
    x, y = data()
    mixed = Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64)
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    stacked.train(mixed, x, y, torch.zeros(3), weighted, steps=30, weights=weights)
    for r, objective in enumerate([square, logistic, logistic]):
        alone = Stack((2, 8, 1), [r], dtype=torch.float64)
        stacked.train(alone, x[r : r + 1], y[r : r + 1], torch.zeros(1), objective, steps=30)
        for mine, theirs in zip(mixed.select(r), alone.select(0), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_the_step_a_gpu_compiles_can_be_traced_and_is_the_same():
    x, y = data()
    problem = stacked.Problem(x, y.double(), torch.zeros(3).double(), weighted, torch.ones(3, 2).double(), Optimiser())
    plain, traced = (Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64) for _ in range(2))
    stacked.stepper(problem)(plain.parameters, plain.moments)
    compiled = torch.compile(stacked.stepper(problem), fullgraph=True, dynamic=False, backend="aot_eager")
    compiled(traced.parameters, traced.moments)
    for a, b in zip(plain.parameters, traced.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_blocks_of_tiny_networks_and_single_ones_are_the_same(monkeypatch):
    x, y = data()
    stacks = []
    for size in (2**17, 1):
        monkeypatch.setattr(stacked, "_BLOCK", size)
        stacks.append(Stack((2, 30, 20, 1), [5, 6, 7], dtype=torch.float64))
        stacked.train(stacks[-1], x, y, torch.full((3,), 0.1), logistic, steps=20)
    for a, b in zip(*(s.parameters for s in stacks), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fuse", [True, False])
def test_a_gpu_compiled_or_not_does_what_the_cores_do(fuse):
    x, y = data()
    weights, stacks = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), []
    for device in ("cpu", "cuda"):
        stacks.append(Stack((2, 30, 20, 1), [5, 5, 7], dtype=torch.float64, device=device))
        stacked.train(stacks[-1], x, y, torch.full((3,), 0.1), weighted, weights=weights, steps=50, fuse=fuse, tf32=True)
    for a, b in zip(*(s.parameters for s in stacks), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-8, atol=1e-8)


def test_watch_sees_the_steps_asked_for():
    x, y = data()
    seen = []
    stack = Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64)
    stacked.train(stack, x, y, torch.zeros(3), square, steps=70, every=20, watch=lambda step, s: seen.append(step))
    assert seen == [20, 40, 60]


def test_same_points_for_all_networks():
    x, _ = data()
    stack = Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64)
    torch.testing.assert_close(stack(x[0])[1], stack(x[[0, 0, 0]])[1])


def test_bad_input():
    x, y = data()
    stack = Stack((2, 8, 1), [0, 1])
    with pytest.raises(ValueError, match="each of the 2 networks, got 3"):
        stacked.train(stack, x, y, torch.zeros(3), square, steps=1)
    with pytest.raises(ValueError, match="Available: sgd, rmsprop"):
        Optimiser("adam")
