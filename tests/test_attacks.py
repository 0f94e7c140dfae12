"""Attacks: exact verdicts on linear models, records that add up, results that depend on nothing they should not."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import ClassVar

import pytest
import torch
from torch import nn

from attack_nets import cnn, digits
from squareloss import OneHot, attacks
from squareloss.attacks import _common, _random
from squareloss.attacks.apgd import APGDRound, checks
from squareloss.attacks.fab import to_hyperplane
from squareloss.attacks.square_attack import SquareRound
from squareloss.models import MLP

EPS = {"linf": 0.15, "l2": 0.75}
SMALL = {
    "pgd": lambda *a, **k: attacks.pgd(*a, steps=10, restarts=2, **k),
    "apgd": lambda *a, **k: attacks.apgd(*a, steps=12, **k),
    "apgd-t": lambda *a, **k: attacks.apgd_targeted(*a, steps=8, targets=3, **k),
    "fab-t": lambda *a, **k: attacks.fab_targeted(*a, steps=8, targets=3, restarts=2, **k),
    "square": lambda *a, **k: attacks.square_attack(*a, queries=150, **k),
    "worst_case": lambda *a, **k: attacks.worst_case(*a, report=False, **k).result,
}


# geometry and randomness


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_projection_ends_in_ball_and_box_and_stays_there(norm):
    g = torch.Generator().manual_seed(0)
    x, z = torch.rand(40, 3, 5, 5, generator=g), torch.randn(40, 3, 5, 5, generator=g)
    once = _common.project(z, x, 0.3, norm)
    assert bool(_common.inside(once, x, 0.3, norm).all())
    torch.testing.assert_close(_common.project(once, x, 0.3, norm), once)
    if norm == "linf":  # the nearest point, coordinate by coordinate
        expected = z.clamp(0, 1).maximum(x - 0.3).minimum(x + 0.3).clamp(0, 1)
        torch.testing.assert_close(once, expected)


def test_inside_sees_a_point_just_outside():
    x = torch.full((3, 4), 0.5)
    moved = x + torch.tensor([[0.1, 0, 0, 0], [0.1001, 0, 0, 0], [0.6, 0, 0, 0]])
    assert _common.inside(moved, x, 0.1, "linf").tolist() == [True, False, False]
    assert _common.inside(moved, x, 1.0, "l2").tolist() == [True, True, False]  # the last leaves the box


def test_draws_belong_to_the_example():
    draws, ids = _random.PerExample(7), torch.arange(1000)
    whole = draws.uniform(ids, ("attack", 3), (4, 5))
    some = torch.tensor([999, 3, 500])
    assert torch.equal(draws.uniform(some, ("attack", 3), (4, 5)), whole[some])
    for other in (("attack", 4), ("other", 3), ("attack", 3, 0)):
        assert (
            abs(float(torch.corrcoef(torch.stack([whole.flatten(), draws.uniform(ids, other, (4, 5)).flatten()]))[0, 1])) < 0.03
        )
    assert float(whole.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(whole.var()) == pytest.approx(1 / 12, abs=0.005)
    neighbours = torch.stack([whole[:-1].flatten(), whole[1:].flatten()])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.03
    normal = draws.normal(ids, ("n",), (20,))
    assert float(normal.mean()) == pytest.approx(0, abs=0.03)
    assert float(normal.var()) == pytest.approx(1, abs=0.05)
    assert float(normal.abs().max()) > 3


def test_published_draws_are_torch_s():
    draws, ids = _random.Published(3), torch.arange(5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = [
            torch.rand(5, 2, 3),
            torch.randn(5, 20),
            torch.cat([torch.rand(1), torch.rand(1), torch.rand([3, 1, 1]).flatten()]),
        ]
    assert torch.equal(draws.uniform(ids, (), (2, 3)), expected[0])
    assert torch.equal(draws.normal(ids, (), (20,)), expected[1])
    assert torch.equal(draws.numbers(5, torch.device("cpu")), expected[2])


def test_auto_pgd_checks_its_step_where_the_paper_does():
    assert list(checks(100)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert all(gap >= 1 for gap in checks(3).values())


def climb(start, x, loss, eps, norm):
    """The points that 100 steps of Auto-PGD see, one point at a time, as the paper has them; the box is far."""

    def ball(z):
        move = z - x
        return x + (move.clamp(-eps, eps) if norm == "linf" else move * min(1.0, eps / float(move.norm())))

    def look(z):
        z = z.clone().requires_grad_()
        value = loss(z)
        (slope,) = torch.autograd.grad(value, z)
        return float(value.detach()), slope.sign() if norm == "linf" else slope / slope.norm()

    z = before = start
    value, uphill = look(z)
    top, last_top, size, rises, halved, seen, last_check = (value, z, uphill), value, 2 * eps, 0, True, [start], 0
    value = 0.0  # what the published code compares the first step with
    for step in range(1, 101):
        moved = ball(z + size * uphill)
        z, before = moved if step == 1 else ball(z + 0.75 * (moved - z) + 0.25 * (z - before)), z
        seen.append(z)
        last_value, (value, uphill) = value, look(z)
        rises += value > last_value
        top = (value, z, uphill) if value > top[0] else top
        if step in (22, 41, 57, 70, 80, 87, 93, 99):
            halved = rises <= 0.75 * (step - last_check) or (not halved and last_top >= top[0])
            size, (z, uphill) = (size / 2, top[1:]) if halved else (size, (z, uphill))
            last_top, rises, last_check = top[0], 0, step
    return torch.stack(seen)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_auto_pgd_step_by_step(norm):
    """The scores are the points themselves, the loss has many hills, and no point breaks."""
    x = 0.4 + 0.1 * torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0] += 0.3
    hills, seen = torch.tensor([90.0, 70.0, 50.0, 30.0], dtype=torch.float64), []
    loss = lambda z: (hills * z).sin().sum(-1) + 3 * z.sum(-1)

    def watched(scores, labels):
        seen.append(scores.detach().clone())
        return loss(scores)

    result = attacks.apgd(nn.Identity().eval(), x, torch.zeros(3, dtype=torch.long), 0.05, norm=norm, loss=watched)
    assert not result.broken.any()
    ours = torch.stack(seen, 1)
    for i in range(3):
        torch.testing.assert_close(ours[i], climb(ours[i, 0], x[i], loss, 0.05, norm), atol=1e-5, rtol=0)


def test_square_sides_follow_the_published_schedule():
    sides = [SquareRound(5000).side(i, 32, 32, "linf") for i in (0, 10, 11, 51, 201, 501, 1001, 2001, 4001)]
    assert sides == [round(math.sqrt(0.8 / 2**k * 1024)) for k in (0, 0, 1, 2, 3, 4, 5, 6, 7)]
    assert all(SquareRound(5000).side(i, 32, 32, "l2") % 2 == 1 for i in (0, 11, 51, 4001))


class Curved(nn.Module):
    """Two scores of five coordinates, neither of them linear; notes every point it is asked about."""

    seen: ClassVar[list[torch.Tensor]] = []  # of the class, since attacks copy the network

    def forward(self, x):
        self.seen.append(x.detach().clone())
        slope = torch.linspace(-1, 1, 5, dtype=x.dtype)
        return torch.stack([x.square() @ -slope, (3 * x).sin() @ slope + 0.1], 1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fab_step_by_step(norm):
    """As the paper has it, far from the box: projections in closed form, biased to the point, a little beyond, and pulled back.

    The ball is so small that no point breaks.
    """
    model = Curved().eval()
    x = 0.2 + 0.6 * torch.rand(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = model(x).argmax(1)
    attacks.fab_targeted(model, x, y, 1e-3, norm=norm, steps=6)
    seen = [(z.clone(), tried.clone()) for z, tried in zip(model.seen[-12::2], model.seen[-11::2], strict=True)]
    length = lambda move: move.abs().amax(1, keepdim=True) if norm == "linf" else move.norm(dim=1, keepdim=True)
    z, pulled = x, 0
    for ours, tried in seen:
        torch.testing.assert_close(ours, z, atol=1e-6, rtol=0)
        at = z.clone().requires_grad_()
        scores = model(at)
        gap = scores.gather(1, 1 - y[:, None]) - scores.gather(1, y[:, None])  # (8, 1): zero on the boundary
        (w,) = torch.autograd.grad(gap.sum(), at)
        step = w.sign() / w.abs().sum(1, keepdim=True) if norm == "linf" else w / w.square().sum(1, keepdim=True)
        gap = gap.detach()
        from_z, from_x = -gap * step, -(gap + (w * (x - z)).sum(1, keepdim=True)) * step
        share = (length(from_z) / (length(from_z) + length(from_x))).clamp(max=0.1)
        z = (1 - share) * (z + 1.05 * from_z) + share * (x + 1.05 * from_x)
        torch.testing.assert_close(tried, z, atol=1e-6, rtol=0)
        lost = (model(z).argmax(1) != y)[:, None]
        z, pulled = torch.where(lost, x + 0.9 * (z - x), z), pulled + int(lost.sum())
    assert pulled > 8 and (norm == "linf" or pulled < 48)  # in l_2 some were not lost


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_moves_to_a_hyperplane_are_the_shortest_in_the_box(norm):
    g = torch.Generator().manual_seed(0)
    points, w = torch.rand(200, 12, generator=g).double(), torch.randn(200, 12, generator=g).double()
    value = torch.randn(200, generator=g).double()
    moves = to_hyperplane(points, w, value, norm)
    moved = points + moves
    assert bool((moved >= -1e-9).all())
    assert bool((moved <= 1 + 1e-9).all())
    room = torch.where((w > 0) == (value >= 0).unsqueeze(1), points, 1 - points)
    reachable = (w.abs() * room).sum(1) > value.abs()
    left = value + (w * moves).sum(1)
    torch.testing.assert_close(left[reachable], torch.zeros_like(left[reachable]), atol=1e-9, rtol=0)
    assert bool((left[~reachable].abs() > 0).all())
    assert 20 < int(reachable.sum())
    # bisection on the common reach gives the shortest move of either norm
    pace = torch.ones_like(w) if norm == "linf" else w.abs()
    low, high = torch.zeros_like(value), torch.full_like(value, 1e3)
    for _ in range(80):
        middle = (low + high) / 2
        enough = (w.abs() * torch.minimum(pace * middle.unsqueeze(1), room)).sum(1) >= value.abs()
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    expected = torch.minimum(pace * high.unsqueeze(1), room)
    torch.testing.assert_close(moves.abs()[reachable], expected[reachable], atol=1e-8, rtol=0)


# exact verdicts


def linear(classes: int, seed: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A linear model on points near the middle of the box, and each point's label, its prediction."""
    g = torch.Generator().manual_seed(seed)
    layer = nn.Linear(12, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(classes, 12, generator=g))
        layer.bias.copy_(-layer.weight.sum(1) / 2)
    x = 0.5 + 0.2 * (torch.rand(80, 12, generator=g) - 0.5)
    return layer.eval(), x, layer(x).argmax(1)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_white_box_attacks_are_exact_on_a_linear_model(classes, norm):
    model, x, y = linear(classes, classes)
    with torch.no_grad():
        scores, rows = model(x), torch.arange(len(x))
        differences = model.weight[y].unsqueeze(1) - model.weight  # (N, K, D)
        steepness = differences.abs().sum(2) if norm == "linf" else differences.norm(dim=2)
        radius = (scores[rows, y].unsqueeze(1) - scores) / steepness.clamp_min(1e-12)
        radius[rows, y] = torch.inf
        radius = radius.amin(1)
    eps = float(radius.median())
    certain = (radius / eps - 1).abs() > 0.02
    exact = radius < eps
    loss = "dlr" if classes > 3 else "margin"
    for result in (
        attacks.pgd(model, x, y, eps, norm=norm, loss="margin", targets=9, steps=40),
        attacks.apgd_targeted(model, x, y, eps, norm=norm, loss=loss, steps=30),
        attacks.fab_targeted(model, x, y, eps, norm=norm, steps=30),
        attacks.worst_case(model, x, y, eps, norm=norm, report=False).result,
    ):
        assert torch.equal(result.broken[certain], exact[certain])
    square = attacks.square_attack(model, x, y, eps, norm=norm, queries=300)
    assert not bool((square.broken & ~exact)[certain].any())
    assert float(square.broken.float().mean()) > 0.2


@pytest.mark.parametrize("classes", [2, 3])
def test_autoattack_runs_with_two_and_three_classes_and_says_what_it_changed(classes):
    model, x, y = linear(classes, classes)
    with pytest.warns(UserWarning, match=f"targeted DLR needs 4 classes, there are {classes}"):
        result = attacks.autoattack(model, x[:20], y[:20], 0.2, attacks=["apgd-ce", "apgd-t", "fab-t"])
    assert "maximises the margin instead" in result.notes[0]
    assert result.by_loss()


# the record


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", SMALL)
def test_records_add_up(net, points, name, norm):
    x, y = points
    result = SMALL[name](net, x, y, EPS[norm], norm=norm)
    with torch.no_grad():
        wrong, clean_wrong = net(result.x_adv).argmax(1) != y, net(x).argmax(1) != y
    assert torch.equal(result.broken, wrong)
    assert result.clean_accuracy == pytest.approx(1 - float(clean_wrong.float().mean()))
    assert bool(_common.inside(result.x_adv, x, EPS[norm], norm).all())
    torch.testing.assert_close(result.norm, _common.distance(result.x_adv - x, norm))
    broken = torch.tensor([a not in ("", "clean") for a in result.attack])
    assert torch.equal(broken, result.broken & ~clean_wrong)
    assert torch.equal(result.step >= 0, broken)
    assert all(bool(loss) is bool(b) for loss, b in zip(result.loss, broken, strict=True))
    assert 0 < int(broken.sum()) < len(x)
    assert torch.equal(result.x_adv[~broken], x[~broken])
    assert bool((result.forwards[clean_wrong] == 1).all())
    assert bool((result.backwards[clean_wrong] == 0).all())


def test_passes_are_counted(net, points):
    x, y = points
    stands = attacks.pgd(net, x, y, EPS["linf"], steps=7)
    alive = ~stands.broken
    assert set(stands.forwards[alive].tolist()) <= {9, 10}  # clean, start, seven steps; one more if float32 had to look
    assert set(stands.backwards[alive].tolist()) == {8}
    late = stands.step > 0
    assert torch.equal(stands.backwards[late], stands.step[late] + 1)
    square = attacks.square_attack(net, x, y, EPS["l2"], norm="l2", queries=20)
    assert set(square.forwards[~square.broken].tolist()) == {22}
    assert square.passes == int(square.forwards.sum())
    assert repr(square) == str(square) and str(square).startswith(f"clean {square.clean_accuracy:.2%}, robust ")
    assert f"{square.passes} forwards, 0 backwards" in str(square)


def test_squares_that_failed_are_not_run_again(net, points, monkeypatch):
    x, y = points
    remembered = attacks.square_attack(net, x, y, EPS["linf"], queries=1500)
    monkeypatch.setattr(sys.modules[SquareRound.__module__], "_CHOICES", 0)
    plain = attacks.square_attack(net, x, y, EPS["linf"], queries=1500)
    assert torch.equal(plain.broken, remembered.broken)
    torch.testing.assert_close(plain.x_adv, remembered.x_adv)
    alive = ~plain.broken
    assert int(remembered.forwards[alive].sum()) < 0.6 * int(plain.forwards[alive].sum())
    assert set(plain.forwards[alive].tolist()) == {1502}


# independence


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", SMALL)
def test_results_do_not_depend_on_batch_size_or_company(net, points, name, norm):
    x, y = (t[:30] for t in points) if name == "worst_case" else points
    result = SMALL[name](net, x, y, EPS[norm], norm=norm)
    small = SMALL[name](net, x, y, EPS[norm], norm=norm, batch_size=7)
    assert float((result.broken == small.broken).float().mean()) > 0.98  # rounding may differ with the batch
    same = result.broken & small.broken & (result.step == small.step)
    assert int(same.sum()) >= 0.95 * int(result.broken.sum())
    torch.testing.assert_close(small.x_adv[same], result.x_adv[same], atol=1e-3, rtol=0)
    alone = torch.arange(len(x)) % 2 == 0
    others = torch.where(alone, y, (y + 1) % 10)  # the others are wrong from the start and take no part
    fewer = SMALL[name](net, x, others, EPS[norm], norm=norm)
    assert float((fewer.broken == result.broken)[alone].float().mean()) > 0.96


def test_the_model_is_left_as_it_was(net, points):
    x, y = points
    before = {k: v.clone() for k, v in net.state_dict().items()}
    asked = [(p.requires_grad, p.grad) for p in net.parameters()]
    attacks.apgd(net, x[:10], y[:10], 0.1, steps=3)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.requires_grad is r and p.grad is g for p, (r, g) in zip(net.parameters(), asked, strict=True))


def test_the_step_of_auto_pgd_halves_where_it_stalls():
    column = lambda value: torch.full((4, 1), value)
    state = {
        "x": column(0.0), "z": column(1.0), "best": column(2.0), "gradient": column(3.0), "best_gradient": column(4.0),
        "rises": torch.tensor([12.0, 13.0, 16.0, 16.0]),  # of 16 steps: no more than three quarters, or more
        "halved": torch.tensor([True, True, False, True]),
        "last_best": torch.zeros(4), "best_value": torch.tensor([1.0, 1.0, 0.0, 0.0]), "size": torch.ones(4),
    }  # fmt: skip
    APGDRound(attacks.losses.objective("ce"), 100)._halve(state, 16)
    assert state["halved"].tolist() == [True, False, True, False]  # the third: neither step nor best loss changed
    assert state["size"].tolist() == [0.5, 1, 0.5, 1]
    assert state["z"].flatten().tolist() == [2, 1, 2, 1]
    assert state["gradient"].flatten().tolist() == [4, 3, 4, 3]


@pytest.mark.parametrize("attack", [attacks.pgd, attacks.apgd, attacks.apgd_targeted])
def test_scale_and_coding_reach_the_loss(attack):
    """The scores are the points themselves."""
    x, y, seen = torch.tensor([[0.6, 0.1]]).expand(30, 2), torch.zeros(30, dtype=torch.long), []

    def watched(scores, *_):
        seen.append(scores.detach())
        return scores.sum(1)

    attack(nn.Identity().eval(), x, y, 0.06, loss=watched, steps=2, scale=3.0)
    assert len(seen) == 3 and all((scores / 3 - x).abs().max() < 0.061 for scores in seen)
    if attack is not attacks.apgd_targeted:  # no targeted loss reads a coding
        found = [attack(nn.Identity().eval(), x, y, 0.3, loss="residual", coding=c, steps=10) for c in (None, OneHot(M=0.01))]
        assert found[0].broken.all() and found[1].broken.float().mean() < 0.3  # beyond its code, a class grows surer


@pytest.mark.parametrize(("given", "size"), [(None, 2.5 * 0.1 / 40), (0.001, 0.001)])
def test_steps_of_pgd_are_as_long_as_they_should(given, size):
    """The scores are the points themselves, and the loss is steepest along their first coordinate."""
    x, seen = torch.tensor([[0.5, 0.1, 0.1]], dtype=torch.float64), []

    def first(scores, labels):
        seen.append(scores.detach())
        return 3 * scores[:, 0]

    attacks.pgd(nn.Identity().eval(), x, torch.tensor([0]), 0.1, norm="l2", loss=first, steps=40, step_size=given)
    steps = torch.cat(seen)[:4, 0].diff()
    torch.testing.assert_close(steps, torch.full_like(steps, size))


def test_more_restarts_break_no_less(net, points):
    x, y = points
    once = attacks.pgd(net, x, y, EPS["linf"], steps=5)
    more = attacks.pgd(net, x, y, EPS["linf"], steps=5, restarts=4)
    assert not bool((once.broken & ~more.broken).any())


@pytest.mark.parametrize(("norm", "share"), [("linf", 0.25), ("l2", 0.1955)])  # of a ball in the plane, beyond half its radius
def test_restarts_begin_elsewhere_uniformly_in_the_ball(norm, share):
    half_way = nn.Linear(2, 2)
    half_way.weight.data, half_way.bias.data = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0.55, 0.0])
    x, y = torch.full((4000, 2), 0.5), torch.zeros(4000, dtype=torch.long)
    for restarts in (1, 3):
        result = attacks.pgd(half_way.eval(), x, y, 0.1, norm=norm, steps=1, step_size=1e-9, restarts=restarts)
        assert result.broken.double().mean() == pytest.approx(1 - (1 - share) ** restarts, abs=0.03)


def test_low_precision_searches_and_float32_decides(net, points):
    x, y = points
    exact = attacks.autoattack(net, x, y, EPS["linf"], attacks=["apgd-ce", "apgd-dlr"])
    low = attacks.autoattack(net, x, y, EPS["linf"], attacks=["apgd-ce", "apgd-dlr"], precision="bfloat16")
    with torch.no_grad():
        assert torch.equal(net(low.x_adv).argmax(1) != y, low.broken)
    assert abs(low.robust_accuracy - exact.robust_accuracy) <= 2 / len(x)


def test_targets_can_be_given(net, points):
    x, y = points
    with torch.no_grad():
        second = net(x).topk(2, 1).indices[:, 1]
    given = attacks.apgd_targeted(net, x, y, EPS["linf"], steps=10, targets=second)
    ranked = attacks.apgd_targeted(net, x, y, EPS["linf"], steps=10, targets=1)
    assert torch.equal(given.broken, ranked.broken)
    for wrong in (second[:5], second[:0], second.float(), second * math.nan, second == 0):
        with pytest.raises(ValueError, match=r"expected integer targets of shape \(60,\)"):
            attacks.pgd(net, x, y, 0.1, targets=wrong, loss="margin")
    for wrong in (second - 10, second + 10):
        with pytest.raises(ValueError, match=r"expected targets in \[0, 10\), got -?\d+ to"):
            attacks.pgd(net, x, y, 0.1, targets=wrong, loss="margin")


def test_targets_are_looked_at_before_any_point_is_attacked(net, points, monkeypatch):
    """Also those of points whose turn comes late."""
    x, y = points[0], points[1].clone()
    with torch.no_grad():
        best, second = net(x).topk(2, 1).indices.T
    targets = second.clone()
    targets[-1] = y[-1] = best[-1]
    monkeypatch.setattr("squareloss.attacks._run._WAVE_BYTES", 1)
    monkeypatch.setattr(import_module("squareloss.attacks.pgd").PGDRound, "start", None)
    with pytest.raises(ValueError, match=f"got 1 of {int((best == y).sum())} points aimed at their own class"):
        attacks.pgd(net, x, y, 0.1, steps=2, targets=targets, batch_size=10)


@pytest.mark.parametrize("attack", [attacks.pgd, attacks.apgd_targeted, attacks.fab_targeted])
def test_a_target_is_another_class_than_the_label(net, points, attack):
    """Aimed at its own class a point would stand, unattacked; where the model errs, nothing is aimed."""
    x, labels = (t[:20] for t in points)
    with torch.no_grad():
        best, second = net(x).topk(2, 1).indices.T
    y = torch.where(torch.arange(20) < 5, second, labels)  # the model errs on five
    right = int((best == y)[:8].sum())
    own = torch.where(torch.arange(20) < 8, y, second)
    with pytest.raises(ValueError, match=f"got {right} of {int((best == y).sum())} points aimed at their own class"):
        attack(net, x, y, 0.1, steps=2, targets=own)
    assert attack(net, x, y, 0.1, steps=2, targets=second).attack.count("clean") >= 5


# other shapes, other doors


def test_points_need_not_be_images():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = MLP(2, (20,), 4, generator=g).eval()
    x = torch.rand(40, 2, generator=g)
    y = model(x).argmax(1)
    for norm in ("linf", "l2"):
        result = attacks.apgd_targeted(model, x, y, 0.3, norm=norm, steps=30)
        square = attacks.square_attack(model, x, y, 0.3, norm=norm, queries=50)
        assert int((square.broken & ~result.broken).sum()) <= 1
        assert int(square.broken.sum()) > 0


def test_untrained_networks_of_any_width_can_be_attacked():
    model = cnn(width=4, classes=12).eval()
    x = digits()[2][:8]
    y = model(x).argmax(1)
    assert attacks.apgd_targeted(model, x, y, 0.3, targets=11, steps=2).broken.shape == (8,)
    assert attacks.fab_targeted(model, x, y, 0.3, targets=20, steps=2).broken.shape == (8,)  # only eleven are wrong
