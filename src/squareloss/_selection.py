"""Choose lambda and fit the probability map of a ridge classifier, both on exact leave-one-out scores.

`select` reads the samples twice, in blocks, since they need not fit in memory together:

1. `_judge`: left-out scores of all samples at every lambda, of which only sums are kept, to choose the best one by;
2. `_left_out_scores`: those of every so many samples at the best lambda, which `fit_curve` fits the probability map to.

Both take them from one of two forms of a path. `_Tall`, for more samples than features, has d x d eigenvectors, and any block's
features give its scores. `_Wide`, for n <= d (or n = d + 1 and an intercept), has n x n eigenvectors, the `dual` of the path,
which holds the scores of all samples; they are one block.

Scores are the K outputs of ridge on the codes K e_y - 1 (`Simplex()`), zero-sum. With u = scores / K, which is eta - 1/K, a
probability is softmax(a v - b v^2), v = u + shift: a is an inverse temperature, b bends the map, and the shift, along the
logarithms of the class frequencies, moves the thresholds between frequent and rare classes. If the scores of the right class
and of a wrong one were Gaussian, the log odds would be of this form. The fit is by maximum likelihood, convex in a, b and a
times the shift.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from squareloss._progress import Line
from squareloss.codings import Simplex
from squareloss.ridge import FeaturePath, KernelPath, left_out

Block = tuple[Tensor, Tensor, Tensor]  # features (m, d), labels (m, S), sample weights (m,)
Blocks = Callable[[], Iterable[Block]]  # of samples with a weight > 0, the same ones in the same order each time
Solution = tuple[Tensor, Tensor]  # coefficients (d, K) and intercept (K,)
CALIBRATION = 2**24  # scores the probability map is fitted on, at most: it has three numbers
BLOCK = 2**17  # of them at a time on a CPU, which stay in its cache
COLUMNS = 1024  # outputs, over lambdas, of one product
PASSES = {True: 20, False: 8}  # over the scores, that the full map and a temperature alone usually take
FURTHEST = 16.0  # that a step of its fit moves logits of a sample against each other; beyond, all is sure and flat


@dataclass(frozen=True)
class Curve:
    """The probability map softmax(a u - b u^2 + offset) of u = scores / K + shift, kept increasing.

    Attributes:
        slope: a > 0, or NaN if there were no leave-one-out scores to fit it on. bend: b. shift: (K,), zero-sum.
        offset: (K,), or None: minus the logarithm of the class weights, which undoes them.
    """

    slope: float
    bend: float
    shift: Tensor
    offset: Tensor | None

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities (n, K) of scores (n, K)."""
        if math.isnan(self.slope):
            raise ValueError(
                "expected samples to fit probabilities on, but their leave-one-out scores are lost in rounding, or all samples "
                "that were kept have been forgotten; raise lambda, or add samples"
            )
        u = scores / scores.shape[1] + self.shift
        logits = self.slope * u
        if self.bend:
            # the parabola rises up to (or from) its vertex; past nine tenths of the way go on straight, so that order is kept
            turn = 0.9 * self.slope / (2 * self.bend)
            inside = u.clamp_max(turn) if turn > 0 else u.clamp_min(turn)
            logits = self.slope * inside - self.bend * inside.square() + 0.1 * self.slope * (u - inside)
        return torch.softmax(logits if self.offset is None else logits + self.offset, 1)


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
        warnings.warn(told, stacklevel=2)
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


def fit_curve(
    scores: Tensor,
    labels: Tensor,
    weight: Tensor,
    frequency: Tensor | None,
    offset: Tensor | None = None,
    *,
    progress: bool = False,
) -> Curve:
    """The most likely probability map of scores (n, K) with labels (n,) and weights (n,), all positive.

    Three fits: of slope, bend and shift; of slope and bend at that shift, for their ratio, within bounds; of the slope alone.
    As Platt did, one sample's worth of probability is spread over the K classes, so that perfect scores do not make it
    infinitely sure. The bounds keep the map increasing for eta in [0, 1]. Without frequencies (K,) there is the last fit alone.
    Its `progress` is an estimate: by the passes that such fits usually take.
    """
    k = scores.shape[1]
    u = scores / k
    count = len(scores)
    spread = 1 / (count + 1)
    target = torch.full_like(u, spread / k)
    target.scatter_add_(1, labels.unsqueeze(1), torch.full_like(u[:, :1], 1 - spread))
    share = weight / weight.sum()
    slope, shift, ratio = 0.0, torch.zeros_like(u[0]), 0.0
    passes = _Passes(PASSES[frequency is not None], progress)
    if frequency is not None:
        level = frequency.clamp_min(0.5 / count).log()
        level = level - level.mean()
        slope, bend, pull = _newton([u, -u.square(), level.expand_as(u)], target, share, offset, [0.0, 0.0, 0.0], passes)
        if slope > 0:
            shift = level * (pull / slope)
            u = u + shift
            if float(shift.abs().max()) < 1:  # else scores say next to nothing, and a bend would be one of the shift
                slope, bend = _newton([u, -u.square()], target, share, offset, [slope, bend], passes)
                ratio = min(max(bend / slope, -k / 2), k / (2 * (k - 1))) if slope > 0 else 0.0
    start = max(slope, 0.0)  # from far below, as of left-out scores that point away, the steps would not come back
    (slope,) = _newton([u - ratio * u.square()], target, share, offset, [start], passes)
    passes.line.close()
    slope = max(slope, 1e-3)  # scores that say nothing: nearly uniform, or the inverse class weights
    return Curve(slope, ratio * slope, shift, offset)


class _Passes:
    """Counts passes over the scores, of which there are usually so many, for a line that says how far the fit is."""

    def __init__(self, usual: int, show: bool) -> None:
        self.usual, self.done, self.line = usual, 0, Line("probability map", show)

    def __call__(self) -> None:
        self.done += 1
        self.line(self.done / max(self.usual, self.done + 1))


def _newton(
    features: Sequence[Tensor],
    target: Tensor,
    share: Tensor,
    offset: Tensor | None,
    start: Sequence[float],
    passed: Callable[[], None],
) -> list[float]:
    """argmin over theta (P,) of the cross-entropy of softmax(sum_p theta_p features_p + offset), P features (n, K)."""
    theta, scale = target.new_tensor(start), _scale(features, share)
    loss, gradient, second = _derivatives(theta, features, target, share, offset)
    passed()
    for _ in range(100):
        damped = second / torch.outer(scale, scale)
        damped.diagonal().mul_(1 + 1e-10).add_(1e-12)
        step = torch.linalg.solve(damped, gradient / scale) / scale
        decrease, moved = float(gradient @ step), _moved(step, features)
        if decrease < 1e-9 and moved < 1:  # so near that the step is right to the last digits, which the loss no longer shows
            theta = theta - step
            break
        size = whole = min(1.0, FURTHEST / moved)
        while size > 1e-6 * whole:  # halve until the loss falls enough
            new = _derivatives(theta - size * step, features, target, share, offset)
            passed()
            if new[0] <= loss - 1e-4 * size * decrease:
                break
            size /= 2
        else:
            break
        theta, (loss, gradient, second) = theta - size * step, new
    return [float(t) for t in theta]


def _scale(features: Sequence[Tensor], share: Tensor) -> Tensor:
    """The spread (P,) of each feature about its sample's mean; 1 where it is rounding, as of classes of equal frequency."""
    squares = share.new_zeros(len(features))
    for part in _parts(features[0]):
        for p, feature in enumerate(features):
            x = feature[part]
            squares[p] += (x - x.mean(1, keepdim=True)).square().mean(1) @ share[part]
    return torch.where(squares > 1e-26, squares.sqrt(), 1.0)


def _moved(step: Tensor, features: Sequence[Tensor]) -> float:
    """By how much a step moves the logits of one sample against each other, at most."""
    most = 0.0
    for part in _parts(features[0]):
        logits = torch.tensordot(step, torch.stack([feature[part] for feature in features]), 1)
        most = max(most, float((logits.amax(1) - logits.amin(1)).max()))
    return most


def _parts(x: Tensor) -> list[slice]:
    """Rows of x (n, K) in runs that fit the cache, on a CPU."""
    rows = max(1, (BLOCK if x.device.type == "cpu" else CALIBRATION) // x.shape[1])
    return [slice(first, first + rows) for first in range(0, len(x), rows)]


def _derivatives(
    theta: Tensor, features: Sequence[Tensor], target: Tensor, share: Tensor, offset: Tensor | None
) -> tuple[float, Tensor, Tensor]:
    """The cross-entropy, its gradient (P,) and its Hessian (P, P), block by block."""
    loss, gradient, second = target.new_zeros(()), torch.zeros_like(theta), target.new_zeros(len(theta), len(theta))
    for part in _parts(target):
        x, t, s = torch.stack([feature[part] for feature in features]), target[part], share[part]  # (P, m, K), (m, K), (m,)
        logits = torch.tensordot(theta, x, 1)
        log_p = torch.log_softmax(logits if offset is None else logits + offset, 1)
        p = log_p.exp()
        mean = (p * x).sum(2)  # (P, m)
        loss -= (t * log_p).sum(1) @ s
        gradient += ((p - t) * x).sum(2) @ s
        second += (x * (p * s.unsqueeze(1))).flatten(1) @ x.flatten(1).T - (mean * s) @ mean.T
    return float(loss), gradient, second
