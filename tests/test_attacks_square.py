"""Square Attack query by query: every image it asks for is one square away from the best so far, of the published size."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor, nn

from squareloss import attacks
from squareloss.attacks._network import prepare
from squareloss.attacks._random import PerExample
from squareloss.attacks._rounds import Problem
from squareloss.attacks.square_attack import SquareRound

SQUARE = sys.modules[SquareRound.__module__]


class Asked:
    """The images that a model was asked for; copies of the model share them."""

    def __init__(self) -> None:
        self.images: list[Tensor] = []

    def __deepcopy__(self, memo: object) -> Asked:
        return self


class Watched(nn.Module):
    """Two classes; a margin that is linear in the image, and so high that it never falls below zero."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(math.prod(shape), generator=torch.Generator().manual_seed(0)))
        self.asked = Asked()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.asked.images += list(x.detach().clone())
        return torch.stack([torch.full((len(x),), 1e3), -x.flatten(1) @ self.weight], 1)

    def margin(self, x: Tensor) -> float:
        return float(x.flatten() @ self.weight.detach())


class OnePixel(nn.Module):
    """The first class unless one value of the input, of .5, rises by more than .1."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        value = x.flatten(1)[:, self.place]
        return torch.stack([torch.full_like(value, 0.6), value], 1)


class Ties(nn.Module):
    """By how many pixels lie above .5: few leave the first class, half to 60% of them tie, more lose it."""

    def forward(self, x: Tensor) -> Tensor:
        share = (x > 0.5).float().mean((1, 2, 3))
        other = torch.where((share >= 0.5) & (share <= 0.6), 0.5, share)
        return torch.stack([torch.full_like(share, 0.5), other], 1)


def published_share(step: int) -> float:
    """The share of the image by the schedule of the paper for 10,000 queries."""
    ends = {10: 0.8, 50: 0.4, 200: 0.2, 500: 0.1, 1000: 0.05, 2000: 0.025, 4000: 0.0125, 6000: 0.00625, 8000: 0.003125}
    return next((share for end, share in ends.items() if step <= end), 0.0015625)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 8), (28, 20), (1, 5), (300, 300)])
def test_squares_shrink_as_published(height, width):
    round_ = SquareRound(10_000)
    for step in (*range(60), 200, 201, 500, 501, 1000, 1001, 2000, 2001, 4000, 4001, 6000, 6001, 8000, 8001, 9999):
        side = round(math.sqrt(published_share(step) * height * width))
        odd = max(side, 3) + (max(side, 3) % 2 == 0)
        assert round_.side(step, height, width, "linf") == min(max(side, 1), height, width)
        assert round_.side(step, height, width, "l2") == min(odd, height, width)
    assert SquareRound(10, p=0.2).side(0, 10, 10, "linf") == 4  # of 20 pixels


def squares(best: Tensor, x: Tensor, eps: float, side: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """Every image (n, C, H, W) that a square of that side makes of the best one, and its corner."""
    channels, height, width = x.shape
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * channels).view(-1, channels, 1, 1)
    images, corners = [], []
    for row in range(height - side + 1):
        for col in range(width - side + 1):
            window = (slice(None), slice(None), slice(row, row + side), slice(col, col + side))
            made = best.repeat(len(signs), 1, 1, 1)
            made[window] = (x + eps * signs)[window].clamp(0, 1)
            images, corners = [*images, made], [*corners, *[(row, col)] * len(signs)]
    return torch.cat(images), corners


def test_every_query_is_a_square_on_the_best_image_so_far(monkeypatch):
    monkeypatch.setattr(SQUARE, "_CHOICES", 0)  # ask for squares that failed again, too
    x = torch.rand(2, 7, 6, generator=torch.Generator().manual_seed(1))
    model, eps, queries = Watched(x.shape), 0.3, 1100
    result = attacks.square_attack(model, x[None], torch.tensor([0]), eps, queries=queries)
    start, *asked = [image for image in model.asked.images if not torch.equal(image, x)]
    assert len(asked) == queries == int(result.forwards[0]) - 2  # beside the clean image and the start
    stripes = torch.where(start[:, :1] > x[:, :1], 1.0, -1.0)  # one sign for every channel and column
    torch.testing.assert_close(start, (x + eps * stripes).clamp(0, 1), atol=1e-6, rtol=0)
    assert len(stripes.unique()) == 2

    best, reached, kept = start, set(), 0
    for step, image in enumerate(asked):
        side = min(max(1, round(math.sqrt(published_share(step) * 42))), 6)
        made, corners = squares(best, x, eps, side)
        fits = ((made - image).abs().amax((1, 2, 3)) < 1e-6).nonzero().flatten().tolist()
        assert fits, step
        if len({corners[i] for i in fits}) == 1:
            reached.add((side, corners[fits[0]]))
        if model.margin(image) < model.margin(best):
            best, kept = image, kept + 1
    assert kept > 20
    for side in (1, 2, 3):  # all places, the last row and column among them
        places = {(row, col) for row in range(7 - side + 1) for col in range(6 - side + 1)}
        assert len({place for size, place in reached if size == side} & places) > 0.9 * len(places)
    assert {(1, (6, 5)), (1, (0, 0))} <= reached


@pytest.mark.parametrize(("shape", "norm"), [((5,), "linf"), ((5,), "l2"), ((1, 3, 4), "linf")])
def test_squares_come_to_every_place(shape, norm):
    """Where a single value decides, it is found wherever it is; the start alone breaks about half of the points."""
    x, y = torch.full((60, *shape), 0.5), torch.zeros(60, dtype=torch.long)
    for place in range(math.prod(shape)):
        result = attacks.square_attack(OnePixel(place), x, y, 0.2, norm=norm, queries=300)
        assert result.broken.float().mean() > 0.9, place


def test_windows_in_l2_lie_anywhere_and_apart():
    x = torch.full((6000, 3, 7, 6), 0.5)
    problem = Problem(prepare(OnePixel(0), x[:2], torch.tensor([0, 0])), 1.0, "l2", PerExample(0))
    tables = {}
    for name, step, restart in (("first", 0, 0), ("same", 0, 0), ("later", 640, 0), ("again", 640, 1)):
        tables[name] = {"id": torch.arange(6000), "x": x}
        SquareRound(1000, restart=restart)._draw(problem, tables[name], step, x)
    first, later, again = (tables[name] for name in ("first", "later", "again"))
    assert torch.equal(first["corners"], tables["same"]["corners"])
    assert set(first["corners"][:, 0].flatten().tolist()) == {0, 6}  # as wide as the image: two places, one above the other
    rows, cols = later["corners"].div(6, rounding_mode="floor"), later["corners"] % 6  # (6000, 64, 2) of side 3
    for corners, places in ((rows, 5), (cols, 4)):
        share = torch.stack([(corners == place).float().mean((0, 1)) for place in range(places)])
        torch.testing.assert_close(share, torch.full((places, 2), 1 / places), atol=0.01, rtol=0)
    here, there = later["corners"][:, 0].T
    elsewhere = again["corners"][:, 0, 0]
    for one, other in ((here, there), (here, elsewhere), (here, later["corners"][:, 1, 0]), (here % 6, here // 6)):
        assert abs(float(torch.corrcoef(torch.stack([one, other]).float())[0, 1])) < 0.06
    assert later["turned"].float().mean() == pytest.approx(0.5, abs=0.01)
    assert set(later["signs"].unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(later["signs"].mean((0, 1)), torch.zeros(3), atol=0.01, rtol=0)


@pytest.mark.parametrize("side", [3, 4, 7])
def test_bumps_are_those_of_the_published_code(side):
    """Rectangles around the middle of each half, the k-th of weight 1 / k^2; the lower half is negative; upright or turned."""
    whole = torch.zeros(side, side)
    for top, height, sign in ((0, side // 2, 1.0), (side // 2, side - side // 2, -1.0)):
        half = torch.zeros(height, side)
        for k in range(max(height, side) // 2 + 1):
            rows = slice(max(height // 2 - k, 0), height // 2 + k + 1)
            half[rows, max(side // 2 - k, 0) : side // 2 + k + 1] += 1 / (k + 1) ** 2
        whole[top : top + height] = sign * half / half.norm()
    bumps = SQUARE._bumps(side, torch.float32, torch.device("cpu")).view(2, side, side)
    torch.testing.assert_close(bumps, torch.stack([whole, whole.T]) / 2**0.5)


@pytest.mark.parametrize("shape", [(1, 14, 14), (3, 14, 9), (1, 9, 23), (2, 4, 4)])
def test_images_of_any_size_begin_on_the_sphere_in_l2(shape):
    x, model = torch.full((1, *shape), 0.5), Watched(shape)
    attacks.square_attack(model, x, torch.tensor([0]), 0.4, norm="l2", queries=3)
    start = next(image for image in model.asked.images if not torch.equal(image, x[0])) - 0.5
    assert float(start.norm()) == pytest.approx(0.4, rel=1e-5)
    assert (start.abs().amax(0) > 0).float().mean() > 0.6  # bumps side by side


def test_bumps_in_l2_take_the_mass_of_two_windows_and_what_the_box_cut_off(monkeypatch):
    """So every move is as long as the ball is wide, before the box cuts it, though only two windows of it are new."""
    moves, onto_sphere = [], SQUARE._onto_sphere
    monkeypatch.setattr(SQUARE, "_onto_sphere", lambda delta, *rest: moves.append(delta.clone()) or onto_sphere(delta, *rest))
    x = torch.rand(20, 3, 12, 12, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # many values at the walls
    model, rounds = Watched(x.shape[1:]), SquareRound(40, p=0.1)
    problem = Problem(prepare(model, x, torch.ones(20, dtype=torch.long) - 1), 3.0, "l2", PerExample(0))
    state = {"id": torch.arange(20), "x": x, "y": torch.zeros(20, dtype=torch.long)}
    rounds.start(problem, state)
    for i in range(40):
        kept = state["best"] - x
        rounds.step(problem, state, i)
        torch.testing.assert_close(moves[-1].flatten(1).norm(dim=1), torch.full((20,), 3.0))
        assert 2.5 < float(kept.flatten(1).norm(dim=1).mean()) < 2.99  # the box cuts
        new = ((moves[-1] - kept).abs() > 1e-6).any(1).flatten(1).sum(1)
        assert int(new.max()) <= 2 * rounds.side(i, 12, 12, "l2") ** 2


@pytest.mark.parametrize("queries", [1, 2, 5, 40])
def test_a_step_is_the_query_that_broke_the_point(queries):
    """Fewer queries break those points whose step comes before; a tie, which is no loss, is no step of its own."""
    x, y = torch.full((200, 1, 4, 4), 0.5), torch.zeros(200, dtype=torch.long)
    whole = attacks.square_attack(Ties().eval(), x, y, 0.1, queries=50, p=0.3)
    assert whole.broken.all() and len(whole.step.unique()) > 4
    fewer = attacks.square_attack(Ties().eval(), x, y, 0.1, queries=queries, p=0.3)
    assert torch.equal(fewer.broken, whole.step <= queries)


def test_restarts_begin_with_other_squares():
    x, y = torch.full((400, 5), 0.5), torch.zeros(400, dtype=torch.long)
    for norm in ("linf", "l2"):
        found = [attacks.square_attack(OnePixel(4), x, y, 0.3, norm=norm, queries=1, restarts=n) for n in (1, 4)]
        once, more = (result.broken.float().mean() for result in found)
        assert 0.4 < once < 0.8 < more
        assert not (found[0].broken & ~found[1].broken).any()


def test_a_square_that_failed_is_not_run_again():
    """Of a model that nothing moves: two colours of the whole image of four pixels, and then of each pixel."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight)
    model[1].bias.data = torch.tensor([2.0, 0.0])
    x, y = torch.full((5, 1, 2, 2), 0.5), torch.zeros(5, dtype=torch.long)
    result = attacks.square_attack(model.eval(), x, y, 0.1, queries=300)
    assert result.forwards.tolist() == [2 + 2 + 8] * 5  # after the point itself and the stripes
