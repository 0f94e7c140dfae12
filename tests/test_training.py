"""The visible loop: its batches, its curve, its checkpoints; and the step that the captured engine replays."""

import copy
import dataclasses
import pickle
from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from squareloss import CrossEntropy, OneHot, Simplex, SquareLoss
from squareloss.attacks.losses import angle, ce, margin
from squareloss.codings import outputs_for
from squareloss.lab.training import captured, loop, overlap
from squareloss.lab.training.adversarial import attacked, perturb, start_keys, uniform
from squareloss.lab.training.batches import PAD, Batches
from squareloss.lab.training.flat import FlatWeights
from squareloss.lab.training.loop import Diverged, Run
from squareloss.lab.training.recipes import MODES, RECIPES, Adversary, Recipe
from squareloss.models import MLP, ResNet

SMALL = Recipe(epochs=2, batch_size=16, lr=0.05, precision="float32")


def images(n=100, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    x = torch.randint(0, 80, (n, 3, 8, 8), generator=g) + 60 * y[:, None, None, None]
    return x.to(torch.uint8), y


def tiny(seed=0):  # width under 8, oneDNN writes past its memory on CPUs without AVX-512 (oneDNN issue 6035)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ResNet("resnet8", 3, width=8)


def run(network=None, loss=None, recipe=SMALL, seed=0, **kwargs):
    x, y = images()
    return Run(network or tiny(), loss or SquareLoss(), recipe, seed, x, y, **kwargs)


class Stop(Exception):
    """What `stop` raises."""


def stop(row):
    """End a training after its second epoch, as a crash would."""
    if row.epoch == 1:
        raise Stop


def test_batches_are_crops_and_flips_of_zero_padded_images():
    x, y = images(20)
    batches = Batches(x, y, batch_size=10, seed=3, augment=True, device="cpu")
    rows = batches.epoch(4)
    got, labels = batches.take(rows.step(1))
    padded = nn.functional.pad(x, (PAD,) * 4)
    for i in range(10):
        sample, top, left, flip = (int(table[1, i]) for table in rows)
        want = padded[sample, :, top : top + 8, left : left + 8]
        want = want.flip(-1) if flip else want
        torch.testing.assert_close(got[i], want.float() / 255)
        assert labels[i] == y[sample]
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_an_epoch_takes_each_sample_once_and_differs_between_epochs_and_seeds():
    x, y = images(40)
    batches = Batches(x, y, batch_size=10, seed=3, augment=True, device="cpu")
    assert sorted(batches.epoch(0).sample.flatten().tolist()) == list(range(40))
    assert not torch.equal(batches.epoch(0).sample, batches.epoch(1).sample)
    assert not torch.equal(batches.epoch(0).sample, batches.reordered(batches.batch_size, 4).epoch(0).sample)
    assert not torch.equal(batches.epoch(1).sample, batches.reordered(batches.batch_size, 4).epoch(0).sample)
    assert torch.equal(batches.epoch(1).sample, batches.reordered(batches.batch_size, 3).epoch(1).sample)
    larger = batches.reordered(16, 3)
    assert (batches.steps, batches.batch_size) == (4, 10) and larger.steps == 2
    assert torch.equal(larger.epoch(1).sample.flatten(), batches.epoch(1).sample.flatten()[:32])
    assert batches.reordered(40, 3).epoch(0).sample.shape == (1, 40)
    with pytest.raises(ValueError, match="batch_size <= 40"):
        batches.reordered(41, 3)
    rows = batches.epoch(0)
    for ours, theirs in zip(rows.step(torch.tensor([2])), rows.step(2), strict=True):  # the step as a tensor, for a GPU
        assert torch.equal(ours, theirs)
    assert 0.3 < batches.epoch(0).flip.double().mean() < 0.7


def test_rmsprop_is_torch_s_with_the_weight_decay_of_the_recipe():
    recipe = dataclasses.replace(SMALL, optimiser="rmsprop", lr=0.003, weight_decay=0.7)
    weight, expected = (nn.Linear(3, 2, bias=False) for _ in range(2))
    expected.load_state_dict(weight.state_dict())
    theirs = torch.optim.RMSprop(expected.parameters(), lr=0.003, weight_decay=0.7)
    for network, optimiser in ((weight, loop.make_optimiser(weight, recipe)), (expected, theirs)):
        for _ in range(3):
            optimiser.zero_grad()
            network(torch.ones(4, 3)).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(weight.weight, expected.weight)


def test_the_loop_equals_plain_torch():
    # the loop without augmentation, beside the dozen lines everyone writes
    recipe = dataclasses.replace(SMALL, augment=False, nesterov=True, schedule="cosine")
    one = run(recipe=recipe)
    curve = loop.train(one)
    net, loss, (x, y) = tiny().to(memory_format=torch.channels_last), SquareLoss(), images()
    optimiser = torch.optim.SGD(net.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=True)
    batches, losses = Batches(x, y, batch_size=16, seed=0, augment=False, device="cpu"), []
    for epoch in range(2):
        for step, sample in enumerate(batches.epoch(epoch).sample):
            optimiser.param_groups[0]["lr"] = recipe.lr_at(epoch + (step + 0.5) / batches.steps)
            value = loss(net(x[sample].float() / 255), y[sample])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            losses.append(value.item())
    for a, b in zip(one.network.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert curve[1].loss == pytest.approx(sum(losses[batches.steps :]) / batches.steps, rel=1e-5)
    assert curve[1].lr == optimiser.param_groups[0]["lr"]


def test_it_learns_and_the_curve_says_so():
    recipe = dataclasses.replace(SMALL, epochs=20)
    curve = loop.train(run(recipe=recipe))
    assert curve[-1].loss < 0.5 * curve[0].loss
    assert curve[-1].train_accuracy > 0.9


@pytest.mark.parametrize("option", [{"mixup": 0.4}, {"optimiser": "rmsprop", "lr": 0.001}, {"precision": "bfloat16"}])
def test_options_train(option):
    curve = loop.train(run(recipe=dataclasses.replace(SMALL, epochs=4, **option)))
    assert curve[-1].loss < curve[0].loss


def test_mixup_is_the_loss_of_both_labels_on_the_mixture():
    one = run(recipe=dataclasses.replace(SMALL, mixup=0.4, augment=False))
    batches, network = one.batches(torch.device("cpu")), one.network.eval()
    rows, part = batches.epoch(1).step(2), loop._mixing(0.4, one.seed, batches.steps + 2)
    x, y = batches.take(rows)
    outputs, labels, value = loop._objective(network, one, batches, rows, loop.State(epoch=1, step=2))
    torch.testing.assert_close(outputs, network(part * x + (1 - part) * x.flip(0)))
    torch.testing.assert_close(value, part * one.loss(outputs, y) + (1 - part) * one.loss(outputs, y.flip(0)))
    assert torch.equal(labels, y) and not torch.equal(y, y.flip(0)) and 0 < part < 1


def test_mixup_draws_anew_in_every_step(monkeypatch):
    drawn = []
    monkeypatch.setattr(loop, "_mixing", lambda alpha, seed, step: drawn.append(step) or 0.5)
    loop.train(run(recipe=dataclasses.replace(SMALL, mixup=0.4)))
    assert len(drawn) == len(set(drawn)) == 12


def test_mixtures_are_draws_from_a_beta_distribution_by_seed_and_step():
    drawn = torch.tensor([[loop._mixing(0.4, seed, step) for step in range(1000)] for seed in (3, 4)])
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.03) and abs(float(torch.corrcoef(drawn)[0, 1])) < 0.1
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * 0.4 + 1)), rel=0.06)


def test_a_row_of_the_curve_is_means():
    state = loop.State(step=4, totals=torch.tensor([2.0, 12.0], dtype=torch.float64), seconds=3.0)
    row = state.finish_epoch(0.1, steps=4, batch_size=5)
    assert (row.epoch, row.loss, row.train_accuracy, row.seconds) == (0, 0.5, 12 / 20, 3.0)
    assert (state.epoch, state.step, state.totals.tolist()) == (1, 0, [0.0, 0.0])


def test_starts_of_attacks_differ_by_run_epoch_and_sample():
    keys = [start_keys(seed, epoch, torch.arange(50)) for seed in range(4) for epoch in range(4)]
    assert len(torch.cat(keys).unique()) == 4 * 4 * 50


def test_schedules():
    paper = RECIPES["paper"]
    assert [paper.lr_at(e) for e in (0, 49.99, 50, 100, 199)] == pytest.approx([0.01, 0.01, 0.001, 1e-4, 1e-5])
    linear = Recipe(epochs=10, batch_size=1, lr=1.0, schedule="linear", warmup=2)
    assert [linear.lr_at(e) for e in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    cosine = Recipe(epochs=10, batch_size=1, lr=1.0, schedule="cosine")
    assert [cosine.lr_at(e) for e in (0, 5, 10)] == pytest.approx([1, 0.5, 0], abs=1e-12)


def test_recipes_are_checked_and_the_papers_is_the_papers():
    paper, other = RECIPES["paper"], RECIPES["paper_128"]
    assert (paper.epochs, paper.batch_size, paper.lr, paper.momentum, paper.weight_decay) == (200, 32, 0.01, 0.9, 5e-4)
    assert (paper.optimiser, paper.schedule, paper.step_size, paper.gamma) == ("sgd", "step", 50, 0.1)
    assert paper.augment and not (paper.nesterov or paper.warmup or paper.mixup or paper.adversary)
    assert dataclasses.replace(paper, batch_size=128, lr=0.1) == other
    for name in ("optimiser", "schedule", "precision"):
        with pytest.raises(ValueError, match=f"Unknown {name} 'none'"):
            dataclasses.replace(paper, **{name: "none"})
    for name in ("epochs", "batch_size", "lr"):
        with pytest.raises(ValueError, match=f"expected {name} > 0, got 0"):
            dataclasses.replace(paper, **{name: 0})
    assert Adversary(steps=7) == Adversary(7, eps=8 / 255, step_size=2 / 255)
    with pytest.raises(ValueError, match="Unknown mode 'Eval'. Available: train, eval"):
        Adversary(3, mode="Eval")
    for wrong in ({"steps": -2}, {"steps": 3, "eps": 8}, {"steps": 3, "eps": 0}, {"steps": 3, "step_size": -1}):
        with pytest.raises(ValueError, match="a radius of 8 levels is 8/255"):
            Adversary(**wrong)


def test_a_loss_that_is_not_finite_stops_with_step_and_advice():
    with pytest.raises(Diverged, match="smaller learning rate") as caught:
        loop.train(run(recipe=dataclasses.replace(SMALL, lr=1e6, epochs=9)))
    assert caught.value.epoch * 6 + caught.value.step > 0
    assert captured.train([run(recipe=dataclasses.replace(SMALL, lr=1e6, epochs=9))], "cpu")[0].step == caught.value.step


def same_weights(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    loop.train(run())
    assert torch.equal(before, torch.get_rng_state())


# ---- adversarial training


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", [CrossEntropy(), SquareLoss(Simplex(radius=3.0), scale=1.0)])
def test_the_attack_stays_in_ball_and_box_and_hurts(loss, mode):
    one = run(loss=loss, recipe=dataclasses.replace(SMALL, epochs=4))
    loop.train(one)
    net, (x, y), adversary = one.network.train(), images(), Adversary(steps=10, eps=0.15, step_size=0.04)
    x = x.float() / 255
    buffers = [b.clone() for b in net.buffers()]
    with attacked(net, mode):
        assert all(module.training == (mode == "train") for module in net.modules())
        moved = perturb(net, loss.link, adversary, x, y, start_keys(0, 0, torch.arange(100)))
    assert all(module.training for module in net.modules())
    assert (moved - x).abs().max() <= 0.15 + 1e-6
    assert 0 <= moved.min() and moved.max() <= 1
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), buffers, strict=True))
    net.train(mode == "train")
    assert (net(moved).argmax(1) == y).double().mean() < (net(x).argmax(1) == y).double().mean() - 0.1


def test_an_attack_leaves_the_networks_mode_and_batch_norms_counter():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2, track_running_stats=False))
    for training in (True, False):
        for mode in MODES:
            net.train(training)
            before = {name: b.clone() for name, b in net.named_buffers()}
            with attacked(net, mode):
                net(torch.randn(4, 1, 5, 5))
            assert net.training == training and [m.track_running_stats for m in net[1:]] == [True, False]
            assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_an_attack_begins_uniformly_in_the_ball_and_steps_up_its_loss():
    """Without a step it is the start; with one, that plus a step along the sign of the gradient of the link's loss."""
    g = torch.Generator().manual_seed(0)
    weight, x, y = torch.randn(6, 4, generator=g), torch.full((500, 6), 0.5), torch.arange(500) % 4
    for link, climbed in ((CrossEntropy().link, ce), (Simplex(), angle), (OneHot(), angle)):
        start, moved = (perturb(lambda x: x @ weight, link, Adversary(n, 0.1, 0.03), x, y, torch.arange(500)) for n in (0, 1))
        where = (start.detach() - x) / 0.1
        assert 0.99 < where.abs().max() <= 1 + 1e-6
        assert where.mean() == pytest.approx(0, abs=0.03) and where.var() == pytest.approx(1 / 3, abs=0.02)
        at = start.detach().requires_grad_()
        (uphill,) = torch.autograd.grad(climbed(at @ weight, y).sum(), at)
        torch.testing.assert_close(moved, (start + 0.03 * uphill.sign()).clamp(0.4, 0.6))
    low = perturb(lambda x: x @ weight, Simplex(), Adversary(0, 0.1), torch.zeros(500, 6), y, torch.arange(500))
    assert low.min() == 0 and low.max() > 0.09


def test_training_attacks_from_starts_of_its_own_seed_epoch_and_samples(monkeypatch):
    keys = []
    monkeypatch.setattr(loop, "perturb", lambda forward, link, adversary, x, y, key: keys.append(key) or x)
    one = run(MLP(192, (4,), 3), seed=5, recipe=dataclasses.replace(SMALL, adversary=Adversary(steps=1)))
    loop.train(one)
    batches = one.batches(torch.device("cpu"))
    expected = [start_keys(5, epoch, sample) for epoch in range(2) for sample in batches.epoch(epoch).sample]
    assert torch.equal(torch.stack(keys), torch.stack(expected))


@pytest.mark.parametrize("coding", [Simplex(), Simplex(reduced=True), OneHot()])
def test_two_classes_are_attacked_by_the_margin(coding):
    """The angle of two classes has no gradient; what is climbed lowers the margin of every point."""
    g = torch.Generator().manual_seed(0)
    weight, x, y = torch.randn(6, outputs_for(coding, 2), generator=g), torch.full((50, 6), 0.5), torch.arange(50) % 2
    start, moved = (perturb(lambda x: x @ weight, coding, Adversary(n, 0.1, 0.03), x, y, torch.arange(50)) for n in (0, 1))
    assert bool((margin(coding.scores(moved @ weight), y) > margin(coding.scores(start @ weight), y)).all())


@pytest.mark.parametrize("loss", [CrossEntropy(), SquareLoss(Simplex(radius=3.0))])
def test_the_compiled_attack_is_the_attack(loss):
    net, (x, y), made = tiny().train(), images(), []

    def compiled(function):
        made.append(function.__name__)
        return torch.compile(function, backend="aot_eager", dynamic=False, fullgraph=True)

    x, keys = (x.float() / 255).to(memory_format=torch.channels_last), start_keys(0, 0, torch.arange(100))
    plain, faster = (perturb(net, loss.link, Adversary(steps=3), x, y, keys, **how) for how in ({}, {"compiled": compiled}))
    torch.testing.assert_close(faster, plain)
    assert faster.stride() == plain.stride() == x.stride() and len(made) == 3


@pytest.mark.parametrize("loss", [CrossEntropy(), SquareLoss()])
def test_adversarial_training_helps_against_the_attack(loss):
    digits = load_digits()
    x, y = torch.tensor(digits.images * 15.9).to(torch.uint8).unsqueeze(1), torch.tensor(digits.target)
    adversary = Adversary(steps=3, eps=0.1, step_size=0.05)
    keys, attack = start_keys(9, 0, torch.arange(len(x))), dataclasses.replace(adversary, steps=10)
    robust = []
    for inside in (None, adversary):
        recipe = dataclasses.replace(SMALL, epochs=12, batch_size=64, augment=False, adversary=inside)
        one = Run(MLP(64, (64,), 10, generator=torch.Generator().manual_seed(0)), loss, recipe, 0, x, y)
        loop.train(one)
        moved = perturb(one.network, loss.link, attack, x.float() / 255, y, keys)
        robust.append((one.network(moved).argmax(1) == y).double().mean().item())
    assert robust[1] > robust[0] + 0.04


def test_uniform_numbers_from_keys():
    keys = torch.arange(1000)
    u = uniform(keys, 100)
    assert 0 <= u.min() and u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=0.005)
    assert u.var() == pytest.approx(1 / 12, abs=0.002)
    assert torch.corrcoef(u.T[:2])[0, 1].abs() < 0.1  # neighbouring numbers
    assert torch.corrcoef(u[:2])[0, 1].abs() < 0.3  # neighbouring keys
    assert torch.equal(uniform(keys[7:9], 100), u[7:9])  # a subset draws what the whole draws
    assert not torch.equal(start_keys(0, 1, keys), start_keys(1, 0, keys))


# ---- the step of the captured engine, uncaptured


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


def test_checkpoints_know_a_recipe_from_before_attacks_had_a_mode():
    made = [run(recipe=dataclasses.replace(SMALL, adversary=Adversary(3, mode=mode))) for mode in MODES]
    assert "mode" not in made[0].recipe.plain()["adversary"] and made[1].recipe.plain()["adversary"]["mode"] == "eval"
    assert made[0].fingerprint != made[1].fingerprint


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


def test_a_loss_that_becomes_infinite_ends_the_run_where_it_did_so():
    class Explodes(SquareLoss):
        calls = 0

        def forward(self, outputs, target):
            self.calls += 1
            return super().forward(outputs, target) * (float("inf") if self.calls == 9 else 1.0)

    falling = dataclasses.replace(SMALL, schedule="linear")
    with pytest.raises(loop.Diverged) as found:
        loop.train(run(loss=Explodes(), recipe=falling))
    steps, rates = 100 // 16, falling.lrs(1, 100 // 16)
    assert (found.value.epoch, found.value.step, found.value.lr) == (1, 8 - steps, rates[8 - steps])
    assert [row.epoch for row in found.value.curve] == [0]
    copied = pickle.loads(pickle.dumps(found.value))  # as it leaves a worker process
    assert vars(copied) == vars(found.value) and str(copied) == str(found.value)


def test_frozen_parameters_stay_as_they_are():
    one = run()
    first = next(one.network.parameters()).requires_grad_(False)
    before = first.clone()
    loop.train(one)
    assert torch.equal(first, before)


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


def test_a_run_says_what_it_is_made_of():
    with pytest.raises(TypeError, match=r"expected loss to be a loss of squareloss, .* got CrossEntropyLoss\(\)"):
        run(loss=nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match=r"expected recipe to be a Recipe, such as RECIPES\[\"fast\"\], got 'fast'"):
        run(recipe="fast")
    with pytest.raises(TypeError, match=r"expected path to be a pathlib\.Path, got 'a\.safetensors'"):
        run(path="a.safetensors")


def test_outputs_of_bytes_in_eval_mode():
    net, (x, _) = tiny().train(), images()
    got = loop.outputs_of(net, x, batch=30)
    assert net.training
    torch.testing.assert_close(got, net.eval()(x.float() / 255), rtol=1e-4, atol=1e-5)
    assert loop.outputs_of(nn.Linear(5, 2).bfloat16(), torch.rand(4, 5).bfloat16()).dtype == torch.float32


def test_mlp_on_tables_trains():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=g)
    y = (x[:, 0] > 0).long()
    one = Run(MLP(5, (16,), 2, generator=g), SquareLoss(), dataclasses.replace(SMALL, epochs=20), 0, x, y)
    assert loop.train(one)[-1].train_accuracy > 0.95
