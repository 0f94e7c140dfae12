"""Attack losses: formulas, invariances, and where they see nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from squareloss import OneHot, Simplex
from squareloss.attacks import losses
from squareloss.functional import square_loss


@pytest.fixture
def scores() -> Tensor:
    return torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def labels() -> Tensor:
    return torch.randint(6, (50,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def targets(labels: Tensor) -> Tensor:
    return (labels + 1 + torch.arange(50) % 5) % 6


def test_cross_entropy_and_margins_are_what_they_say(scores, labels, targets):
    rows = torch.arange(50)
    torch.testing.assert_close(losses.ce(scores, labels), torch.nn.functional.cross_entropy(scores, labels, reduction="none"))
    others = [max(float(f[j]) for j in range(6) if j != y) for f, y in zip(scores, labels.tolist(), strict=True)]
    torch.testing.assert_close(losses.margin(scores, labels), torch.tensor(others).double() - scores[rows, labels])
    torch.testing.assert_close(losses.margin_targeted(scores, labels, targets), scores[rows, targets] - scores[rows, labels])
    log_p = scores.log_softmax(1)
    torch.testing.assert_close(losses.ce_targeted(scores, labels, targets), log_p[rows, targets])


def test_dlr_is_its_formula_and_blind_where_runners_up_tie(scores, labels, targets):
    ordered = scores.sort(1, descending=True).values
    torch.testing.assert_close(losses.dlr(scores, labels), losses.margin(scores, labels) / (ordered[:, 0] - ordered[:, 2]))
    below = (ordered[:, 2] + ordered[:, 3]) / 2
    expected = losses.margin_targeted(scores, labels, targets) / (ordered[:, 0] - below)
    torch.testing.assert_close(losses.dlr_targeted(scores, labels, targets), expected)
    collapsed = torch.tensor([[9.0, -1.0, -1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(losses.dlr(collapsed, torch.tensor([0])).sum(), collapsed)
    assert abs(float(gradient[0, 0])) < 1e-12
    (gradient,) = torch.autograd.grad(losses.angle(collapsed, torch.tensor([0])).sum(), collapsed)
    assert float(gradient.abs().max()) < 1e-12  # at its own vertex the angle is at its minimum
    (gradient,) = torch.autograd.grad(losses.margin(collapsed, torch.tensor([0])).sum(), collapsed)
    assert float(gradient[0, 0]) == -1


@pytest.mark.parametrize("coding", [Simplex(), Simplex(radius=1.0), OneHot(), OneHot(k=5, M=15)])
def test_residual_is_square_loss(scores, labels, coding):
    expected = square_loss(scores, labels, coding, scale=6.0, reduction="none")  # the mean over six outputs, times six
    torch.testing.assert_close(losses.residual(scores, labels, coding), expected)


@pytest.mark.parametrize("loss", [losses.softmax_probability, losses.log_probability])
def test_scores_of_reduced_outputs_are_read_as_k_scores(labels, loss):
    reduced = Simplex(radius=2.0, reduced=True)
    outputs = torch.randn(50, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = reduced.scores(outputs)
    torch.testing.assert_close(losses.eta_of(scores, reduced), reduced.eta(outputs))
    torch.testing.assert_close(loss(scores, labels, reduced), loss(scores, labels, Simplex(radius=2.0)))


def test_softmax_probability_is_cross_entropy_of_eta(scores, labels):
    coding = Simplex(radius=1.0)
    torch.testing.assert_close(losses.softmax_probability(scores, labels, coding), losses.ce(coding.eta(scores), labels))


def test_log_probability_keeps_a_gradient_where_eta_is_negative(labels):
    coding, floor = Simplex(), 1e-3
    eta = torch.tensor([0.5, 2 * floor, floor * 1.0001, floor * 0.9999, 0.0, -0.7], dtype=torch.float64)
    scores = torch.zeros(6, 6, dtype=torch.float64)
    scores[:, 0] = (eta - 1 / 6) * 6 * 6 / 5  # eta = 1/K + (f - mean f) / K with the default radius
    scores.requires_grad_()
    label = torch.zeros(6, dtype=torch.int64)
    torch.testing.assert_close(coding.eta(scores)[:, 0], eta)
    value = losses.log_probability(scores, label, coding, floor)
    torch.testing.assert_close(value[:3], -eta[:3].log())
    assert float((value[3] - value[2]).detach()) == pytest.approx(2e-4, rel=0.01)  # no jump at the floor
    assert bool((value.diff() > 0).all())
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    assert bool((gradient[:, 0] < 0).all())


def test_angle_is_the_cosine_with_the_vertex_and_knows_no_scale(scores, labels, targets):
    vertices = Simplex(radius=1.0).vertices(6)
    centred = scores - scores.mean(1, keepdim=True)
    cosines = centred / centred.norm(dim=1, keepdim=True) @ vertices.T
    rows = torch.arange(50)
    torch.testing.assert_close(losses.angle(scores, labels), -cosines[rows, labels])
    difference = cosines[rows, targets] - cosines[rows, labels]
    torch.testing.assert_close(losses.angle_targeted(scores, labels, targets), difference)
    torch.testing.assert_close(losses.angle(1000 * scores + 7, labels), losses.angle(scores, labels))


def test_cross_entropy_depends_on_the_scale():
    scores = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    label = torch.tensor([0])
    for scale, seen in ((1.0, False), (0.01, True)):
        goal = losses.objective("ce", scale=scale)
        (gradient,) = torch.autograd.grad(goal(scores, label, label).sum(), scores)
        assert bool(gradient.abs().max() > 0) is seen


@pytest.mark.parametrize(("name", "classes"), [("dlr", 2), ("dlr_targeted", 3), ("angle", 2), ("angle_targeted", 2)])
def test_some_losses_need_more_than_two_classes(name, classes):
    scores, labels = torch.randn(4, classes), torch.zeros(4, dtype=torch.int64)
    targeted = name.endswith("_targeted")
    arguments = (scores, labels, labels + 1) if targeted else (scores, labels)
    instead = "margin_targeted" if targeted else "margin"
    with pytest.raises(ValueError, match=rf"expected {classes + 1} classes or more .* got {classes}; use '{instead}'"):
        getattr(losses, name)(*arguments)
    with pytest.raises(ValueError, match=rf"use '{instead}'"):
        losses.objective(name, targeted=targeted).check(classes)


def test_names_are_checked():
    with pytest.raises(ValueError, match="Unknown attack loss 'hinge'. Available: ce, softmax_probability"):
        losses.objective("hinge")
    with pytest.raises(ValueError, match="'angle_targeted' is targeted: pgd takes it with targets="):
        losses.objective("angle_targeted")
    with pytest.raises(ValueError, match="'residual' is untargeted: leave targets out"):
        losses.objective("residual", targeted=True)
    assert losses.objective("angle", targeted=True).name == "angle_targeted"
    with pytest.raises(ValueError, match="expected scale > 0"):
        losses.objective("ce", scale=0)
    assert losses.objective(losses.ce).name == "ce"
