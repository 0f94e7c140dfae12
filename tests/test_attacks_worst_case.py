"""The worst case for square loss."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from attack_nets import cnn, digits, train, trained
from squareloss import Simplex, SquareLoss, attacks
from squareloss.attacks import _common
from squareloss.attacks.shrinking import ShrinkRound

RUN = sys.modules["squareloss.attacks._run"]
worst_case = sys.modules["squareloss.attacks.worst_case"]


@pytest.fixture(scope="module", params=[1.0, 10.0], ids=["radius 1", "radius K"])
def square_net(request):
    x, y, _, _ = digits()
    coding = Simplex(radius=request.param)
    return train(cnn(), x, y, epochs=15, loss=SquareLoss(coding, scale=1.0 if request.param > 1 else 20.0)), coding


def test_the_worst_case_is_no_weaker_than_autoattack_at_a_tenth_of_its_passes(square_net):
    model, coding = square_net
    x, y = digits()[2][:60], digits()[3][:60]
    worst = attacks.worst_case(model, x, y, 0.05, report=False).result
    auto = attacks.autoattack(model, x, y, 0.05, attacks=["apgd-ce", "apgd-t"])
    stands = int((~auto.broken).sum())
    assert stands > 5
    assert int((~worst.broken).sum()) <= stands + 1  # one point is within the luck of random starts
    assert worst.passes < 0.1 * (auto.passes + (2700 + 5000) * stands)  # what FAB and Square Attack would add
    residual = attacks.pgd(model, x, y, 0.05, loss="residual", coding=coding, steps=40)
    assert worst.robust_accuracy < residual.robust_accuracy


class Shrinking(nn.Module):
    """One direction of the input scales all scores down, and so brings the margin down; another one changes the class."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x):
        down, across = (x[:, i] - 0.2 for i in (0, 1))
        scale = (1 - 5 * down).clamp_min(0.02)
        return scale.unsqueeze(1) * torch.stack([torch.ones_like(down), 2 * across, -across, -1 - across], 1)


def test_a_network_that_shrinks_its_scores_does_not_fool_the_worst_case():
    x, y = torch.full((32, 3), 0.2), torch.zeros(32, dtype=torch.int64)
    by_margin = attacks.pgd(Shrinking(), x, y, 0.6, loss="margin", norm="l2", steps=50)
    assert by_margin.robust_accuracy > 0.2
    assert attacks.worst_case(Shrinking(), x, y, 0.6, norm="l2", report=False).result.robust_accuracy == 0


@settings(max_examples=20)
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10), seed=st.integers(0, 100))
def test_relative_margins_have_the_sign_of_the_margin_and_no_scale(scale, shift, seed):
    g = torch.Generator().manual_seed(seed)
    scores, labels = torch.randn(6, 5, generator=g, dtype=torch.float64), torch.randint(5, (6,), generator=g)
    margin = _common.relative_margin(scores, labels)
    assert torch.equal(margin > 0, _common.true_margin(scores, labels) > 0)
    torch.testing.assert_close(_common.relative_margin(scale * scores + shift, labels), margin)


def test_cross_entropy_of_normalised_scores_knows_no_scale_and_holds_the_length():
    g = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(6, 5, generator=g, dtype=torch.float64), torch.randint(5, (6,), generator=g)
    length = (scores - scores.mean(1, keepdim=True)).norm(dim=1, keepdim=True)
    goal, sharp = worst_case.normalised_ce(20.0), 20 * scores / length
    torch.testing.assert_close(goal(scores, labels, labels), nn.functional.cross_entropy(sharp, labels, reduction="none"))
    torch.testing.assert_close(goal(7 * scores + 3, labels, labels), goal(scores, labels, labels))
    (slope,) = torch.autograd.grad(goal(scores.requires_grad_(), labels, labels).sum(), scores)
    torch.testing.assert_close(slope, 20 / length * (sharp.softmax(1) - nn.functional.one_hot(labels, 5)))


def test_of_two_classes_the_relative_margin_is_the_margin():
    scores = torch.tensor([[3.0, 1.0], [0.5, 0.25], [1.0, 2.0]])  # over its length it would be the same number for all
    assert _common.relative_margin(scores, torch.tensor([0, 0, 0])).tolist() == [2.0, 0.25, -1.0]


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_relative_margins_keep_their_sign_where_squares_leave_float32(scale):
    scores = torch.tensor([[1.0, 0.5, -2.0], [0.5, 1.0, -2.0]]) * scale
    margin = _common.relative_margin(scores, torch.tensor([0, 0]))
    assert margin[0] > 0 > margin[1]


def test_cross_entropy_of_normalised_scores_has_a_gradient_where_squares_leave_float32():
    small = torch.tensor([[1.0, 0.5, -2.0], [0.5, 1.0, -2.0]], requires_grad=True)
    large, labels = (small.detach() * 1e25).requires_grad_(), torch.tensor([0, 0])
    values = [worst_case.normalised_ce(3.0)(scores, labels, labels) for scores in (small, large)]
    slopes = [torch.autograd.grad(value.sum(), scores)[0] for value, scores in zip(values, (small, large), strict=True)]
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(slopes[1] * 1e25, slopes[0])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("classes", [2, 3, 4, 50])
def test_of_a_linear_network_the_worst_case_is_known(classes, norm):
    g = torch.Generator().manual_seed(0)
    model = nn.Linear(20, classes).requires_grad_(False).eval()
    model.weight.normal_(generator=g)
    model.bias.normal_(generator=g)
    x = 0.3 + 0.4 * torch.rand(60, 20, generator=g)
    y = model(x).argmax(1)
    leads = model(x).gather(1, y[:, None]) - model(x)  # (n, K)
    gaps = model.weight[y][:, None] - model.weight  # (n, K, D)
    lengths = gaps.abs().sum(2) if norm == "linf" else gaps.square().sum(2).sqrt()
    nearest = (leads / lengths).scatter(1, y[:, None], torch.inf).amin(1)
    eps = min(float(nearest.median()), 0.3)  # inside the box
    result = attacks.worst_case(model, x, y, eps, norm=norm, report=False).result
    clear = (nearest / eps - 1).abs() > 0.02
    assert 10 < int(result.broken.sum()) < 50
    assert torch.equal(result.broken[clear], (nearest < eps)[clear])


def test_what_a_point_that_stands_costs_is_what_the_help_says():
    rounds = [r for stage in worst_case.stages(10, None, (3.0, 30.0), restarts=3) for r in stage.rounds]
    costs = {r: sum(r.costs[:2]) + r.steps * sum(r.costs[2:]) for r in rounds}
    least, most = (1 + sum(c for r, c in costs.items() if r.bar >= bar) for bar in (torch.inf, 0))
    said = f"{10 * round(least / 10)} to {10 * round(most / 10)} passes"
    assert said in " ".join(attacks.worst_case.__doc__.split())


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_round_of_the_worst_case_repeats_another(classes):
    stages = worst_case.stages(classes, None, (3.0, 30.0), restarts=2)
    rounds = [(r.attack, r.loss, r.restart) for stage in stages for r in stage.rounds]
    assert len(set(rounds)) == len(rounds)
    aimed = [r.targets for stage in stages for r in stage.rounds if isinstance(r, worst_case.FocusRound)]
    assert aimed == [classes - 1] * 2


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_ball_shrinks_where_the_class_is_lost_and_nothing_outside_the_one_that_counts_counts(points, norm):
    seen, eps = [], 0.02 if norm == "linf" else 0.1

    class Noted(ShrinkRound):
        def step(self, problem, state, i):
            before = {key: state[key].clone() for key in ("radius", "lost", "id")}
            super().step(problem, state, i)
            far = _common.distance(state["tried"] - state["x"], norm)
            seen.append((i, before, state["radius"].clone(), far, state["margin"].clone()))

    x, y = points
    round_ = Noted(attacks.losses.objective("margin"), 40)
    result = RUN.attack(trained("normal"), x, y, eps, lambda _: [RUN.Stage("wide", (round_,))], {"norm": norm})
    assert 0 < result.attack.count("shrinking") < len(x)
    first = seen[0][2] / eps
    torch.testing.assert_close(first, torch.full_like(first, 8.0))
    torch.testing.assert_close(seen[-1][2], torch.full_like(seen[-1][2], eps))
    for i, before, radius, far, margin in seen:
        falls = before["lost"] if i >= 3 else torch.zeros_like(before["lost"])
        expected = torch.where(falls, 0.7 * before["radius"], before["radius"])
        torch.testing.assert_close(radius, expected.clamp(eps, eps * 8 ** max(0.0, 1 - i / 28)))
        assert (far <= radius * (1 + 1e-4) + 1e-6).all()
        assert torch.equal(margin == torch.inf, far > eps * (1 + 1e-5) + 1e-7)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_of_a_linear_network_the_shrinking_ball_finds_the_nearest_boundary(norm):
    torch.manual_seed(0)  # of the weights: a boundary well within the box
    g = torch.Generator().manual_seed(1)
    model = nn.Linear(20, 2).requires_grad_(False).eval()
    x = 0.4 + 0.2 * torch.rand(60, 20, generator=g)
    y = model(x).argmax(1)
    gap = model.weight[0] - model.weight[1]
    scores = model(x)
    nearest = (scores[:, 0] - scores[:, 1]).abs() / (gap.abs().sum() if norm == "linf" else gap.norm())
    eps = float(nearest.median())
    round_ = ShrinkRound(attacks.losses.objective("margin"), 40)
    result = RUN.attack(model, x, y, eps, lambda _: [RUN.Stage("wide", (round_,))], {"norm": norm})
    clear = (nearest / eps - 1).abs() > 0.02
    assert torch.equal(result.broken[clear], (nearest < eps)[clear])


def test_focus_tries_every_class_before_it_returns_to_the_closest(points):
    aims = []

    class Noted(worst_case.FocusRound):
        def _aim(self, state, number):
            aims.append((super()._aim(state, number), state["reached"].clone(), state["order"]))
            return aims[-1][0]

    x, y = (t[:20] for t in points)
    round_ = Noted(attacks.losses.objective("angle", targeted=True), 9, 3, 5)
    result = RUN.attack(trained("normal"), x, y, 1e-4, lambda _: [RUN.Stage("focus", (round_,))], {})
    assert int(result.broken.sum()) == result.attack.count("clean")  # so that nobody left on the way
    tried = torch.stack([aim for aim, _, _ in aims], 1)
    right = y[~result.broken]
    order = aims[-1][2]
    assert torch.equal(tried[:, 0], order[:, -2])  # the best wrong class of the clean scores
    assert all(set(row[:9].tolist()) == set(range(10)) - {int(label)} for row, label in zip(tried, right, strict=True))
    assert torch.equal(tried[:, 9], aims[9][1].argmax(1))


def test_the_worst_case_transfers_from_another_network(net, points):
    x, y = points
    model = trained("normal")
    with_other = attacks.worst_case(net, x, y, 0.15, surrogate=model, report=False).result
    without = attacks.worst_case(net, x, y, 0.15, report=False).result
    assert abs(int(with_other.broken.sum()) - int(without.broken.sum())) <= 2
    with pytest.raises(ValueError, match="expected a surrogate with 10 classes, got 12"):
        attacks.worst_case(net, x, y, 0.15, surrogate=cnn(classes=12).eval(), report=False)


def test_a_transfer_goes_on_from_the_middle(net, points, tmp_path, monkeypatch):
    x, y, file = points[0][:12], points[1][:12], tmp_path / "run.safetensors"
    run = lambda **options: attacks.worst_case(net, x, y, 0.12, surrogate=trained("normal"), report=False, **options).result
    expected, step = run(), worst_case.TransferRound.step

    def stop(self, problem, state, i):
        if i == 4:
            raise KeyboardInterrupt
        step(self, problem, state, i)

    with monkeypatch.context() as patched:
        patched.setattr(RUN, "SAVE_SECONDS", 0.0)
        patched.setattr(worst_case.TransferRound, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(save=file)
    with safe_open(file, "pt") as kept:
        assert json.loads(kept.metadata()["header"])["step"] == 4 and "state.gradient elsewhere" in kept.keys()  # noqa: SIM118
    resumed = run(save=file)
    for name in ("broken", "step", "forwards", "backwards", "x_adv"):
        assert torch.equal(getattr(resumed, name), getattr(expected, name)), name


class Sure(nn.Module):
    """The same gradients, but never fooled about one class."""

    def __init__(self, model: nn.Module, label: int) -> None:
        super().__init__()
        self.model, self.label = model, label

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.model(x)
        return scores + 100.0 * nn.functional.one_hot(torch.tensor(self.label), scores.shape[1])


def test_transferred_examples_are_judged_by_the_network_attacked(points):
    model, label = trained("normal"), int(points[1].mode().values)
    x, y = (t[points[1] == label] for t in points)
    sure, goal = worst_case.prepare(Sure(model, label).eval(), x, y), attacks.losses.objective("margin")
    rounds = worst_case.TransferRound(sure, goal, 10), worst_case.APGDRound(goal, 10, attack="transfer")
    there, here = (RUN.attack(model, x, y, 0.1, lambda _, r=r: [RUN.Stage("one", (r,))], {}) for r in rounds)
    assert 0 < int(here.broken.sum()) < len(x)
    assert torch.equal(there.broken, here.broken) and torch.equal(there.step, here.step)
    stood = ~there.broken
    assert set((there.forwards - here.forwards)[stood].tolist()) == {11}, "each try is looked at by both networks"


def test_scores_can_be_attacked_on_the_scale_of_eta(square_net, points):
    model, coding = square_net
    table = attacks.evaluate(
        model, *points, 0.05, attacks=["apgd-ce", "apgd-ce@eta", "apgd-softmax_probability"], coding=coding
    )
    eta, softmax = (table.results[name, 0.05] for name in ("apgd-ce@eta", "apgd-softmax_probability"))
    assert float((eta.broken == softmax.broken).float().mean()) > 0.97  # the same loss by two ways
    assert table.minimum(0.05) <= min(r.robust_accuracy for r in table.results.values())
