"""The map from scores of ridge to probabilities, by itself; the tests of the probe hold its fit to others."""

from __future__ import annotations

import pytest
import torch

from squareloss._probability_map import Curve, fit_curve


@pytest.mark.parametrize("bend", [-2.0, -0.1, 0.0, 0.1, 2.0])
def test_the_map_is_its_formula_up_to_nine_tenths_of_the_way_to_the_vertex_and_rises_beyond(bend):
    u = torch.randn(400, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shift = torch.tensor([0.1, -0.1, 0.2, -0.2, 0.0], dtype=torch.float64)
    logits = Curve(1.5, bend, shift, None).probabilities(5 * (u - shift)).log()
    near = u * (2 * bend / 1.5) < 0.9
    both, formula = near[:, 1:] & near[:, :-1], 1.5 * u - bend * u.square()
    assert both.any() and bool(both.all()) == (abs(bend) < 1)
    torch.testing.assert_close(logits.diff()[both], formula.diff()[both])  # softmax leaves differences as they are
    assert torch.equal(logits.argsort(1), u.argsort(1))


def test_only_ratios_of_weights_matter():
    g = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(200, 3, generator=g, dtype=torch.float64), torch.randint(3, (200,), generator=g)
    scores += 2 * torch.eye(3, dtype=torch.float64)[labels]
    weight, frequency = torch.rand(200, generator=g, dtype=torch.float64), torch.bincount(labels).double() / 200
    curves = [fit_curve(scores, labels, factor * weight, frequency) for factor in (1.0, 1e-12, 1e12)]
    for curve in curves[1:]:
        torch.testing.assert_close(curve.probabilities(scores), curves[0].probabilities(scores))
