"""The state of a ridge probe and its algebra: sums over samples, the samples kept, and what was solved from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from squareloss._moments import Moments, Reservoir, deviation, keys
from squareloss._selection import Block, Selection, by_label_set, encode, select, weight_in_fit
from squareloss.ridge import FeaturePath, left_out


@dataclass(frozen=True)
class Options:
    """The options of `RidgeProbe` that its algebra needs."""

    lambdas: Sequence[float] | None
    criterion: str
    intercept: bool
    scale: bool
    full: bool  # bend and shift the probability map
    random_state: int
    verbose: bool = False


@dataclass(frozen=True)
class Solved:
    """What was solved from all samples there were; it goes as a whole when some come or go.

    Attributes:
        path: the ridge path. chosen: what was chosen for each label set.
        samples: of a wide path, which has a `dual`: x, labels and weights in the fit of all samples; else None.
    """

    path: FeaturePath
    chosen: list[Selection]
    samples: Block | None

    @cached_property
    def places(self) -> dict[bytes, int]:
        """Where each sample of a wide path stands."""
        assert self.samples is not None
        return {key: place for place, key in enumerate(keys(*self.samples))}

    @cached_property
    def left(self) -> list[Tensor]:
        """The left-out scores (n, K) of all samples of a wide path, for each label set."""
        assert self.path.dual is not None
        return by_label_set(self.path.dual, [c.lam for c in self.chosen], [len(c.intercept) for c in self.chosen])


class Engine:
    """Samples in, ridge solutions out. A block is features (m, d), labels (m, S) and sample weights (m,)."""

    def __init__(self, num_classes: Sequence[int], options: Options) -> None:
        self.num_classes = list(num_classes)
        self.options = options
        self.class_weight: Tensor | None = None  # (K,), of the only label set
        self.reservoir = Reservoir(options.random_state)
        self.moments: Moments | None = None
        self.pending: Block | None = None  # the samples of `fit_wide`, from then until `_form_sums` makes them the moments
        self.solved: Solved | None = None  # from `_choose` until samples come or go

    @property
    def count(self) -> int:
        """How many samples there are."""
        moments = self._form_sums()
        return 0 if moments is None else moments.count

    def add(self, block: Block) -> None:
        """Add samples to the sums; what was solved is out of date."""
        block = _present(block)
        moments = self._form_sums()
        if moments is None or moments.count == 0:
            moments = Moments.empty(block[0].sum(0) / max(1, len(block[0])), self.num_classes)
        moments.add(*self._weighted(block))
        self.reservoir.add(*block)
        self.moments, self.solved = moments, None

    def forget(self, blocks: Sequence[Block]) -> None:
        """Take samples away from the sums; raises, and changes nothing, if the sums show that they were not there."""
        moments = deepcopy(self._form_sums())
        assert moments is not None
        blocks = [_present(block) for block in blocks]
        for block in blocks:
            moments.add(*self._weighted(block), sign=-1)
        if moments.count < 1 or not moments.possible():
            raise ValueError(
                "expected samples that were fitted, with their labels and weights, and at least one to be left; got more of a "
                "class than there were, samples that no such sums can have in them, or all. Nothing was forgotten"
            )
        self.moments = moments
        for block in blocks:
            self.reservoir.discard(*block)
        for mass in moments.class_mass:
            mass.clamp_min_(0)
        self.solved = None

    def widen(self, label_set: int, positions: Sequence[int], num_classes: int) -> None:
        """Move the classes of a label set to new positions among more classes."""
        moments = self._form_sums()  # of the classes so far
        self.num_classes[label_set] = num_classes
        if moments is not None:
            moments.widen(label_set, positions, num_classes)
            self.reservoir.widen(label_set, positions)
            self.solved = None

    def solve(self, blocks: Callable[[], Iterable[Block]] | None = None) -> None:
        """Solve the sums, and choose by `blocks` of all samples, or by those that were kept."""
        moments = self._form_sums()
        assert moments is not None
        _check_count(moments.count, moments.mass)
        intercept = self.options.intercept
        if self.reservoir.whole and moments.count <= len(moments.origin) + intercept:
            return self._solve_wide(*self.reservoir.blocks())
        centre = moments.mean() if intercept else torch.zeros_like(moments.origin)
        code = moments.mean_code()
        scale = moments.deviation() if self.options.scale else torch.ones_like(centre)
        scatter, cross = moments.about(centre)
        path = FeaturePath.from_scatter(
            scatter / torch.outer(scale, scale),
            cross / scale.unsqueeze(1),
            centre / scale,
            code if intercept else torch.zeros_like(code),
            moments.mass if intercept else math.inf,
        )
        frequencies = [mass / moments.mass for mass in moments.class_mass]
        count = len(self.reservoir) if blocks is None else moments.count
        self._choose(path.unscaled(scale), frequencies, blocks or self.reservoir.blocks, count)

    def fit_wide(self, block: Block) -> None:
        """The first samples, all at once, with n <= d or n = d + 1: the d x d sums wait until they are needed."""
        x, labels, weight = _present(block)
        self.reservoir.add(x, labels, weight)
        if self.reservoir.whole:  # a copy of all samples
            (block,) = self.reservoir.blocks()
        else:
            block = x.clone(), labels, weight
        self.pending = block
        self._solve_wide(block)

    def _solve_wide(self, block: Block) -> None:
        """Solve samples from their n x n inner products."""
        x, labels, s = self._weighted(block)
        _check_count(len(x), float(s.sum()))
        mean = s @ x / s.sum()
        scale = deviation(s @ (x - mean).square() / s.sum(), mean) if self.options.scale else torch.ones_like(mean)
        codes = encode(labels, self.num_classes)
        path = FeaturePath.from_data(x / scale, codes, s, intercept=self.options.intercept)
        frequencies = [s.new_zeros(k).index_add_(0, labels[:, i], s / s.sum()) for i, k in enumerate(self.num_classes)]
        self._choose(path.unscaled(scale), frequencies, lambda: [block], len(x), samples=(x, labels, s))

    def solution(self) -> list[Selection]:
        """What was chosen for each label set; solved now if samples came or went, and chosen by the reservoir."""
        return self._solved().chosen

    def scores(self, x: Tensor) -> list[Tensor]:
        """The scores (m, K) of features (m, d), for each label set."""
        return [x @ chosen.coefficients + chosen.intercept for chosen in self.solution()]

    def leave_one_out(self, block: Block) -> list[Tensor]:
        """The scores (m, K) that fits without each of these samples give to it, for each label set."""
        solved, (x, labels, s) = self._solved(), self._weighted(block)
        fitted = self.scores(x)
        if solved.samples is not None:
            used = s > 0
            row = _find(keys(x[used], labels[used], s[used]), solved.places)
            return [f.masked_scatter(used.unsqueeze(1), left[row]) for f, left in zip(fitted, solved.left, strict=True)]
        slack = solved.path.slack(solved.path.project(x), s, [chosen.lam for chosen in solved.chosen])
        codes = [encode(labels[:, i : i + 1], [k]) for i, k in enumerate(self.num_classes)]
        return [left_out(y, f, h) for y, f, h in zip(codes, fitted, slack, strict=True)]

    def _solved(self) -> Solved:
        if self.solved is None:
            self.solve()
        assert self.solved is not None
        return self.solved

    def _weighted(self, block: Block) -> Block:
        """The block with the weights that its samples have in the fit."""
        x, labels, weight = block
        return x, labels, weight_in_fit(labels, weight, self.class_weight)

    def _choose(
        self,
        path: FeaturePath,
        frequencies: Sequence[Tensor],
        blocks: Callable[[], Iterable[Block]],
        count: int,
        samples: Block | None = None,
    ) -> None:
        lambdas = path.grid() if self.options.lambdas is None else list(self.options.lambdas)
        for lam in lambdas:
            path.check_regular(lam)
        chosen = select(
            path,
            lambda: map(_present, blocks()),
            self.num_classes,
            lambdas,
            count=count,
            frequencies=frequencies if self.options.full else None,
            class_weight=self.class_weight,
            criterion=self.options.criterion,
            warn=self.options.lambdas is not None,
            progress=self.options.verbose,
        )
        self.solved = Solved(path, chosen, samples)

    def _form_sums(self) -> Moments | None:
        """The sums of all samples, None before the first; a fit with n << d is much faster if nobody asks for them."""
        if self.pending is not None:
            block, self.pending = self.pending, None
            self.moments = Moments.empty(block[0].mean(0), self.num_classes)
            self.moments.add(*self._weighted(block))
        return self.moments


def _present(block: Block) -> Block:
    """The samples of a block that have a weight: one of weight 0 is absent."""
    x, labels, weight = block
    present = weight > 0
    return block if bool(present.all()) else (x[present], labels[present], weight[present])


def _check_count(count: int, mass: float) -> None:
    if count < 2 or not mass > 0:
        raise ValueError(
            f"expected at least 2 samples and a positive sum of weights, got n_samples = {count}, "
            f"sum {mass:.3g}; leave-one-out needs a sample to be left, and weights of zero leave none"
        )


def _find(wanted: Sequence[bytes], places: dict[bytes, int]) -> list[int]:
    """Where each sample stands among those that were fitted."""
    if not all(key in places for key in wanted):
        raise ValueError(
            "expected samples that were fitted, of the same precision and with their labels and weights, got one that was not"
        )
    return [places[key] for key in wanted]
