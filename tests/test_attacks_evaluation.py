"""The ways in for users: AutoAttack as its authors call it, a table of attacks by radius, Gaussian noise."""

from __future__ import annotations

import copy
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

from attack_nets import Limited, digits
from squareloss import Classifier, Simplex, attacks, simplex
from squareloss.attacks import _common


class Embedded(nn.Module):
    """Reduced outputs as K scores."""

    def forward(self, outputs):
        return simplex.embed(outputs)


def test_the_front_door_people_know(net, points):
    x, y = points
    adversary = attacks.AutoAttack(net, norm="Linf", eps=0.15, attacks=["apgd-ce"])
    x_adv = adversary.run_standard_evaluation(x, y, bs=50)
    with torch.no_grad():
        assert torch.equal(net(x_adv).argmax(1) != y, adversary.result.broken)
    same = attacks.autoattack(net, x, y, 0.15, attacks=["apgd-ce"], batch_size=50)
    assert torch.equal(same.x_adv, x_adv)
    assert f"  apgd-ce ce broke {same.by_loss()['apgd-ce ce']}\n" in str(same)
    for wrong, message in (
        ({"version": "rand"}, "Unknown version 'rand'. Available: standard"),
        ({"norm": "L1"}, "Unknown norm 'L1'. Available: linf, l2"),
        ({"attacks": ["apgd"]}, "Unknown attack 'apgd'"),
        ({"eps": 8}, "expected eps > 0 and at most 1, got 8"),
    ):
        with pytest.raises(ValueError, match=message):  # at once, not when it is run
            attacks.AutoAttack(net, **{"eps": 0.1, **wrong})
    with pytest.raises(ValueError, match="Unknown attack 'apgd'"):
        attacks.autoattack(net, x, y, 0.1, attacks=["apgd"])


@pytest.mark.parametrize(("classes", "ranks"), [(3, [1, 2]), (10, [*range(1, 10)]), (100, [*range(1, 10)])])
def test_autoattack_aims_at_the_best_nine_other_classes_or_all(classes, ranks):
    stages = sys.modules["squareloss.attacks.autoattack"]._STAGES
    for name in ("apgd-t", "fab-t"):
        assert [round_.rank for round_ in stages[name](classes)] == ranks


def test_noise_is_clipped_to_the_box_only_if_asked():
    beyond = nn.Linear(1, 2)
    beyond.weight.data, beyond.bias.data = torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, -1e-6])  # class 1 beyond the box
    x, y = torch.ones(400, 1), torch.zeros(400, dtype=torch.long)
    free, clipped = (attacks.gaussian_noise(beyond.eval(), x, y, 0.1, clamp=clamp).accuracy for clamp in (False, True))
    assert free == pytest.approx([0.5], abs=0.1)
    assert clipped == [1.0]
    beyond.bias.data = torch.tensor([0.3, 0.0])  # class 1 above .3
    inside = attacks.gaussian_noise(beyond, x / 2, y + 1, 0.1, clamp=True).accuracy
    assert inside == pytest.approx([float(torch.special.ndtr(torch.tensor(2.0)))], abs=0.03)


def test_gaussian_noise_is_added_where_it_says(net):
    x, y = digits()[2], digits()[3]
    with torch.no_grad():
        clean = float((net(x).argmax(1) == y).float().mean())
    pixel = attacks.gaussian_noise(net, x, y, (0.0, 0.2, 0.8), draws=2)
    assert pixel.accuracy[0] == pytest.approx(clean)
    assert pixel.accuracy[0] > pixel.accuracy[1] > pixel.accuracy[2]
    standardised = attacks.gaussian_noise(net, x, y, (0.4, 1.6), channel_std=[0.5], draws=2, batch_size=17)
    assert standardised.accuracy == pytest.approx(pixel.accuracy[1:], abs=1e-2)
    assert standardised.correct.shape == (2, 2, len(x))
    alone, same = (attacks.gaussian_noise(net, x, y, std, draws=2) for std in (np.float64(0.2), torch.tensor(0.2)))
    assert same.accuracy == alone.accuracy
    for std in (math.nan, math.inf, -1.0, []):
        with pytest.raises(ValueError, match="standard deviations that are finite and not negative"):
            attacks.gaussian_noise(net, x, y, std)
    assert (alone.std, alone.accuracy) == ([0.2], pixel.accuracy[1:2])
    with pytest.raises(ValueError, match=r"expected channel_std of shape \(1,\)"):
        attacks.gaussian_noise(net, x, y, channel_std=[0.5, 0.5])
    for name in ("draws", "batch_size"):
        with pytest.raises(ValueError, match=f"expected {name} to be 1 or more, got 0"):
            attacks.gaussian_noise(net, x, y, **{name: 0})


def test_accuracy_under_noise_is_the_normal_distribution_of_the_margin():
    """Of a linear model; the noise of each channel is as wide as it is said to be, and new in every draw."""
    slope, width = torch.tensor([[1.0, -2.0, 0.5], [0.2, 0.1, -0.3]]), torch.tensor([0.1, 2.0])  # two channels of three pixels
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2)).eval()
    model[1].weight.data = torch.stack([slope.flatten(), torch.zeros(6)])
    model[1].bias.data = torch.tensor([0.3 - float(slope.sum()) / 2, 0.0])
    x, y = torch.full((3000, 2, 3), 0.5), torch.zeros(3000, dtype=torch.long)
    for channel_std, spread in ((width, (slope * width[:, None]).norm()), (None, slope.norm())):
        result = attacks.gaussian_noise(model, x, y, (0.3, 1.5), channel_std=channel_std, draws=3)
        expected = [float(torch.special.ndtr(0.3 / (std * spread))) for std in (0.3, 1.5)]
        assert result.accuracy == pytest.approx(expected, abs=0.02)
        one, two, three = result.correct[1].double()
        for a, b in ((one, two), (two, three), (three, one)):
            assert float((a * b).mean()) == pytest.approx(expected[1] ** 2, abs=0.04)
    again, other = (attacks.gaussian_noise(model, x, y, 1.5, seed=seed, batch_size=999) for seed in (0, 1))
    assert torch.equal(again.correct[0, 0], result.correct[1, 0]) and not torch.equal(other.correct, again.correct)


def test_a_table_of_attacks(net, points):
    x, y = points
    table = attacks.evaluate(net, x, y, [0.05, 0.15], attacks=["pgd-residual", "apgd-margin", "apgd-angle"], batch_size=60)
    rows = {row["attack"]: row["robust"] for row in table.rows()}
    stands = {eps: ~torch.stack([table.results[name, eps].broken for name in table.attacks]).any(0) for eps in table.eps}
    assert rows["minimum"] == [float(stands[eps].double().mean()) for eps in (0.05, 0.15)]
    assert [table.minimum(eps) for eps in (0.05, 0.15)] == rows["minimum"] and rows["minimum"][0] > rows["minimum"][1] > 0
    for name in table.attacks:
        assert all(a >= b for a, b in zip(rows[name], rows["minimum"], strict=True))
        assert rows[name][0] >= rows[name][1]
    assert str(table).splitlines()[1].split() == ["linf", "0.05", "0.15"]
    assert table.to_dict()["clean"] == table.clean
    with pytest.raises(ValueError, match="expected a radius of the table, 0.05, 0.15, got 8/255"):
        table.minimum(8 / 255)
    with pytest.raises(ValueError, match="Unknown attack 'pgd-hinge'. Available: .*LOSS is one of ce,"):
        attacks.evaluate(net, x, y, 0.1, attacks=["pgd-hinge"])
    for wrong in ({"eps": []}, {"attacks": []}, {"attacks": "pgd-ce"}):
        with pytest.raises(ValueError, match="expected one radius or more and a list of attacks, got eps="):
            attacks.evaluate(net, x, y, **{"eps": 0.1, **wrong})
    with pytest.raises(ValueError, match="expected eps > 0 and at most 1, got 8"):
        attacks.evaluate(Limited(net, 0), x, y, [0.1, 8])  # before the first attack has run
    with pytest.raises(ValueError, match="expected a coding for 'apgd-ce@eta'"):
        attacks.evaluate(net, x, y, 0.1, attacks=["apgd-ce@eta"])
    training = copy.deepcopy(net).train()
    with pytest.raises(ValueError, match="expected a model in eval mode"):  # and it is not put there
        attacks.evaluate(training, x, y, 0.1, attacks=["apgd-ce@eta"], coding=Simplex())
    with pytest.raises(ValueError, match="expected a surrogate with 10 classes, got 7"):
        other = nn.Sequential(nn.Flatten(), nn.Linear(64, 7)).eval()
        attacks.evaluate(net, x[:5], y[:5], 0.1, attacks=["worst_case"], surrogate=other)
    for eps in (np.float32(0.15), torch.tensor(0.15), torch.tensor([0.15]), [0.15, 0.15]):
        assert len(attacks.evaluate(net, x[:5], y[:5], eps, attacks=["pgd-ce"]).eps) == 1


def test_a_table_is_saved_attack_by_attack_and_begun_again_where_it_was(points, tmp_path):
    x, net = points[0][:10], nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    net[1].weight.data = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    y = net(x).argmax(1)
    names, coding = ["pgd-ce", "pgd-ce@eta", "pgd-ce_targeted", "apgd-margin_targeted", "pgd-residual"], Simplex(radius=0.5)
    run = lambda model: attacks.evaluate(model, x, y, [0.05, 0.15], attacks=names, coding=coding, save=tmp_path / "table")
    whole = run(counted := Limited(net, None))
    assert len(list((tmp_path / "table").iterdir())) == len(names) * 2
    again = run(read := Limited(net, None))
    assert read.counter.calls < 0.2 * counted.counter.calls
    for key, result in whole.results.items():
        assert torch.equal(result.x_adv, again.results[key].x_adv) and result.by_loss() == again.results[key].by_loss()
    with pytest.raises(ValueError, match="saved with another model"):  # eta by another coding
        attacks.evaluate(Limited(net, None), x, y, 0.05, attacks=["pgd-ce@eta"], coding=Simplex(), save=tmp_path / "table")
    assert not torch.equal(whole.results["pgd-ce", 0.15].x_adv, whole.results["pgd-ce@eta", 0.15].x_adv)
    for name, attack, own in (
        ("pgd-ce_targeted", attacks.pgd, {"targets": 9}),
        ("apgd-margin_targeted", attacks.apgd_targeted, {"targets": 9}),
        ("pgd-residual", attacks.pgd, {"coding": coding}),
    ):
        for eps in (0.05, 0.15):
            alone, found = attack(net, x, y, eps, loss=name.split("-")[1], **own), whole.results[name, eps]
            assert torch.equal(alone.x_adv, found.x_adv) and torch.equal(alone.forwards, found.forwards)


def test_eta_of_a_classifier_with_reduced_outputs(points):
    x, _ = points
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 9)).eval()
    network[1].weight.data = torch.randn(9, 64, generator=torch.Generator().manual_seed(0)) * 10
    reduced = Classifier(network, Simplex(reduced=True)).eval()
    plain = Classifier(nn.Sequential(network, Embedded()), Simplex()).eval()  # the same scores
    names = ["pgd-ce@eta", "pgd-softmax_probability"]
    y = plain(x).argmax(1)
    found = [attacks.evaluate(model, x, y, 0.02, attacks=names, coding=model.link) for model in (reduced, plain)]
    assert found[0].clean == 1
    assert [row["robust"] for row in found[0].rows()] == [row["robust"] for row in found[1].rows()]


def test_eta_of_a_model_leaves_its_parts_in_their_modes(net):
    model = nn.Sequential(nn.BatchNorm2d(1), net).eval()
    model[0].train()
    assert not attacks.EtaScores(model, Simplex()).training
    assert model[0].training and not net.training


def test_radii_are_written_as_people_write_them():
    written = {0.05: "0.05", 0.1: "0.1", 0.2: "0.2", 0.01: "0.01", 0.1 + 0.2: "0.3", 1.0: "1", 0.123456: "0.123456"}
    written |= {n / 255: f"{n:g}/255" for n in (0.5, 1, 1.25, 2, 8, 16, 128)}
    assert {eps: _common.eps_text(eps) for eps in written} == written
