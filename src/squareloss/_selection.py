"""Choose lambda and fit the probability map of a ridge classifier, both on exact leave-one-out scores.

`select` reads the samples twice, in blocks, since they need not fit in memory together:

1. `_judge`: left-out scores of all samples at every lambda, of which only sums are kept, to choose the best one by;
2. `_left_out_scores`: those of every so many samples at the best lambda, which `fit_curve` fits the probability map to.

Both take them from one of two forms of a path. `_Tall`, for more samples than features, has d x d eigenvectors, and any block's
features give its scores. `_Wide`, for n <= d (or n = d + 1 and an intercept), has n x n eigenvectors, the `dual` of the path,
which holds the scores of all samples; they are one block.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from squareloss import _warnings
from squareloss._probability_map import CALIBRATION, Curve, fit_curve
from squareloss.codings import Simplex
from squareloss.ridge import FeaturePath, KernelPath, left_out

Block = tuple[Tensor, Tensor, Tensor]  # features (m, d), labels (m, S), sample weights (m,)
Blocks = Callable[[], Iterable[Block]]  # of samples with a weight > 0, the same ones in the same order each time
Solution = tuple[Tensor, Tensor]  # coefficients (d, K) and intercept (K,)
CRITERIA = ("brier", "accuracy")
COLUMNS = 1024  # outputs, over lambdas, of one product


@dataclass(frozen=True)
class Selection:
    """What was chosen for one label set, with the leave-one-out Brier score and accuracy of every candidate.

    They are NaN where leave-one-out is lost in rounding; such a candidate is not chosen.
    """

    lambdas: list[float]
    brier: list[float]
    accuracy: list[float]
    best: int
    curve: Curve
    coefficients: Tensor  # (d, K)
    intercept: Tensor  # (K,)

    @property
    def lam(self) -> float:
        """The lambda chosen."""
        return self.lambdas[self.best]


def select(
    path: FeaturePath,
    blocks: Blocks,
    num_classes: Sequence[int],
    lambdas: Sequence[float],
    *,
    count: int,
    frequencies: Sequence[Tensor] | None,
    class_weight: Tensor | None,
    criterion: str,
    warn: bool = True,
    progress: bool = False,
) -> list[Selection]:
    """Lambda by leave-one-out and the probability map of every label set.

    Arguments:
        path: the ridge path, over the codes of all label sets side by side.
        blocks: called for each of two passes over samples that `path` was fitted on; all of them, in one block, if it is wide.
        num_classes: K of each label set. lambdas: the candidates. count: how many samples the blocks hold.
        frequencies: (K,) of each label set; None fits a temperature alone.
        class_weight: (K,) of the only label set, or None: as in the fit of `path`. The probability map undoes it.
        criterion: "brier" or "accuracy".
        warn: of lambdas that can't be judged. progress: show that of the probability map.
    """
    if not count:
        return _unjudged(path, num_classes, lambdas)
    stride = -(-count * max(num_classes) // CALIBRATION)
    form = _Tall(path, lambdas, stride) if path.dual is None else _Wide(path.dual, lambdas, stride)
    squares, hits, mass = _judge(form, _read(blocks, count), num_classes, class_weight)
    lost = [lam for lam, square in zip(lambdas, squares[0].tolist(), strict=True) if math.isnan(square)]
    told = f"leave-one-out is lost in rounding at lambda = {', '.join(f'{lam:.3g}' for lam in lost)}"
    if len(lost) == len(lambdas) > 1:
        raise ValueError(f"expected a lambda to choose, but {told}; give larger ones")
    losses = squares if criterion == "brier" else [-h for h in hits]
    best = [int(loss.nan_to_num(math.inf).argmin()) for loss in losses]
    solutions = _solve(path, num_classes, [lambdas[b] for b in best])
    left = _left_out_scores(form, _read(blocks, count), best, solutions)
    judged = bool(left[0][0].isfinite().any())  # 1 - h is that of all label sets
    if lost and warn:
        rest = "not chosen" if len(lambdas) > 1 else "probabilities rest on the other samples" if judged else "no probabilities"
        told += f", since samples nearly fix their own fit there: {rest}; give larger ones"
        _warnings.warn(told)
    if not judged:
        return _unjudged(path, num_classes, lambdas)
    offset = None if class_weight is None else -class_weight.log()
    chosen = []
    for i, (loo, labels, weight) in enumerate(left):
        known = loo[:, 0].isfinite()
        frequency = None if frequencies is None else frequencies[i]
        curve = fit_curve(loo[known], labels[known], weight[known], frequency, offset, progress=progress)
        brier, accuracy = squares[i] / (num_classes[i] ** 2 * mass), hits[i] / mass
        chosen.append(Selection(list(lambdas), brier.tolist(), accuracy.tolist(), best[i], curve, *solutions[i]))
    return chosen


def _unjudged(path: FeaturePath, num_classes: Sequence[int], lambdas: Sequence[float]) -> list[Selection]:
    """The solutions at the only lambda, without leave-one-out scores to judge them by: no probability map, and no shift."""
    if len(lambdas) > 1:
        raise ValueError(
            "expected samples to choose lambda by, but all that were kept have been forgotten; add some, or give one lambda"
        )
    curves = [Curve(math.nan, 0.0, path.values.new_zeros(k), None) for k in num_classes]
    solutions = _solve(path, num_classes, list(lambdas) * len(num_classes))
    return [Selection(list(lambdas), [math.nan], [math.nan], 0, c, *s) for c, s in zip(curves, solutions, strict=True)]


def _solve(path: FeaturePath, num_classes: Sequence[int], lams: Sequence[float]) -> list[Solution]:
    """The coefficients (d, K) and the intercept (K,) of each label set, at its own lambda."""
    own = [replace(path, cross=path.cross[:, part], mean_y=path.mean_y[part]) for part in _columns(num_classes)]
    return [part.solve(lam) for part, lam in zip(own, lams, strict=True)]


class _Tall:
    """Left-out scores y - (y - f) / (1 - h) of any block, from its features in the basis of the d x d form."""

    def __init__(self, path: FeaturePath, lambdas: Sequence[float], stride: int) -> None:
        self.path, self.lambdas, self.stride = path, lambdas, stride
        self.slacks: deque[Tensor] = deque()  # 1 - h (L, m) of each block, from pass 1 to pass 2, which need not project

    def at_every_lambda(self, x: Tensor, codes: Tensor, s: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Pass 1: groups of lambdas, with the scores (g, m, W) of a block there."""
        projected = self.path.project(x)
        slack = self.path.slack(projected, s, self.lambdas)  # (L, m)
        self.slacks.append(slack[:, :: self.stride].contiguous())
        for part in _groups(self.lambdas, codes):
            yield part, left_out(codes, self.path.fitted(projected, self.lambdas[part]), slack[part])

    def at_best_lambda(self, x: Tensor, labels: Tensor, best: Sequence[int], solutions: Sequence[Solution]) -> list[Tensor]:
        """Pass 2: the scores (m, K) of each label set, for every stride-th sample of the next block."""
        slack = self.slacks.popleft()
        codes = [encode(labels[:, i : i + 1], [len(intercept)]) for i, (_, intercept) in enumerate(solutions)]
        return [left_out(y, x @ w + c, slack[b]) for y, (w, c), b in zip(codes, solutions, best, strict=True)]


class _Wide:
    """The same, of all samples at once: the n x n form holds them, and does not read their features."""

    def __init__(self, path: KernelPath, lambdas: Sequence[float], stride: int) -> None:
        self.path, self.lambdas, self.stride = path, lambdas, stride

    def at_every_lambda(self, x: Tensor, codes: Tensor, s: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for part in _groups(self.lambdas, codes):
            yield part, self.path.leave_one_out_path(self.lambdas[part])

    def at_best_lambda(self, x: Tensor, labels: Tensor, best: Sequence[int], solutions: Sequence[Solution]) -> list[Tensor]:
        scores = by_label_set(self.path, [self.lambdas[b] for b in best], [len(intercept) for _, intercept in solutions])
        return [own[:: self.stride] for own in scores]


def _judge(
    form: _Tall | _Wide, blocks: Iterable[Block], num_classes: Sequence[int], class_weight: Tensor | None
) -> tuple[Tensor, Tensor, float]:
    """Pass 1: sums of squared left-out errors and of hits (S, L), NaN where rounding hides scores; the sum of the weights."""
    squares, hits = form.path.values.new_zeros(2, len(num_classes), len(form.lambdas))
    mass = 0.0
    for x, labels, weight in blocks:
        codes, s = encode(labels, num_classes), weight_in_fit(labels, weight, class_weight)
        for part, loo in form.at_every_lambda(x, codes, s):
            for i, own in enumerate(_columns(num_classes)):
                squares[i, part] += (loo[..., own] - codes[:, own]).square().sum(2) @ s
                hits[i, part] += (loo[..., own].argmax(2) == labels[:, i]).to(s) @ s
        mass += float(s.sum())
    return squares, hits.masked_fill(squares.isnan(), math.nan), mass


def _left_out_scores(
    form: _Tall | _Wide, blocks: Iterable[Block], best: Sequence[int], solutions: Sequence[Solution]
) -> list[Block]:
    """Pass 2: for each label set, the left-out scores (m, K), labels (m,) and weights (m,) of every stride-th sample."""
    parts: list[list[Block]] = [[] for _ in solutions]
    for block in blocks:
        x, labels, weight = (column[:: form.stride] for column in block)
        for i, scores in enumerate(form.at_best_lambda(x, labels, best, solutions)):
            parts[i].append((scores, labels[:, i], weight))
    return [tuple(torch.cat(column) for column in zip(*part, strict=True)) for part in parts]  # type: ignore[misc]


def _groups(lambdas: Sequence[float], codes: Tensor) -> list[slice]:
    """Lambdas in runs whose outputs, as many as codes (m, W) for each, make one product."""
    size = max(1, COLUMNS // codes.shape[1])
    return [slice(first, first + size) for first in range(0, len(lambdas), size)]


def _read(blocks: Blocks, count: int) -> Iterator[Block]:
    """One pass over the blocks that are not empty, which must have all samples."""
    seen = 0
    for block in blocks():
        seen += len(block[0])
        if seen > count:
            break
        if len(block[0]):
            yield block
    if seen != count:
        raise ValueError(
            f"expected the same {count} samples at each reading, got {seen}; give a list, or a function that starts anew"
        )


def weight_in_fit(labels: Tensor, weight: Tensor, class_weight: Tensor | None) -> Tensor:
    """The weights (m,) that samples have in the fit: times those of their classes, in the only label set."""
    return weight if class_weight is None else weight * class_weight[labels[:, 0]]


def by_label_set(dual: KernelPath, lams: Sequence[float], num_classes: Sequence[int]) -> list[Tensor]:
    """The leave-one-out scores (n, K) of each label set, at its own lambda."""
    own = [replace(dual, cross=dual.cross[:, part], targets=dual.targets[:, part]) for part in _columns(num_classes)]
    return [path.leave_one_out(lam) for path, lam in zip(own, lams, strict=True)]


def _columns(num_classes: Sequence[int]) -> list[slice]:
    """Where each label set stands among the outputs of all."""
    return [slice(end - k, end) for k, end in zip(num_classes, accumulate(num_classes), strict=True)]


def encode(labels: Tensor, num_classes: Sequence[int]) -> Tensor:
    """The codes of all label sets side by side, (m, W) in float64."""
    codes = [Simplex().encode(column, k).double() for column, k in zip(labels.T, num_classes, strict=True)]
    return torch.cat(codes, 1)
