"""The captured engine and the stack on a GPU: the same numbers as the loop. Skipped without one."""

import copy
import dataclasses

import pytest
import torch

from squareloss import CrossEntropy, SquareLoss
from squareloss.lab.training import captured, loop, stacked
from squareloss.lab.training.flat import FlatWeights
from squareloss.lab.training.recipes import MODES, Adversary
from squareloss.lab.training.stacked import Stack, square
from squareloss.models import WideResNet
from training_runs import SMALL, Stop, images, run, same_weights, stop, tiny

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler's own
]

RECIPE = dataclasses.replace(SMALL, epochs=4)  # 6 steps an epoch


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32 = before


def seeded(make, seed):
    torch.manual_seed(seed)
    return make()


def assert_same(a, b, atol=1e-5):
    for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("adversary", [None, *(Adversary(steps=2, eps=0.1, step_size=0.05, mode=mode) for mode in MODES)])
def test_captured_equals_the_loop(deterministic, compiled, adversary):
    # training on attacks is chaotic: on a CPU too, weights moved by 1e-8 end 0.09 apart after six steps. So one step of it
    recipe = dataclasses.replace(RECIPE, adversary=adversary, lr=0.01, epochs=4 if adversary is None else 1)
    x, y = images(100 if adversary is None else 16)
    one, other = (dataclasses.replace(run(recipe=recipe), x=x, y=y) for _ in range(2))
    (curve,) = captured.train([one], "cuda", compiled=compiled)
    expected = loop.train(other, "cuda")
    assert_same(one.network, other.network)
    assert [e.loss for e in curve] == pytest.approx([e.loss for e in expected], rel=1e-5)


@pytest.mark.parametrize(("precision", "compiled"), [("float32", False), ("float32", True), ("bfloat16", False)])
@pytest.mark.parametrize("count", [2, 3])  # two have second streams for the gradients by the weights
def test_side_by_side_equals_alone(deterministic, precision, compiled, count):
    data, others = images(), images(130, seed=1)  # the second has data, a batch size and a number of epochs of its own
    wider = lambda: WideResNet(3, depth=10, widen=1)
    make = lambda: [
        dataclasses.replace(
            run(
                seeded(network, s),
                loss,
                dataclasses.replace(RECIPE, precision=precision, batch_size=size, epochs=epochs),
                s,
            ),
            x=x,
            y=y,
        )
        for s, (network, loss, size, epochs, (x, y)) in enumerate(
            [
                (tiny, SquareLoss(), 16, 4, data),
                (wider, CrossEntropy(), 40, 3, others),
                (tiny, SquareLoss(), 16, 4, data),
            ][:count]
        )
    ]
    together, alone = make(), make()
    curves = captured.train(together, "cuda", compiled=compiled)
    for one, other, curve in zip(together, alone, curves, strict=True):
        (expected,) = captured.train([other], "cuda", compiled=compiled)
        if compiled:  # alone, the compiler may join other operations
            assert_same(one.network, other.network)
        else:
            assert same_weights(one.network, other.network)
        assert [e.loss for e in curve] == pytest.approx([e.loss for e in expected], rel=1e-5)


def test_resume_is_exact(deterministic, tmp_path):
    path = tmp_path / "run.safetensors"

    with pytest.raises(Stop):
        captured.train([run(recipe=RECIPE, path=path, save_every=1, on_epoch=stop)], "cuda", compiled=False)
    whole, resumed = run(recipe=RECIPE), run(recipe=RECIPE, path=path)
    captured.train([whole], "cuda", compiled=False)
    (curve,) = captured.train([resumed], "cuda", compiled=False)
    assert len(curve) == 4
    assert same_weights(whole.network, resumed.network)


def moved(gradient):
    """The same values, which neither begin where wide reads can nor lie side by side."""
    held = torch.empty((*gradient.shape, 2), dtype=gradient.dtype, device=gradient.device)[..., 1]
    return held.copy_(gradient)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, False), (0.9, True), (0.0, False)])
@pytest.mark.parametrize("captured_too", [False, True])
def test_the_fused_step_is_that_of_torch(momentum, nesterov, captured_too):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.Conv2d(5, 700, 3, bias=False), torch.nn.Linear(3, 3))
    network.to("cuda", memory_format=torch.channels_last)
    expected = copy.deepcopy(network)
    recipe = dataclasses.replace(RECIPE, precision="bfloat16", momentum=momentum, nesterov=nesterov)
    weights = FlatWeights(network, recipe)
    assert [group.fused is not None for group in weights.groups] == [True]
    optimiser = torch.optim.SGD(expected.parameters(), 0.1, momentum, weight_decay=recipe.weight_decay, nesterov=nesterov)
    fixed, lr = [torch.zeros_like(leaf) for leaf in weights.leaves.values()], torch.tensor(0.1, device="cuda")
    if captured_too:
        weights.update(fixed, lr)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            weights.update([1.0 * gradient for gradient in fixed], lr)  # gradients in the graph's own memory
        with pytest.raises(RuntimeError, match="captured once"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            weights.update(fixed, lr)
        for target, source in zip(network.parameters(), expected.parameters(), strict=True):
            target.data.copy_(source)
        for moment in weights.momentum().values():
            moment.zero_()
    for _ in range(4):
        for gradient, p in zip(fixed, expected.parameters(), strict=True):
            gradient.copy_(torch.randn_like(gradient))
            p.grad = gradient.float()
        optimiser.step()
        graph.replay() if captured_too else weights.update([moved(gradient) for gradient in fixed], lr)
    for p, q, leaf in zip(network.parameters(), expected.parameters(), weights.leaves.values(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        assert torch.equal(leaf, p.bfloat16())


def test_a_diverging_run_ends_alone():
    x, y = images()
    good = dataclasses.replace(run(recipe=RECIPE), x=x, y=y)
    bad = dataclasses.replace(run(recipe=dataclasses.replace(RECIPE, lr=1e6), seed=1), x=x, y=y)
    curve, diverged = captured.train([good, bad], "cuda", compiled=False)
    assert len(curve) == 4
    assert isinstance(diverged, loop.Diverged)


def test_stack_equals_the_stack_on_cores():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, 2, generator=g, dtype=torch.float64)
    y, mu = (x[..., 0] > 0).long(), torch.tensor([0.0, 0.01, 1.0])
    stacks = [Stack((2, 30, 20, 1), [5, 6, 7], dtype=torch.float64, device=d) for d in ("cpu", "cuda")]
    for stack in stacks:
        stacked.train(stack, x, y, mu, square, steps=100)
    for a, b in zip(*(s.parameters for s in stacks), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-9, atol=1e-9)
