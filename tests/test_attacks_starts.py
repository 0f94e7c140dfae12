"""Where tries begin: each restart, each target and each point somewhere else, as far from the point as it should be."""

from __future__ import annotations

import sys
from itertools import combinations, product

import pytest
import torch
from torch import nn

from squareloss import attacks
from squareloss.attacks import _common, _random
from squareloss.attacks._network import Network
from squareloss.attacks._random import PerExample
from squareloss.attacks._rounds import Problem, set_target
from squareloss.attacks.apgd import APGDRound
from squareloss.attacks.fab import FABRound
from squareloss.attacks.losses import objective
from squareloss.attacks.pgd import PGDRound
from squareloss.attacks.shrinking import ShrinkRound
from squareloss.attacks.square_attack import SquareRound
from squareloss.models import MLP

FocusRound = sys.modules["squareloss.attacks.worst_case"].FocusRound
CE, MARGIN, AIMED = objective("ce"), objective("margin"), objective("margin", targeted=True)
KINDS = {
    "pgd": [PGDRound(goal, 5, 0.1, restart, rank) for goal in (CE, MARGIN) for restart in range(3) for rank in range(2)],
    "apgd": [APGDRound(goal, 5, restart, rank) for goal in (CE, MARGIN) for restart in range(3) for rank in range(2)],
    "fab": [FABRound(5, restart, rank) for restart in (1, 2, 3) for rank in (1, 2)],
    "shrinking": [ShrinkRound(goal, 5, restart) for goal in (CE, MARGIN) for restart in range(3)],
    "square": [SquareRound(5, restart=restart) for restart in range(4)],
    "focus": [FocusRound(AIMED, 2, restart=restart) for restart in range(4)],
}
LENGTHS = {"apgd": (1, 1), "fab": (0.5, 0.5), "square": (1, 1), "focus": (1, 1), "pgd": (0, 1), "shrinking": (0, 1)}  # over eps


def begun(this, norm, seed=0):
    """Where a round begins at thirty points in the middle of the box."""
    model = MLP(100, (), 4, generator=torch.Generator().manual_seed(0)).eval()
    x, y = torch.full((30, 1, 5, 20), 0.5), torch.zeros(30, dtype=torch.long)
    state = {"id": torch.arange(30), "x": x, "y": y, "order": torch.arange(4).repeat(30, 1), "refuted": torch.zeros(30)}
    this.start(Problem(Network(model, x, y), 0.1, norm, PerExample(seed)), state)
    return state["z"] if isinstance(this, FABRound) else state["tried"]


def test_random_numbers_are_splitmix64s():
    """The first three of the generator of Steele, Lea and Flood (2014) with state 0."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    states = [(k * _random.GOLDEN) % 2**64 for k in (1, 2, 3)]
    assert [_random._mix_int(state) for state in states] == published
    signed = torch.tensor([state - 2**64 if state >= 2**63 else state for state in states])
    assert [value % 2**64 for value in _random._mix(signed).tolist()] == published
    assert _random.fraction(signed).tolist() == [value / 2**24 for value in (number >> 40 for number in published)]


def test_the_ball_that_shrinks_is_no_wider_than_the_box_and_ends_as_the_one_that_counts():
    wide = ShrinkRound(MARGIN, 10, widest=16.0)
    for norm, widest in (("linf", 1.0), ("l2", 1.6)):
        radii = [wide.radius(Problem(None, 0.1, norm, None), i) for i in (0, 7, 9)]
        assert radii == pytest.approx([widest, 0.1, 0.1])


def test_the_first_step_is_as_long_as_the_ball_and_the_last_a_tenth_of_it(monkeypatch):
    module, taken = sys.modules[ShrinkRound.__module__], []
    monkeypatch.setattr(module, "ascend", lambda z, gradient, length, norm: taken.append(length) or z)
    model, x, y = MLP(4, (), 3).eval(), torch.full((2, 4), 0.5), torch.zeros(2, dtype=torch.long)
    state = {"id": torch.arange(2), "x": x, "y": y, "order": torch.arange(3).repeat(2, 1), "refuted": torch.zeros(2)}
    problem, this, shares = Problem(Network(model, x, y), 0.1, "linf", PerExample(0)), ShrinkRound(MARGIN, 10), []
    this.start(problem, state)
    for i in range(10):
        this.step(problem, state, i)
        shares.append(float((taken[-1].flatten() / state["radius"]).mean()))
    assert shares == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_try_begins_elsewhere_and_no_further_than_it_should(kind, norm):
    starts = [begun(this, norm) for this in KINDS[kind]]
    starts.append(begun(KINDS[kind][0], norm, seed=1))
    least, most = (0.1 * share for share in LENGTHS[kind])
    for start in starts:
        lengths = _common.distance(start - 0.5, norm)
        assert least - 1e-6 < float(lengths.min()) <= float(lengths.max()) < most + 1e-6
        assert len(start.flatten(1).unique(dim=0)) == 30
    for one, other in combinations(starts, 2):
        assert int((one == other).flatten(1).all(1).sum()) == 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_published_draws_begin_anew_with_every_batch(norm):
    g = torch.Generator().manual_seed(0)
    model, x = MLP(6, (), 4, generator=g).eval(), torch.rand(20, 6, generator=g)
    options = {"norm": norm, "steps": 3, "restarts": 2, "parity": True, "batch_size": 10}
    whole, *halves = (
        attacks.apgd(model, rows, model(rows).argmax(1), 0.5, **options) for rows in (x, *x.split(10))
    )  # all points are right without an attack
    assert whole.broken.any() and torch.equal(whole.x_adv, torch.cat([half.x_adv for half in halves]))


def test_targets_are_the_runners_up_of_the_clean_scores():
    scores = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    for rank in range(6):
        state = {"id": torch.arange(20), "order": scores.sort(1).indices}
        set_target(state, rank)
        assert torch.equal(state["target"], scores.topk(6, 1).indices[:, rank])


def planned(monkeypatch, attack, **options):
    """The rounds that an attack would run on ten classes."""
    monkeypatch.setattr(sys.modules[attack.__module__], "attack", lambda model, x, y, eps, plan, options: plan(10))
    (stage,) = attack(nn.Identity(), torch.rand(5, 10), torch.zeros(5, dtype=torch.long), 0.1, **options)
    return stage.rounds


def test_what_attacks_are_asked_for_reaches_their_rounds(monkeypatch):
    tries = list(product((1, 2, 3), (0, 1)))  # each of three targets from two starts
    for attack, own in (
        (attacks.pgd, {"step_size": 0.02, "loss": "ce"}), (attacks.apgd_targeted, {"rho": 0.6}), (attacks.fab_targeted, {}),
    ):  # fmt: skip
        rounds = planned(monkeypatch, attack, steps=7, restarts=2, targets=3, **own)
        assert [(each.rank, each.restart, each.steps) for each in rounds] == [(*each, 7) for each in tries]
        assert all(getattr(each, name) == value for each in rounds for name, value in own.items() if name != "loss")
    rounds = planned(monkeypatch, attacks.apgd, steps=7, restarts=3, rho=0.6, loss="margin")
    assert [(each.rank, each.restart, each.steps, each.rho, each.loss) for each in rounds] == [
        (0, restart, 7, 0.6, "margin") for restart in range(3)
    ]
    rounds = planned(monkeypatch, attacks.square_attack, queries=70, p=0.3, restarts=2)
    assert [(each.restart, each.steps, each.p) for each in rounds] == [(0, 70, 0.3), (1, 70, 0.3)]
