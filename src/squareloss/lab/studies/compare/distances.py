"""How far points are from the decision boundary: ways across it, a bisection back to it, and tightening."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scores = Callable[[Tensor], Tensor]

OVERSHOOT = 1.02
WALK, TIGHTEN, BISECT = 50, 10, 20  # most steps of the walk, rounds of tightening, halvings
TARGETS = 9  # runners-up whose boundaries are looked at
NEIGHBOURS = 4  # points of other classes to start from


def distances(scores: Scores, x: Tensor, y: Tensor, *, free: Tensor | None = None) -> Tensor:
    """The smallest l_2 move found that takes each point out of its class, (N,).

    Starting points beyond the boundary are where steps to the nearest of the linearised boundaries lead
    (Moosavi-Dezfooli et al. 2016), and the nearest of the other points that are classified otherwise. From each, in turn:
    bisection back to the boundary, and the point of the boundary's tangent plane that is nearest to the start, kept where it
    is nearer. An upper bound of the true distance, exact for linear scores. 0 where the class is wrong already, infinity
    where none of this leaves the class.

    Arguments:
        scores: (n, K) class scores of points (n, D).
        x, y: the points (N, D) and their classes (N,).
        free: 1 for the coordinates that may move, 0 for the others, (D,); all if None.
    """
    free = torch.ones(x.shape[1], device=x.device) if free is None else free
    ends = [_walk(scores, x, y, free), *_neighbours(scores, x, y, free)]
    return torch.stack([_tightened(scores, x, y, end, free) for end in ends]).amin(0)


def _tightened(scores: Scores, x: Tensor, y: Tensor, end: Tensor, free: Tensor) -> Tensor:
    """The distance to the boundary on the way to `end` (N, D), brought down by moves along the boundary's tangent."""
    best, found = _nearest_on_segment(scores, x, y, end)
    for _ in range(TIGHTEN):
        value, w = _boundary(scores, best, y, free)
        origin = value + (w * (x - best)).sum(1)  # the linearised margin at the start
        tried = x - OVERSHOOT * (origin / w.square().sum(1).clamp_min(1e-20))[:, None] * w
        tried, length = _nearest_on_segment(scores, x, y, tried)
        nearer = length < found
        best, found = torch.where(nearer[:, None], tried, best), torch.where(nearer, length, found)
    return found


def _neighbours(scores: Scores, x: Tensor, y: Tensor, free: Tensor) -> list[Tensor]:
    """For each point the nearest points of other classes, moved to only in the free coordinates: (N, D) each."""
    with torch.no_grad():
        other = scores(x).argmax(1)[None] != y[:, None]  # (N, N)
    apart = torch.cdist(x * free, x * free).masked_fill(~other, torch.inf)
    nearest = apart.topk(min(NEIGHBOURS, len(x)), largest=False).indices  # (N, k)
    return [x + free * (x[place] - x) for place in nearest.unbind(1)]


def _walk(scores: Scores, x: Tensor, y: Tensor, free: Tensor) -> Tensor:
    """Points (N, D) beyond the boundary, as far as the walk gets there."""
    z = x.clone()
    for _ in range(WALK):
        left = (~_lost(scores, z, y)).nonzero().squeeze(1)
        if not len(left):
            break
        value, w = _boundary(scores, z[left], y[left], free)
        step = (value + 1e-4) / w.square().sum(1).clamp_min(1e-20)
        z[left] = z[left] - OVERSHOOT * step[:, None] * w
    return z


def _boundary(scores: Scores, z: Tensor, y: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Margin (n,) to the class whose linearised boundary is nearest, and its gradient (n, D)."""
    z = z.detach().requires_grad_()
    out = scores(z)
    rivals = out.scatter(1, y[:, None], -torch.inf).topk(min(TARGETS, out.shape[1] - 1), 1).indices  # (n, T)
    margins = out.gather(1, y[:, None]) - out.gather(1, rivals)
    slopes = torch.stack(
        [torch.autograd.grad(m.sum(), z, retain_graph=True)[0] * free for m in margins.unbind(1)], 1
    )  # (n, T, D)
    reach = margins.detach().abs() / slopes.square().sum(2).sqrt().clamp_min(1e-10)
    pick = reach.argmin(1)
    rows = torch.arange(len(z), device=z.device)
    return margins.detach()[rows, pick], slopes[rows, pick]


def _nearest_on_segment(scores: Scores, x: Tensor, y: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The first point found beyond the boundary on the way from x to `end`, and its distance; infinity if `end` is inside."""
    there = _lost(scores, end, y)
    low, high = torch.zeros(len(x), device=x.device), torch.ones(len(x), device=x.device)
    for _ in range(BISECT):
        middle = (low + high) / 2
        lost = _lost(scores, x + middle[:, None] * (end - x), y)
        low, high = torch.where(lost, low, middle), torch.where(lost, middle, high)
    point = x + high[:, None] * (end - x)
    length = (point - x).square().sum(1).sqrt()
    length = torch.where(_lost(scores, x, y), torch.zeros_like(length), length)
    return point, length.masked_fill(~there, torch.inf)


@torch.no_grad()
def _lost(scores: Scores, z: Tensor, y: Tensor) -> Tensor:
    return scores(z).argmax(1) != y
