"""The captured engine on cores: the step that it replays, and runs side by side."""

import copy
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from squareloss import CrossEntropy, SquareLoss
from squareloss.lab.training import captured, loop, overlap
from squareloss.lab.training.flat import FlatWeights
from squareloss.lab.training.recipes import MODES, Adversary
from training_runs import SMALL, run, same_weights, tiny


def gradients_of_the_loop(one, precision, rows, epoch=0):
    """Loss, gradients by name and buffers after one step of the visible loop, with a copy of the network."""
    network = copy.deepcopy(one.network)
    other = dataclasses.replace(one, network=network)

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            return network(x)

    _, _, value = loop._objective(forward, other, other.batches(torch.device("cpu")), rows, loop.State(epoch))
    value.backward()
    return value.item(), {name: p.grad for name, p in network.named_parameters()}, list(network.buffers())


def captured_step(precision, adversary, overlapped):
    recipe = dataclasses.replace(SMALL, precision=precision, adversary=adversary)
    one = run(recipe=recipe)
    one.network.to(memory_format=torch.channels_last).train()
    batches = one.batches(torch.device("cpu"))
    return captured.Step(one, batches, compiled=False, overlapped=overlapped), batches.epoch(0).step(0)


@pytest.mark.parametrize("adversary", [None, *(Adversary(steps=2, eps=0.1, step_size=0.05, mode=mode) for mode in MODES)])
@pytest.mark.parametrize(("precision", "overlapped"), [("float32", False), ("float32", True), ("bfloat16", False)])
def test_the_captured_step_has_the_gradients_of_the_loop(precision, adversary, overlapped):
    step, rows = captured_step(precision, adversary, overlapped)
    value, theirs, buffers = gradients_of_the_loop(step.run, precision, rows)
    mine, hits, gradients = step.gradients(rows, torch.zeros((), dtype=torch.int64))
    assert mine == pytest.approx(value, rel=1e-6)
    assert hits.dtype == torch.bool
    assert hits.shape == (16,)
    for name, gradient in zip(step.weights.leaves, gradients, strict=True):
        torch.testing.assert_close(gradient.float(), theirs[name])
    for a, b in zip(step.run.network.buffers(), buffers, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_a_later_captured_step_attacks_the_network_as_it_is_by_then(mode):
    """With the weights and the statistics that it has now, from the random starts of this epoch."""
    step, rows = captured_step("float32", Adversary(steps=2, eps=0.1, step_size=0.05, mode=mode), True)
    with torch.no_grad():
        for tensor in [*step.run.network.parameters(), *step.run.network.buffers()]:
            tensor.mul_(1.3)
    step.weights.refresh()
    value, theirs, _ = gradients_of_the_loop(step.run, "float32", rows, epoch=3)
    mine, _, gradients = step.gradients(rows, torch.tensor(3))
    assert mine == pytest.approx(value, rel=1e-6)
    for name, gradient in zip(step.weights.leaves, gradients, strict=True):
        torch.testing.assert_close(gradient.float(), theirs[name])


def test_networks_of_strangers_share_no_compiled_call():
    """Nobody knows what they hold: two of one class may compute different things."""

    class Times(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return self.factor * x

    x, losses = torch.rand(4, 3, 8, 8), []
    for preprocess in (Times(1.0), Times(50.0)):
        module = nn.Sequential(preprocess, tiny())
        call = captured._call(module, False, False, False, training=True)
        losses.append(call(dict(module.named_parameters()), dict(module.named_buffers()), x))
        expected = module.train()(x)
        torch.testing.assert_close(losses[-1], expected)
    assert not torch.equal(*losses)
    known = [nn.Sequential(nn.Identity(), tiny()) for _ in range(2)]
    calls = [captured._call(module, False, False, False, training=training) for module in known for training in (True, False)]
    assert calls[0] is calls[2] and calls[1] is calls[3] and calls[0] is not calls[1]


def test_only_convolutions_padded_with_zeros_are_overlapped():
    options = [
        {},
        {"stride": 2},
        {"padding_mode": "circular"},
        {"bias": True},
        {"groups": 2},
        {"stride": (1, 2)},
        {"padding": "same"},
    ]
    net = nn.ModuleList(nn.Conv2d(4, 4, 3, **{"padding": 1, "bias": False, **option}) for option in options)
    x = torch.randn(2, 4, 6, 6)
    expected = [convolution(x) for convolution in net]
    overlap.overlap(net)
    assert [type(convolution) is overlap.OverlappedConv2d for convolution in net] == [True, True] + 5 * [False]
    for convolution, out in zip(net, expected, strict=True):
        torch.testing.assert_close(convolution(x), out)


def test_captured_steps_in_bfloat16_round_no_more_than_the_loop():
    mine, theirs = [], []
    for epoch in range(8):
        step, _ = captured_step("bfloat16", None, True)
        rows = step.batches.epoch(epoch).step(0)
        exact, rounded = (gradients_of_the_loop(step.run, precision, rows)[1] for precision in ("float32", "bfloat16"))
        _, _, gradients = step.gradients(rows, torch.zeros((), dtype=torch.int64))
        captured = dict(zip(step.weights.leaves, gradients, strict=True))
        for offs, got in ((mine, captured), (theirs, rounded)):
            offs.append(torch.cat([(got[name].float() - exact[name]).flatten() for name in exact]).norm().item())
    assert 0 < sum(mine) < 1.25 * sum(theirs)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("option", [{}, {"nesterov": True}, {"momentum": 0.0}])
def test_the_flat_update_is_sgd(precision, option):
    recipe = dataclasses.replace(SMALL, precision=precision, **option)
    net, theirs = (tiny().to(memory_format=torch.channels_last) for _ in range(2))
    flat, optimiser = FlatWeights(net, recipe), loop.make_optimiser(theirs, recipe)
    g = torch.Generator().manual_seed(0)
    for _ in range(3):
        gradients = {
            name: torch.randn(p.shape, generator=g).to(flat.leaves[name].dtype) for name, p in theirs.named_parameters()
        }
        for name, p in theirs.named_parameters():
            p.grad = gradients[name].float()
        optimiser.step()
        flat.update([gradients[name] for name in flat.leaves], torch.tensor(recipe.lr))
    for (name, p), q in zip(net.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(flat.leaves[name].detach(), p.detach().to(flat.leaves[name].dtype))
    for p, q in zip(net.parameters(), theirs.parameters(), strict=True):
        if recipe.momentum:
            torch.testing.assert_close(flat.momentum()[p], optimiser.state[q]["momentum_buffer"])
    net.linear.weight.data.fill_(2.0)
    flat.refresh()
    assert (flat.leaves["linear.weight"] == 2).all()
    lows = {name for name, leaf in flat.leaves.items() if leaf.dtype == torch.bfloat16}
    assert ("linear.weight" in lows) == ("conv1.weight" in lows) == (precision == "bfloat16")
    assert "bn1.weight" not in lows
    flat.release()
    assert len({p.untyped_storage().data_ptr() for p in net.parameters()}) == len(list(net.parameters()))


def test_the_record_of_a_step():
    record, counter = torch.zeros(3, 2, dtype=torch.float64), torch.tensor([2])
    captured.note(record, counter, torch.tensor(0.5), torch.tensor([True, False, True]))
    assert record[2].tolist() == [0.5, 2.0]
    assert counter.tolist() == [0]


@pytest.mark.parametrize(("first_step", "at"), [(0, 2), (1, 2), (4, 3)])
def test_a_run_that_diverged_and_was_interrupted_is_said_to_diverge(first_step, at):
    """Interrupted after the last step of an epoch in which the loss was no longer finite, it has nothing left to look at."""
    one = run()
    one = SimpleNamespace(run=one, batches=SimpleNamespace(steps=4), first_step=first_step, _read=lambda: None)
    one.record = torch.tensor([[1.0, 2.0], [1.0, 2.0], [torch.nan, 0.0], [torch.nan, 0.0]])
    one.state = loop.State(epoch=1, step=4, totals=torch.tensor([torch.nan, 4.0], dtype=torch.float64))
    assert captured._Captured.end_epoch(one) is False
    assert (one.diverged.epoch, one.diverged.step) == (1, at)


def test_side_by_side_on_a_cpu_is_one_after_the_other():
    runs = [run(loss=SquareLoss(), seed=1), run(loss=CrossEntropy(), seed=2)]
    alone = [run(loss=SquareLoss(), seed=1), run(loss=CrossEntropy(), seed=2)]
    curves = captured.train(runs, "cpu")
    for one, other, curve in zip(runs, alone, curves, strict=True):
        assert [e.loss for e in loop.train(other)] == [e.loss for e in curve]
        assert same_weights(one.network, other.network)


def test_runs_side_by_side_share_the_data_that_they_have_in_common():
    a = run()
    smaller = dataclasses.replace(run(recipe=dataclasses.replace(SMALL, batch_size=8), seed=5), x=a.x, y=a.y)
    uncut = dataclasses.replace(run(recipe=dataclasses.replace(SMALL, augment=not SMALL.augment)), x=a.x, y=a.y)
    relabelled = dataclasses.replace(a, y=a.y.flip(0))
    runs = [a, run(), smaller, uncut, relabelled]
    first, other, *rest = captured.shared_batches(runs, torch.device("cpu"))
    assert rest[0].x is first.x and rest[0].y is first.y
    assert len({b.x.data_ptr() for b in (first, other, *rest[1:])}) == 4
    for one, shared in zip(runs, [first, other, *rest], strict=True):
        own = one.batches(torch.device("cpu"))
        assert all(torch.equal(p, q) for p, q in zip(own.epoch(3), shared.epoch(3), strict=True))
        rows = own.epoch(1).step(0)
        assert all(torch.equal(p, q) for p, q in zip(own.take(rows), shared.take(rows), strict=True))


def test_small_batches_go_first_on_the_chip_where_there_are_larger_ones():
    of = lambda *sizes: [run(recipe=dataclasses.replace(SMALL, batch_size=size)) for size in sizes]
    assert captured.urgencies(of(32, 8, 16, 8)) == [False, True, False, True]
    assert captured.urgencies(of(8, 8)) == [False, False] and captured.urgencies(of(8)) == [False]


def test_runs_of_different_batch_sizes_take_turns():
    runs = [
        SimpleNamespace(name=name, left=steps, batches=SimpleNamespace(steps=steps)) for name, steps in (("a", 2), ("b", 8))
    ]
    turns = ""
    while (behind := captured.furthest_behind(runs)).left:
        behind.left -= 1
        turns += behind.name
    assert turns == "abbbbabbbb"
