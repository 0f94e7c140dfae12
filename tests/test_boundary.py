"""Decision boundaries as segments, distances to them, and chains that can be drawn."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from squareloss.lab.report import fields
from squareloss.lab.studies.synthetic import boundary


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def traced(f, side=201):
    points = boundary.lattice(1.5, side)
    return boundary.segments(f(points.view(-1, 2)).view(side, side), points, f)


def circle(x):
    return x.norm(dim=-1) ** 3 - 0.7**3  # curved along every ray, so that one linear step would miss the zero


def test_zeros_lie_on_the_boundary_and_distances_are_right():
    found = traced(circle)
    assert (found.norm(dim=-1) - 0.7).abs().max() < 1e-5
    points = 2 * torch.rand(500, 2, generator=generator()) - 1
    expected = (points.norm(dim=-1) - 0.7).abs()
    assert (boundary.distances(points, found, 9.0) - expected).abs().max() < 2e-4
    assert float(boundary.distances(points, found, 0.1).max()) == pytest.approx(0.1)


def test_the_distance_to_a_line_is_exact():
    found = traced(lambda x: x[:, 0] + 2 * x[:, 1] - 0.3, side=21)
    points = torch.rand(100, 2, generator=generator()) - 0.5
    expected = (points @ torch.tensor([1.0, 2.0]) - 0.3).abs() / math.sqrt(5)
    torch.testing.assert_close(boundary.distances(points, found, 9.0), expected, atol=1e-5, rtol=0)


def test_no_boundary_is_as_far_as_can_be():
    found = traced(lambda x: torch.ones(len(x)), side=11)
    assert len(found) == 0
    assert boundary.distances(torch.zeros(3, 2), found, 0.4).tolist() == pytest.approx([0.4] * 3)


def test_chains_are_lines_that_can_be_drawn():
    two = lambda x: torch.minimum((x - 0.7).norm(dim=-1) - 0.4, (x + 0.7).norm(dim=-1) - 0.5)
    found = traced(two)
    lines = boundary.chains(found, 0.004)
    assert len(lines) == 2 and all(line[0] == line[-1] for line in lines)  # two circles, closed
    assert all(len(line) < 60 for line in lines)
    for line in lines:
        dense = torch.tensor(line)
        middles = (dense[1:] + dense[:-1]) / 2
        assert two(middles).abs().max() < 0.006
    drawn = torch.tensor([pair for line in lines for pair in pairwise(line)])
    assert boundary.distances(found.view(-1, 2), drawn, 9.0).max() < 0.0041, "no part of it is left out"
    again = fields.unpack_lines(fields.pack_lines(lines, 1.5), 1.5)
    assert [len(line) for line in again] == [len(line) for line in lines]
    assert np.abs(np.concatenate(again) - np.concatenate(lines)).max() < 0.002


def test_corners_stay_and_points_between_them_go():
    path = [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (1.0, 3.0), (0.0, 3.0)]
    (line,) = boundary.chains(torch.tensor([*pairwise(path)]), 0.01)
    assert line in ([path[i] for i in (0, 2, 4, 5)], [path[i] for i in (5, 4, 2, 0)])
    assert boundary.chains(torch.tensor([*pairwise(path[1:4])]), 0.01) == [path[1:4]]
