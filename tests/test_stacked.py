"""Many networks at once: one network of a stack is the network it would be alone."""

import inspect
import warnings

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

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


def test_the_losses_of_one_output_are_torchs():
    f, y = torch.linspace(-3, 3, 20).unsqueeze(-1), torch.arange(20) % 2
    cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits(f[:, 0], y.float(), reduction="none")
    torch.testing.assert_close(logistic(f, y), cross_entropy)
    torch.testing.assert_close(square(f, y), torch.nn.functional.mse_loss(f[:, 0], 2.0 * y - 1, reduction="none"))


@pytest.mark.parametrize("objective", [square, logistic])
@pytest.mark.parametrize("name", ["rmsprop", "sgd"])
def test_one_of_a_stack_equals_the_same_network_alone(objective, name):
    x, y = data()
    mu, seeds = torch.tensor([0.0, 0.01, 1.0]), [5, 6, 7]
    stack = Stack((2, 30, 20, 1), seeds, dtype=torch.float64)
    steps = stacked.CHUNK + 20  # moments go on from one chunk to the next
    stacked.train(stack, x, y, mu, objective, steps=steps, optimiser=Optimiser(name))
    for r, seed in enumerate(seeds):
        net = alone(seed, x[r], y[r], mu[r].double(), objective, steps, name)
        for mine, theirs in zip(stack.select(r), net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-10, atol=1e-10)


def test_the_batched_step_equals_the_step_on_cores():
    # the computation a GPU replays, here uncompiled and on the CPU
    x, y = data()
    y, mu = y.double(), torch.tensor([0.0, 0.01, 1.0], dtype=torch.float64)
    cores, batched = (Stack((2, 30, 20, 1), [5, 6, 7], dtype=torch.float64) for _ in range(2))
    stacked.train(cores, x, y, mu, square, steps=20)
    step, problem = stacked.stepper(square, Optimiser()), stacked.Problem(x, y, mu, square, None, Optimiser())
    for _ in range(20):
        step(batched.parameters, batched.moments, *problem.tensors())
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


@pytest.mark.parametrize("rates", [None, torch.tensor([0.001, 0.01, 0.001], dtype=torch.float64)])
def test_the_step_a_gpu_compiles_can_be_traced_and_is_the_same(rates):
    # thin layers are sums there, not products
    x, y = data()
    problem = stacked.Problem(x, y.double(), torch.ones(3).double(), weighted, torch.ones(3, 2).double(), Optimiser(), rates)
    plain, traced = (Stack((2, 8, 8, 1), [0, 1, 2], dtype=torch.float64) for _ in range(2))
    step = stacked.stepper(weighted, Optimiser())
    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    for _ in range(3):
        step(plain.parameters, plain.moments, *problem.tensors())
        compiled(traced.parameters, traced.moments, *problem.tensors())
    for a, b in zip(plain.parameters, traced.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_stacks_of_one_shape_are_compiled_once(monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda step, **options: compile_(step, backend=backend, **options))
    stacked._compiled.cache_clear()
    for n in (40, 40, 30):
        x, y = data(n=n)
        stack = Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64)
        tensors = stacked.Problem(x, y.double(), torch.zeros(3).double(), square, None, Optimiser()).tensors()
        shapes = tuple(t.shape for t in tensors if t is not None)
        stacked._compiled(square, Optimiser(), False, shapes)(stack.parameters, stack.moments, *tensors)
    assert len(graphs) == 2
    stacked._compiled.cache_clear()


def test_where_torch_cannot_compile_the_plain_step_is_taken():
    def plain(x):
        return None

    def fails(x):
        raise no_triton

    more = [None] * (len(inspect.signature(BackendCompilerFailed).parameters) - 2)  # torch 2.5 has two
    no_triton = BackendCompilerFailed(plain, RuntimeError("no Triton"), *more)
    with pytest.warns(RuntimeWarning, match="without compilation"):
        assert stacked._usable(fails, plain, torch.ones(1)) is plain

    def advised(x):
        warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available", stacklevel=1)

    assert stacked._usable(advised, fails, torch.ones(1)) is advised

    def broken(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # what is no failure of the compiler is not hidden
        stacked._usable(broken, plain, torch.ones(1))


def test_learning_rates_of_their_own():
    x, y = data()
    rates = torch.tensor([0.001, 0.01, 0.003])
    together = Stack((2, 30, 20, 1), [5, 6, 7], dtype=torch.float64)
    stacked.train(together, x, y, torch.full((3,), 0.1), square, steps=20, rates=rates)
    for r in range(3):
        alone = Stack((2, 30, 20, 1), [5 + r], dtype=torch.float64)
        optimiser = Optimiser(lr=float(rates[r].double()))
        stacked.train(alone, x[r : r + 1], y[r : r + 1], torch.full((1,), 0.1), square, steps=20, optimiser=optimiser)
        for mine, theirs in zip(together.select(r), alone.select(0), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_units_added_for_alignment_change_nothing_and_stay_zero():
    x, y = data()
    stack = Stack((2, 30, 20, 1), [5, 6, 7], dtype=torch.float64)
    wide, moments = ([stacked._aligned(t, i, 6) for i, t in enumerate(ts)] for ts in (stack.parameters, stack.moments))
    assert [tuple(p.shape[1:]) for p in wide] == [(32, 2), (32,), (24, 32), (24,), (1, 24), (1,)]
    tensors = stacked.Problem(x, y.double(), torch.full((3,), 0.1).double(), square, None, Optimiser()).tensors()
    step = stacked.stepper(square, Optimiser())
    for _ in range(20):
        step(stack.parameters, stack.moments, *tensors)
        step(wide, moments, *tensors)
    for mine, padded in zip(stack.parameters, wide, strict=True):
        torch.testing.assert_close(padded[tuple(map(slice, mine.shape))], mine, rtol=1e-10, atol=1e-10)
        assert float(padded.abs().sum()) == pytest.approx(float(mine.abs().sum()), rel=1e-9)


@pytest.mark.parametrize("compiled", [False, True])
def test_hidden_layers_in_bfloat16_give_nearly_the_same_gradient(compiled):
    x, y = data(n=1000, dtype=torch.float32)
    tensors = stacked.Problem(x, y.float(), torch.full((3,), 0.1), square, None, Optimiser("sgd", lr=1.0)).tensors()
    moved = {}
    for half in (False, True):
        stack = Stack((2, 32, 24, 1), [5, 6, 7])
        before = [p.clone() for p in stack.parameters]
        step = stacked.stepper(square, Optimiser("sgd", lr=1.0), half)
        step = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager") if compiled else step
        step(stack.parameters, stack.moments, *tensors)
        moved[half] = [p - b for p, b in zip(stack.parameters, before, strict=True)]
        assert all(p.dtype == torch.float32 for p in stack.parameters)
    for exact, rough in zip(moved[False], moved[True], strict=True):
        assert 0 < float((rough - exact).norm() / exact.norm()) < 0.03


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
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch 2.11 warns of itself as it compiles
@pytest.mark.parametrize("fuse", [True, False])
def test_a_gpu_compiled_or_not_does_what_the_cores_do(fuse):
    x, y = data()
    weights, stacks, rates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), [], torch.tensor([0.001, 0.002, 0.001])
    for device in ("cpu", "cuda"):
        stacks.append(Stack((2, 30, 20, 1), [5, 5, 7], dtype=torch.float64, device=device))
        stacked.train(
            stacks[-1], x, y, torch.full((3,), 0.1), weighted, weights=weights, steps=50, rates=rates, fuse=fuse,
            products="tf32",
        )  # fmt: skip
    for a, b in zip(*(s.parameters for s in stacks), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-8, atol=1e-8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch 2.11 warns of itself as it compiles
@pytest.mark.parametrize("fuse", [True, False])
def test_bfloat16_on_a_gpu_learns_what_float32_does(fuse):
    x, y = data(n=400, dtype=torch.float32)
    losses = []
    for products in ("float32", "bfloat16"):
        stack = Stack((2, 60, 60, 1), [5, 6, 7], device="cuda")
        stacked.train(stack, x, y, torch.zeros(3), square, steps=300, fuse=fuse, products=products)
        assert [tuple(p.shape[1:]) for p in stack.parameters][2] == (60, 60)
        losses.append(square(stack(x.cuda()), y.cuda()).mean(-1).cpu())
    assert float(losses[0].max()) < 0.3
    torch.testing.assert_close(losses[1], losses[0], rtol=0.2, atol=0.02)


def test_watch_sees_the_steps_asked_for():
    x, y = data()
    seen = []
    stack = Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64)
    stacked.train(stack, x, y, torch.zeros(3), square, steps=70, every=20, watch=lambda step, s: seen.append(step))
    assert seen == [20, 40, 60]


def test_threads_and_precision_are_put_back_even_after_an_error(one_thread):
    x, y = data()
    threads = []

    def fails(outputs, labels):
        threads.append(torch.get_num_threads())
        raise ZeroDivisionError

    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        stacked.train(Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64), x, y, torch.zeros(3), fails, steps=1)
    assert set(threads) == {1} and torch.get_num_threads() == 2
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    for products, precision in (("float32", "highest"), ("tf32", "high"), ("bfloat16", "highest")):
        with pytest.raises(ZeroDivisionError), stacked._precision(products):
            assert torch.get_float32_matmul_precision() == precision and not matmul.allow_bf16_reduced_precision_reduction
            raise ZeroDivisionError
        assert (torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction) == before


def test_same_points_for_all_networks():
    x, _ = data()
    stack = Stack((2, 8, 1), [0, 1, 2], dtype=torch.float64)
    torch.testing.assert_close(stack(x[0])[1], stack(x[[0, 0, 0]])[1])


def test_bad_input():
    x, y = data()
    stack = Stack((2, 8, 1), [0, 1])
    with pytest.raises(ValueError, match=r"each of the R = 2 networks, got the shapes \(3, 40, 2\), \(3, 40\), \(3,\)"):
        stacked.train(stack, x, y, torch.zeros(3), square, steps=1)
    with pytest.raises(ValueError, match=r"mu \(R,\) .* got the shapes \(2, 40, 2\), \(2, 40\), \(\)"):
        stacked.train(stack, x[:2], y[:2], 0.1, square, steps=1)
    with pytest.raises(ValueError, match="Available: sgd, rmsprop"):
        Optimiser("adam")
    with pytest.raises(ValueError, match="Unknown products 'half'. Available: float32, tf32, bfloat16"):
        stacked.train(stack, x[:2], y[:2], torch.zeros(2), square, steps=1, products="half")
