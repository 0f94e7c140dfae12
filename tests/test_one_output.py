"""Losses of one output as a family, their temperatures, and how probabilities are read from them."""

import pytest
import torch

from squareloss import functional
from squareloss.calibrators import Temperature
from squareloss.lab.studies.synthetic import one_output


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def family(name, f, labels):
    weights = torch.tensor(one_output.LOSSES[name], dtype=f.dtype)
    return one_output.blended(f[:, None], labels.to(f.dtype), weights)


def test_the_losses_are_those_of_two_tied_outputs():
    f = torch.randn(50, generator=generator(), dtype=torch.float64) * 3
    labels = torch.randint(0, 2, (50,), generator=generator(1))
    two = torch.stack([-f / 2, f / 2], dim=1)
    torch.testing.assert_close(family("SL", f, labels), (f - (2.0 * labels - 1)) ** 2)
    torch.testing.assert_close(family("CE", f, labels), functional.cross_entropy(two, labels, reduction="none"))
    torch.testing.assert_close(family("squentropy", f, labels), functional.squentropy(two, labels, reduction="none"))
    smoothed = torch.nn.functional.cross_entropy(two, labels, reduction="none", label_smoothing=one_output.SMOOTHING)
    torch.testing.assert_close(family("smoothed", f, labels), smoothed)


def test_temperatures_agree_with_the_calibrator():
    f = torch.randn(3, 400, generator=generator(), dtype=torch.float64) * torch.tensor([[0.5], [3.0], [20.0]])
    labels = (torch.rand(3, 400, generator=generator(1)) < torch.sigmoid(f / 2)).long()
    mine = one_output.temperatures(f, labels)
    for r in range(3):
        theirs = Temperature().fit(torch.stack([-f[r] / 2, f[r] / 2], dim=1), labels[r]).temperature_
        assert float(mine[r]) == pytest.approx(theirs, rel=1e-5)


def test_temperatures_of_outputs_that_tell_nothing_are_finite():
    assert one_output.temperatures(torch.zeros(2, 5), torch.ones(2, 5)).isfinite().all()


def test_undoing_the_smoothing_gives_eta_back():
    eta = torch.linspace(0, 1, 11, dtype=torch.float64)[None]
    s = one_output.SMOOTHING
    best = torch.logit((1 - s) * eta + s / 2)  # minimises the expected loss: its derivative is zero there
    f = best.clone().requires_grad_()
    both = [family("smoothed", f[0], torch.full((11,), y)) for y in (0, 1)]
    ((1 - eta[0]) * both[0] + eta[0] * both[1]).sum().backward()
    torch.testing.assert_close(f.grad, torch.zeros_like(f), atol=1e-12, rtol=0)
    torch.testing.assert_close(one_output.other_readings("smoothed", best, torch.ones(1))["undone"], eta)


def test_readings_of_square_loss():
    f = torch.tensor([[-3.0, 0.0, 0.5, 2.0]])
    assert one_output.probabilities("SL", f).tolist() == [[0.0, 0.5, 0.75, 1.0]]
    assert one_output.other_readings("SL", f, torch.ones(1))["unclipped"].tolist() == [[-1.0, 0.5, 0.75, 1.5]]
