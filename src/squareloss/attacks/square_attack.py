"""Square Attack (Andriushchenko et al. 2020): random search with squares, no gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks
from squareloss.attacks._common import column, distance, true_margin
from squareloss.attacks._random import Published
from squareloss.attacks._rounds import Options, Problem, Stage, State, check_options
from squareloss.attacks._run import attack
from squareloss.attacks.results import AttackResult

_BLOCK = 64  # steps whose random draws are made at once
_CHOICES = 1 << 14  # squares of one size there may be for the tried ones to be remembered
_FALLS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # after these steps the share of the image halves


def square_attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    queries: int = 5000,
    p: float = 0.8,
    restarts: int = 1,
    **options: Unpack[Options],
) -> AttackResult:
    """Square Attack on the margin: try a square of +-eps at a random place, keep it if the margin falls.

    The square covers a share p of the image, halved after steps 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000, whatever the
    number of queries. In l_2 the squares are pairs of opposite bumps, and mass moves from one window to another.

    Arguments:
        queries: tries per restart, after the start, 1 or more.
        p: the share of the image that the first squares cover, in (0, 1].
        the others: as for `pgd`. Inputs (N, C, H, W); (N, H, W) are one channel, (N, D) an image one pixel high.
    """
    check_options(square_attack, options)
    _checks.whole("queries", queries)
    _checks.whole("restarts", restarts)
    if not 0 < p <= 1:
        raise ValueError(f"expected p in (0, 1], got {p}; it is a share of the image")
    rounds = tuple(SquareRound(queries, p, restart) for restart in range(restarts))
    return attack(model, x, y, eps, lambda _: [Stage("square", rounds)], options)


@dataclass(frozen=True, eq=False)
class SquareRound:
    """One restart of Square Attack."""

    steps: int
    p: float = 0.8
    restart: int = 0
    attack: str = "square"
    loss: str = "margin"
    every: int = 8
    bar: float = torch.inf
    costs: tuple[int, int, int, int] = (1, 0, 1, 0)

    def check(self, num_classes: int) -> None:
        """Two classes are enough."""

    def start(self, problem: Problem, state: State) -> None:
        """Vertical stripes of +-eps in l_inf; a grid of bumps in l_2."""
        image = _image(state["x"])
        if problem.norm == "linf":
            stripes = self._signs(problem, state, 0, (image.shape[1], 1, image.shape[3]))
            tried = torch.where(stripes, image + problem.eps, image - problem.eps).clamp_(0, 1)
            low, high = ((image + s * problem.eps).clamp_(0, 1).view_as(state["x"]) for s in (-1, 1))
            state |= {"low": low, "high": high}
            choices = image.shape[2] * image.shape[3] << image.shape[1]
            if not problem.network.cuda and choices <= _CHOICES:
                state["seen"] = torch.zeros(len(image), choices, dtype=torch.bool)
                state["skipped"] = torch.zeros(len(image), dtype=torch.int64)
        else:
            tried = _onto_sphere(self._grid(problem, state, image), image, problem.eps)
        state["best"] = tried.view_as(state["x"])
        margin = true_margin(problem.network.scores(state["best"]), state["y"])
        hit = torch.where(margin <= 0, 0, -1)
        state |= {"tried": state["best"], "margin": margin, "hit": hit}

    def step(self, problem: Problem, state: State, i: int) -> None:
        """One square; kept where the margin falls."""
        image = _image(state["x"])
        t = i % self._block(problem)
        if t == 0:
            self._draw(problem, state, i, image)
        rows = self._unseen(state, i, t)
        if rows is not None and len(rows) == 0:
            return
        tried = self._square(state, t) if problem.norm == "linf" else self._bump(problem, state, i, t)
        tried = tried.view_as(state["x"])
        margin = self._margin(problem, state, tried, rows)
        better = margin < state["margin"]
        if rows is not None:
            state["seen"].masked_fill_(better.unsqueeze(1), False).scatter_(1, state["keys"][:, t, None], True)
        state["best"] = torch.where(column(better, tried), tried, state["best"])
        state["tried"] = state["best"]
        state["margin"] = torch.minimum(margin, state["margin"])
        state["hit"] = torch.where(better & (margin <= 0) & (state["hit"] < 0), i + 1, state["hit"])

    def side(self, i: int, height: int, width: int, norm: str) -> int:
        """The side of the square at step i; odd and at least 3 in l_2, where bumps have a middle."""
        share = self.p / 2 ** sum(i > fall for fall in _FALLS)
        side = max(round(math.sqrt(share * height * width)), 1 if norm == "linf" else 3)
        side += norm == "l2" and side % 2 == 0
        return min(side, height, width)

    def _unseen(self, state: State, i: int, t: int) -> Tensor | None:
        """The rows whose square was not tried on the same image before; None if all must be run.

        A square that failed fails again, so on the CPU it is not run a second time: with squares of one pixel on small images
        nearly all are repeats. On CUDA, finding them would wait for the device.
        """
        if "seen" not in state:
            return None
        height, width = _image(state["x"]).shape[2:]
        if i > 0 and self.side(i, height, width, "linf") != self.side(i - 1, height, width, "linf"):
            state["seen"].zero_()
        repeats = state["seen"].gather(1, state["keys"][:, t, None]).squeeze(1)
        state["skipped"] += repeats
        return (~repeats).nonzero().squeeze(1)

    def _margin(self, problem: Problem, state: State, tried: Tensor, rows: Tensor | None) -> Tensor:
        """The margin of the images tried; infinite where they are not run."""
        network, y = problem.network, state["y"]
        if rows is None or len(rows) == len(y):
            return true_margin(network.scores(tried), y)
        margin = torch.full_like(state["margin"], torch.inf)
        margin[rows] = true_margin(network.scores(tried[rows]), y[rows])
        return margin

    def _square(self, state: State, t: int) -> Tensor:
        """The best image with +-eps in the window of step t of the block."""
        inside = state["rows"][:, t, None, :, None] & state["columns"][:, t, None, None, :]
        colours = torch.where(state["signs"][:, t, :, None, None], _image(state["high"]), _image(state["low"]))
        return torch.where(inside, colours, _image(state["best"]))

    def _bump(self, problem: Problem, state: State, i: int, t: int) -> Tensor:
        """A bump put into one window, and the mass of another window given up for it."""
        image, best = _image(state["x"]), _image(state["best"])
        n, channels, height, width = image.shape
        side = self.side(i, height, width, "l2")
        delta = (best - image).flatten(2)  # (n, C, HW)
        offsets = _offsets(side, width, image.device)
        here, there = (
            (state["corners"][:, t, k, None] + offsets).unsqueeze(1).expand(n, channels, side * side) for k in (0, 1)
        )
        emptied = delta.scatter(2, there, 0.0).scatter(2, here, 0.0)
        spare = (problem.eps**2 - delta.square().sum((1, 2), keepdim=True)).clamp_min(0) / channels
        mass = (spare + (delta - emptied).square().sum(2, keepdim=True)).sqrt()  # (n, C, 1)
        old = delta.gather(2, here)
        bumps = _bumps(side, image.dtype, image.device)[state["turned"][:, t]].unsqueeze(1)  # (n, 1, side^2)
        new = bumps * state["signs"][:, t, :, None] + old / (1e-12 + _length(old))
        new = new / (1e-12 + _length(new)) * mass
        return _onto_sphere(emptied.scatter(2, here, new).view_as(image), image, problem.eps)

    def _block(self, problem: Problem) -> int:
        """How many steps are drawn at once; the published l_2 draws depend on how many points are left at each step."""
        return 1 if problem.draws.shared and problem.norm == "l2" else _BLOCK

    def _draw(self, problem: Problem, state: State, i: int, image: Tensor) -> None:
        """The random choices of the next steps: a table on the device, one row per point."""
        _, channels, height, width = image.shape
        block = min(self._block(problem), self.steps - i)
        sides = [self.side(i + t, height, width, problem.norm) for t in range(block)]
        # the published code leaves out the last place, so that its squares come neither to the last row nor to the last column
        last = 0 if problem.draws.shared else 1
        spans = torch.tensor([[height - s + last, width - s + last] for s in sides], device=image.device)  # (block, 2)
        if problem.norm == "linf":
            u = self._numbers(problem, state, i, block, 2 + channels)
            first = (u[..., :2] * spans).long()  # (n, block, 2)
            end = first + torch.tensor(sides, device=image.device).unsqueeze(1)
            state["rows"], state["columns"] = (
                (place >= first[..., k, None]) & (place < end[..., k, None])
                for k, place in enumerate((torch.arange(height, device=image.device), torch.arange(width, device=image.device)))
            )
            state["signs"] = u[..., 2:] > 0.5
            if "seen" in state:
                bits = (state["signs"] << torch.arange(channels, device=image.device)).sum(2)
                state["keys"] = (first[..., 0] * width + first[..., 1] << channels) + bits  # which square of all there are
            return
        u = self._numbers(problem, state, i, block, 5)
        corners = (u[..., :4] * spans.repeat(1, 2)).long()  # (n, block, 4)
        state["corners"] = corners[..., 0::2] * width + corners[..., 1::2]  # (n, block, 2), flat
        state["turned"] = (u[..., 4] > 0.5).long()
        state["signs"] = torch.where(self._signs(problem, state, i + 1, (block, channels)), 1.0, -1.0).to(image)

    def _numbers(self, problem: Problem, state: State, i: int, block: int, count: int) -> Tensor:
        """Uniform numbers (n, block, count) for the steps from i on; in parity mode the same for every point."""
        draws, ids = problem.draws, state["id"]
        if isinstance(draws, Published):
            shared = draws.numbers(block * count, ids.device).view(1, block, count)
            return shared.expand(len(ids), block, count)
        return draws.uniform(ids, (self.attack, self.restart, i, "numbers"), (block, count))

    def _signs(self, problem: Problem, state: State, i: int, shape: tuple[int, ...]) -> Tensor:
        """Random signs, True for +, (n, *shape)."""
        return problem.draws.uniform(state["id"], (self.attack, self.restart, i, "signs"), shape) > 0.5

    def _grid(self, problem: Problem, state: State, image: Tensor) -> Tensor:
        """The first perturbation in l_2: bumps of a fifth of the image, side by side, with random signs and directions."""
        n, channels, height, width = image.shape
        side = max(height // 5, 1)
        delta, margin = torch.zeros_like(image), max(height - side * 5, 0) // 2
        bumps = _bumps(side, image.dtype, image.device)
        for row in range(height // side):
            for col in range(width // side):
                turned = (self._numbers(problem, state, -1 - row * width - col, 1, 1)[:, 0, 0] > 0.5).long()
                signs = self._signs(problem, state, -1 - row * width - col, (channels, 1, 1))
                top, left = margin + row * side, margin + col * side
                bump = bumps[turned].view(n, 1, side, side)[..., : max(height - top, 0), : max(width - left, 0)]
                delta[..., top : top + side, left : left + side] += bump * torch.where(signs, 1.0, -1.0).to(bump)
        return delta


def _image(x: Tensor) -> Tensor:
    """x as (n, C, H, W)."""
    if x.ndim == 4:
        return x
    if x.ndim > 4:
        raise ValueError(f"expected images (N, C, H, W) for square_attack, got {tuple(x.shape)}")
    return x.unsqueeze(1) if x.ndim == 3 else x[:, None, None, :]


def _length(values: Tensor) -> Tensor:
    return values.square().sum(2, keepdim=True).sqrt()


def _onto_sphere(delta: Tensor, image: Tensor, eps: float) -> Tensor:
    """The image moved by `delta` stretched to length eps, then clipped to the box."""
    return (image + delta * column(eps / (distance(delta, "l2") + 1e-12), delta)).clamp_(0, 1)


@cache
def _offsets(side: int, width: int, device: torch.device) -> Tensor:
    """The flat indices (side^2,) of a window at the upper left corner."""
    steps = torch.arange(side, device=device)
    return (steps.unsqueeze(1) * width + steps).flatten()


@cache
def _bumps(side: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A positive bump on top of a negative one, of norm one, upright and turned: (2, side^2)."""
    half = side // 2
    pair = torch.cat([_bump(half, side), -_bump(side - half, side)])
    pair = pair / pair.square().sum().sqrt()
    return torch.stack([pair, pair.T]).flatten(1).to(device, dtype)


def _bump(height: int, width: int) -> Tensor:
    """Nested rectangles around the middle, each adding 1 / (its distance + 1)^2; of norm one."""
    middle = (height // 2, width // 2)
    rows, cols = torch.arange(height), torch.arange(width)
    far = torch.maximum((rows - middle[0]).abs().unsqueeze(1), (cols - middle[1]).abs().unsqueeze(0))  # (height, width)
    rings = max(middle) + 1
    weights = torch.tensor([1.0 / (k + 1) ** 2 for k in range(rings)])
    bump = torch.stack([weights[k] * (far <= k) for k in range(rings)]).sum(0) if height else torch.zeros(0, width)
    return bump / bump.square().sum().sqrt().clamp_min(1e-12)
