"""The distance of a point to the decision boundary: exact where it is known, close to a fine grid elsewhere."""

import math

import pytest
import torch
from torch import nn

from squareloss.lab.studies.compare.distances import _tightened, distances
from squareloss.models import MLP


def test_distance_is_exact_for_linear_scores():
    generator = torch.Generator().manual_seed(0)
    w, b = torch.randn(5, 4, generator=generator), torch.randn(5, generator=generator)
    x = torch.randn(40, 4, generator=generator)
    y = (x @ w.T + b).argmax(1)
    margins = (x @ w.T + b).gather(1, y[:, None]) - (x @ w.T + b)
    lengths = (w[y][:, None] - w[None]).square().sum(2).sqrt()
    exact = torch.where(lengths > 0, margins / lengths.clamp_min(1e-9), torch.inf).amin(1)
    assert torch.allclose(distances(lambda z: z @ w.T + b, x, y), exact, rtol=1e-3, atol=1e-5)


def test_distance_is_zero_where_wrong_and_infinite_where_nothing_helps():
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    fixed = distances(lambda z: torch.tensor([[1.0, 0.0]]).expand(len(z), 2) + 0 * z[:, :2], x, y)
    assert fixed.tolist() == [math.inf, 0.0]


def test_distance_of_a_network_is_close_to_the_nearest_point_of_a_fine_grid():
    network = MLP(2, (32, 32), 3, generator=torch.Generator().manual_seed(1))
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(2))
    wanted = ((2 * x[:, 0]).sin() + x[:, 1] > 0).long() + (x.square().sum(1) > 2.5).long()
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), wanted).backward()
        optimiser.step()
    y = network(x).argmax(1)
    found = distances(network, x, y)
    turn = torch.linspace(0, 2 * math.pi, 181)[:-1]
    rays, lengths = torch.stack([turn.cos(), turn.sin()], 1), torch.linspace(0.01, 4, 400)
    for point, label, mine in zip(x[:25], y, found, strict=False):
        with torch.no_grad():
            outside = network((point + lengths[:, None, None] * rays).view(-1, 2)).argmax(1).view(400, 180) != label
        nearest = float(lengths[outside.any(1)][0])
        assert 0.98 * nearest - 0.02 <= float(mine) <= 1.15 * nearest  # an upper bound, and a close one


def test_a_walk_reaches_a_boundary_that_one_step_does_not():
    scores = lambda z: torch.stack([(-z[:, 0]).exp(), 0 * z[:, 1] + 0.1], 1)
    assert float(distances(scores, torch.zeros(1, 2), torch.tensor([0]))) == pytest.approx(math.log(10), rel=1e-3)


def test_a_long_way_to_a_boundary_that_bends_around_is_brought_down_to_the_shortest():
    """Of points in a circle, which begin with a way to the side or to the back."""
    x, free = torch.tensor([[0.5, 0.0], [0.2, 0.3], [-0.6, 0.1], [0.2, -0.8]]), torch.ones(2)
    scores = lambda z: torch.stack([torch.ones(len(z)), z.square().sum(1)], 1)
    for end in ([0.0, 3.0], [-1.5, 1.0], [2.0, 2.0]):
        found = _tightened(scores, x, torch.zeros(4, dtype=torch.long), torch.tensor(end).expand(4, 2), free)
        torch.testing.assert_close(found, 1 - x.norm(dim=1), rtol=0.01, atol=0)


def test_where_there_is_no_gradient_other_points_show_the_way():
    scores = lambda z: torch.cat([0 * z, (z > 1).float() - 0.5 + 0 * z], 1)
    found = distances(scores, torch.tensor([[0.0], [0.1], [0.2], [0.3], [0.5], [3.0]]), torch.tensor([0, 0, 0, 0, 0, 1]))
    assert found.tolist() == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.5, 2.0], abs=1e-3)


def test_coordinates_held_fixed_do_not_move():
    w = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    x, y = torch.tensor([[1.0, 1.0]]), torch.tensor([0])
    assert float(distances(lambda z: z @ w.T, x, y)) == pytest.approx(7 / 5, rel=1e-3)
    assert float(distances(lambda z: z @ w.T, x, y, free=torch.tensor([1.0, 0.0]))) == pytest.approx(7 / 3, rel=1e-3)
