"""Training on adversarial examples: the attack within a step."""

import dataclasses

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from squareloss import CrossEntropy, OneHot, Simplex, SquareLoss
from squareloss.attacks.losses import angle, ce, margin
from squareloss.codings import outputs_for
from squareloss.lab.training import loop
from squareloss.lab.training.adversarial import attacked, perturb, start_keys, uniform
from squareloss.lab.training.loop import Run
from squareloss.lab.training.recipes import MODES, Adversary
from squareloss.models import MLP
from training_runs import SMALL, images, run, tiny


def test_starts_of_attacks_differ_by_run_epoch_and_sample():
    keys = [start_keys(seed, epoch, torch.arange(50)) for seed in range(4) for epoch in range(4)]
    assert len(torch.cat(keys).unique()) == 4 * 4 * 50


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
