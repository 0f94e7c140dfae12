"""The decision boundary f = 0 of a function of the plane: as segments, as chains to draw, and its distance from points.

The box is cut into squares and each square into two triangles. Where f changes its sign along an edge, the zero is found by
the regula falsi on that edge, with f itself; the two zeros of a triangle's edges are joined by a segment. The segments
follow a smooth boundary to within h^2/4 times its curvature, h the side of the squares; distances to segments are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]  # points (m, 2) to values (m,)
REFINED = 3  # rounds of the regula falsi


def lattice(reach: float, side: int, device: torch.device | str = "cpu") -> Tensor:
    """Points (side, side, 2) of the box [-reach, reach]^2, rows from below, x running along the row."""
    line = torch.linspace(-reach, reach, side, device=device)
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([x, y], dim=-1)


def segments(values: Tensor, points: Tensor, function: Function) -> Tensor:
    """The boundary as segments (m, 2, 2): start and end, x and y.

    Arguments:
        values: f at the lattice, (side, side).
        points: the lattice, (side, side, 2).
        function: f, for zeros between lattice points.
    """
    corners, value = _triangles(points), _triangles(values[..., None])[..., 0]  # (m, 3, 2), (m, 3)
    positive = value > 0
    cut = (positive.sum(1) % 3 > 0).nonzero()[:, 0]  # one corner differs from the two others
    corners, value, positive = corners[cut], value[cut], positive[cut]
    odd = torch.where(positive.sum(1, keepdim=True) == 1, positive, ~positive).to(torch.int8).argmax(1)
    rows = torch.arange(len(cut), device=values.device)
    ends = []
    for step in (1, 2):
        other = (odd + step) % 3
        ends.append(_zero(corners[rows, odd], corners[rows, other], value[rows, odd], value[rows, other], function))
    return torch.stack(ends, dim=1)


def _triangles(lattice: Tensor) -> Tensor:
    """Corners (m, 3, k) of the two triangles of every square of a lattice (side, side, k)."""
    a, b, c, d = lattice[:-1, :-1], lattice[:-1, 1:], lattice[1:, 1:], lattice[1:, :-1]
    return torch.stack([torch.stack([a, b, c], 2), torch.stack([a, c, d], 2)]).flatten(0, 2)


def _zero(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor, function: Function) -> Tensor:
    """Where f is zero between points a and b (m, 2) at which it has different signs."""
    # an edge is shared by two triangles: the order of its ends must not matter, so that chains close
    swap = ((a[:, 0] > b[:, 0]) | ((a[:, 0] == b[:, 0]) & (a[:, 1] > b[:, 1])))[:, None]
    a, b = torch.where(swap, b, a), torch.where(swap, a, b)
    fa, fb = torch.where(swap[:, 0], fb, fa), torch.where(swap[:, 0], fa, fb)
    low, high = torch.zeros_like(fa), torch.ones_like(fa)
    t = fa / (fa - fb)
    for _ in range(REFINED if len(a) else 0):
        ft = function(a + t[:, None] * (b - a))
        same = (ft > 0) == (fa > 0)
        low, high = torch.where(same, t, low), torch.where(same, high, t)
        fa, fb = torch.where(same, ft, fa), torch.where(same, fb, ft)
        t = low + (high - low) * (fa / (fa - fb)).nan_to_num(0.5).clamp(0, 1)
    return a + t[:, None] * (b - a)


def distances(points: Tensor, boundary: Tensor, most: float) -> Tensor:
    """Distance (m,) of points (m, 2) to the nearest segment (s, 2, 2), at most `most`: beyond, the box may hide some."""
    nearest = torch.full((len(points),), most, device=points.device, dtype=points.dtype)
    rows = max(1, 2**22 // max(1, len(points)))
    for part in torch.split(boundary, rows) if len(boundary) else ():
        start, along = part[:, 0], part[:, 1] - part[:, 0]
        offset = points[:, None] - start  # (m, s, 2)
        share = ((offset * along).sum(-1) / along.square().sum(-1).clamp_min(1e-20)).clamp(0, 1)
        gap = (offset - share[..., None] * along).square().sum(-1).min(1).values.sqrt()
        nearest = torch.minimum(nearest, gap)
    return nearest


def chains(boundary: Tensor, tolerance: float) -> list[list[tuple[float, float]]]:
    """The segments joined to lines, with as few points as keep within the tolerance."""
    rounded = np.round(boundary.cpu().double().numpy(), 5)
    ends = [(tuple(a), tuple(b)) for a, b in rounded.tolist()]
    at: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for i, (a, b) in enumerate(ends):
        if a != b:
            at[a].append(i)
            at[b].append(i)
    used: set[int] = set()

    def follow(here: tuple[float, ...]) -> list[tuple[float, ...]]:
        line = [here]
        while (found := next((i for i in at[line[-1]] if i not in used), None)) is not None:
            used.add(found)
            a, b = ends[found]
            line.append(b if a == line[-1] else a)
        return line

    lines = [follow(end) for end in [p for p, ids in at.items() if len(ids) == 1] + list(at)]
    return [_simpler([(p[0], p[1]) for p in line], tolerance) for line in lines if len(line) > 1]


def _simpler(line: list[tuple[float, float]], tolerance: float) -> list[tuple[float, float]]:
    """Douglas and Peucker: the ends, and the farthest point from their chord as long as one is farther than the tolerance."""
    points, kept, todo = np.array(line), {0, len(line) - 1}, [(0, len(line) - 1)]
    while todo:
        first, last = todo.pop()
        if last - first < 2:
            continue
        gaps = _off_chord(points[first + 1 : last], points[first], points[last])
        if gaps.max() > tolerance:
            middle = first + 1 + int(gaps.argmax())
            kept.add(middle)
            todo += [(first, middle), (middle, last)]
    return [line[i] for i in sorted(kept)]


def _off_chord(points: np.ndarray, start: np.ndarray, end: np.ndarray) -> Any:
    """Distances (m,) of points (m, 2) to the segment between two points; in NumPy, which is quick for a few points."""
    along = end - start
    share = np.clip((points - start) @ along / max(along @ along, 1e-20), 0, 1)
    return np.linalg.norm(points - start - share[:, None] * along, axis=1)
