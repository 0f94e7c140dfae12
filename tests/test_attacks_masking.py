"""The masking report, which says whether an attack that fails may be trusted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from attack_nets import cnn, digits, train, trained
from squareloss import SquareLoss, attacks
from squareloss.attacks.masking import growing
from squareloss.models import MLP


@pytest.fixture(scope="module")
def two_classes():
    x, y, tests, labels = digits()
    few, kept = y < 2, labels < 2
    return train(cnn(classes=2), x[few], y[few], loss=SquareLoss()), tests[kept], labels[kept]


class Scaled(nn.Module):
    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor
        self.eval()

    def forward(self, x):
        return self.model(x) * self.factor


class Collapsed(nn.Module):
    """Scores pulled towards the nearest vertex of the simplex: runners-up tie."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x):
        f = self.model(x)
        return torch.where(f == f.amax(1, keepdim=True), f, 0.01 * f)


def test_the_masking_report_tells_a_hidden_gradient_from_none(net, points):
    x, y = points
    honest = attacks.masking_report(net, x, y, 0.1, queries=200)
    assert honest.accuracy_by_eps[-1] == 0
    assert honest.eps[-1] == 1
    assert all(a >= b for a, b in zip(honest.accuracy_by_eps, honest.accuracy_by_eps[1:], strict=False))
    assert honest.small_gradient["ce"] == 0
    assert not any("gradient" in sign or "stays" in sign for sign in honest.signs())
    saturated = attacks.masking_report(Scaled(net, 1000.0), x, y, 0.1, queries=50)
    assert saturated.zero_gradient["ce"] > 0.5
    assert saturated.small_gradient["margin"] == 0
    assert any("gradient of ce is nearly zero" in sign for sign in saturated.signs())
    collapsed = attacks.masking_report(Collapsed(net), x, y, 0.1, queries=50)
    assert collapsed.tied > 0.5 > honest.tied
    assert any("DLR is blind" in sign for sign in collapsed.signs())
    json.dumps(collapsed.to_dict())
    assert "masking report on 60 points" in str(collapsed)


def test_the_masking_report_of_two_classes_says_nothing_of_losses_that_need_three(two_classes):
    report = attacks.masking_report(*two_classes, 0.2, points=40, queries=20)
    assert list(report.small_gradient) == ["ce", "margin"] and not any("gradient" in sign for sign in report.signs())
    net, x, y = two_classes
    same = attacks.apgd(net, x[:40], y[:40], 0.2, loss="margin", steps=20)
    assert report.accuracy_by_eps[0] == pytest.approx(same.robust_accuracy)


def test_the_masking_report_of_points_that_are_all_wrong_has_numbers(two_classes):
    net, x, _ = two_classes
    with torch.no_grad():
        wrong = 1 - net(x).argmax(1)
    report = attacks.masking_report(net, x, wrong, 0.2, points=10, queries=5)
    assert set(report.accuracy_by_eps) == {0.0} == {report.white_box, report.black_box}
    assert report.zero_gradient == report.small_gradient == {"ce": 0.0, "margin": 0.0}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_labels_of_any_whole_type_are_reported_on(two_classes, dtype):
    net, x, y = two_classes
    expected, found = (attacks.masking_report(net, x, labels, 0.2, points=20, queries=20) for labels in (y, y.to(dtype)))
    assert found == expected


def test_radii_and_seeds_of_numpy_and_torch_are_those_of_python(two_classes):
    net, x, y = two_classes
    plain = lambda found: json.dumps([{**found.result.to_dict(), "seconds": 0}, found.report.to_dict()])
    expected = attacks.worst_case(net, x[:20], y[:20], 0.125, seed=3)
    for eps, seed in ((np.float32(0.125), np.int64(3)), (torch.tensor(0.125), np.int32(3))):
        found = attacks.worst_case(net, x[:20], y[:20], eps, seed=seed)
        assert plain(found) == plain(expected) and "0.125" in str(found)


def test_the_report_of_the_worst_case_is_that_of_its_ball():
    g = torch.Generator().manual_seed(0)
    model, x, y = MLP(9, (), 3, generator=g).eval(), torch.rand(6, 9, generator=g), torch.tensor([0, 1, 2] * 2)
    worst = attacks.worst_case(model, x, y, 0.5, norm="l2", seed=3)
    found = worst.report
    assert str(worst) == f"{worst.result}\n{found}"
    assert found == attacks.masking_report(model, x, y, 0.5, norm="l2", seed=3) and found.eps == [0.5, 1.0, 2.0, 3.0]


def test_masking_is_seen_when_only_the_black_box_gets_through(points):
    model = trained("normal")
    report = attacks.masking_report(Staircase(model), *points, 0.2, queries=400)
    assert report.only_black_box > 0.05
    assert any("black box" in sign for sign in report.signs())


class Staircase(nn.Module):
    """Inputs rounded on the way in, with a gradient that leads nowhere."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x):
        return self.model((x * 10).round() / 10) + 1e-6 * x.flatten(1)[:, :10]


FINE = attacks.MaskingReport(
    points=100, eps=[0.1, 1.0], accuracy_by_eps=[0.5, 0.0], steps=[40, 80], accuracy_by_steps=[0.509, 0.5],
    white_box=0.5, black_box=0.6, only_black_box=0.005, zero_gradient={"ce": 0.9}, small_gradient={"ce": 0.05, "margin": 0.05},
    tied=0.05, tie_gap=0.5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("found", "sign"),
    [
        ({}, None),
        ({"accuracy_by_eps": [0.5, 0.001]}, "accuracy stays at 0.1% at eps 1,"),
        ({"accuracy_by_steps": [0.52, 0.5]}, "more steps still help: 52.0% after 40, 50.0% after 80"),
        ({"only_black_box": 0.006}, "the black box breaks 0.6% of the points, which gradients leave"),
        ({"small_gradient": {"ce": 0.05, "margin": 0.06}}, "the gradient of margin is nearly zero on 6.0% of the points"),
        ({"tied": 0.06}, "DLR is blind to the true class on 6.0% of the points"),
    ],
)
def test_each_sign_of_masking_is_told_alone(found, sign):
    report = replace(FINE, **found)
    assert [sign in each for each in report.signs()] == [True] * (sign is not None)
    assert str(report).splitlines()[-1].startswith(f"  sign: {sign or 'none'}")


def test_radii_double_up_to_every_corner_of_the_box():
    assert growing(0.3, "linf", 48) == [0.3, 0.6, 1.0]
    assert growing(0.3, "l2", 49) == [0.3, 0.6, 1.2, 2.4, 4.8, 7.0]
    assert growing(1.0, "linf", 48) == [1.0]


def test_ties_are_counted_among_the_points_that_are_right():
    """The scores are the points themselves."""
    tied, apart = [[1.0, 0.5, 0.5, 0.2], [1.0, 0.51, 0.5, 0.0]], [[1.0, 0.6, 0.5, 0.0], [0.9, 0.8, 0.1, 0.0]]
    wrong = [[0.2, 0.9, 0.9, 0.2]] * 3
    x = torch.tensor(tied + apart + wrong)
    report = attacks.masking_report(nn.Identity().eval(), x, torch.zeros(7, dtype=torch.long), 0.01, queries=1)
    assert report.tied == 0.5 and report.tie_gap == pytest.approx(0.02, rel=1e-4)


class Steps(nn.Module):
    """The first of three classes; its scores rise where x is above .5, hardly from .25 on, and not at all below."""

    def forward(self, x):
        return torch.tensor([2.0, 1.0, 0.0]) + (x - 0.5).relu() + 1e-10 * (x - 0.25).relu()


def test_gradients_are_zero_or_nearly_zero_where_they_are():
    x = torch.tensor([0.9, 0.8, 0.4, 0.3, 0.2, 0.7, 0.1, 0.1]).unsqueeze(1).repeat(1, 3)
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])  # the last three are wrong
    report = attacks.masking_report(Steps().eval(), x, y, 0.01, queries=1)
    assert report.zero_gradient == dict.fromkeys(("ce", "margin", "angle", "dlr"), 1 / 5)
    assert report.small_gradient == dict.fromkeys(("ce", "margin", "angle", "dlr"), 3 / 5)


class Hidden(nn.Module):
    """The second class where the mean of the input is above .55, which the gradient does not tell."""

    def forward(self, x):
        return torch.stack([torch.full((len(x),), 0.55), x.mean(1).detach() + 0 * x[:, 0]], 1)


def test_shares_of_the_black_box_are_of_all_points_looked_at():
    """Of ten points two are wrong, five fall to squares alone, two stand, and one is not looked at."""
    x = torch.tensor([0.9] * 2 + [0.5] * 5 + [0.2] * 2 + [0.5]).unsqueeze(1).repeat(1, 64)
    report = attacks.masking_report(Hidden().eval(), x, torch.zeros(10, dtype=torch.long), 0.1, points=9, queries=1000)
    assert report.points == 9 and report.accuracy_by_steps == [pytest.approx(7 / 9)] * 5
    assert (report.white_box, report.black_box, report.only_black_box) == pytest.approx((7 / 9, 2 / 9, 5 / 9))
