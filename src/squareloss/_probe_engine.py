"""The state of a ridge probe and its algebra: sums over samples, the samples kept, and what was solved from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss._moments import Moments, Reservoir, deviation, keys
from squareloss._selection import Block, Selection, by_label_set, encode, select
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


class Engine:
    """Samples in, ridge solutions out. A block is features (m, d), labels (m, S) and sample weights (m,)."""

    def __init__(self, num_classes: Sequence[int], options: Options) -> None:
        self.num_classes = list(num_classes)
        self.options = options
        self.class_weight: Tensor | None = None  # (K,), of the only label set
        self.moments: Moments | None = None
        self.pending: Block | None = None  # samples of a wide fit, whose sums are formed only if they are needed
        self.reservoir = Reservoir(options.random_state)
        self.solved: list[Selection] | None = None
        self.path: FeaturePath | None = None
        self.rows: tuple[Tensor, Tensor, Tensor] | None = None  # x, labels, weights of the path's n x n form, if it has one
        self.left: tuple[dict[bytes, int], list[Tensor]] | None = None  # where each of them stands, and all left-out scores

    @property
    def count(self) -> int:
        """How many samples there are."""
        moments = self._form_sums()
        return 0 if moments is None else moments.count

    def add(self, block: Block) -> None:
        """Add samples to the sums; what was solved is out of date."""
        moments = self._form_sums() or Moments.empty(block[0].mean(0), self.num_classes)
        block = _present(block)
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
        if blocks is None:
            self._choose(path.unscaled(scale), frequencies, self.reservoir.blocks, len(self.reservoir))
        else:
            self._choose(path.unscaled(scale), frequencies, blocks, moments.count)

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
        self._choose(path.unscaled(scale), frequencies, lambda: [block], len(x))
        self.rows = (x, labels, s)

    def solution(self) -> list[Selection]:
        """What was chosen for each label set; solved now if samples came or went, and chosen by the reservoir."""
        if self.solved is None:
            self.solve()
        assert self.solved is not None
        return self.solved

    def scores(self, x: Tensor) -> list[Tensor]:
        """The scores (m, K) of features (m, d), for each label set."""
        return [x @ chosen.coefficients + chosen.intercept for chosen in self.solution()]

    def leave_one_out(self, block: Block) -> list[Tensor]:
        """The scores (m, K) that fits without each of these samples give to it, for each label set."""
        solution = self.solution()
        assert self.path is not None
        x, labels, s = self._weighted(block)
        lams = [chosen.lam for chosen in solution]
        if self.path.dual is not None:
            if self.left is None:
                assert self.rows is not None
                places = {key: place for place, key in enumerate(keys(*self.rows))}
                self.left = places, by_label_set(self.path.dual, lams, self.num_classes)
            places, left = self.left
            used = s > 0
            row = _find(keys(x[used], labels[used], s[used]), places)
            return [f.masked_scatter(used.unsqueeze(1), scores[row]) for f, scores in zip(self.scores(x), left, strict=True)]
        slack = self.path.slack(self.path.project(x), s, lams)
        codes = [encode(labels[:, i : i + 1], [k]) for i, k in enumerate(self.num_classes)]
        return [left_out(y, f, h) for y, f, h in zip(codes, self.scores(x), slack, strict=True)]

    def _weighted(self, block: Block) -> Block:
        """The block with the weights that its samples have in the fit: times those of their classes."""
        x, labels, weight = block
        return x, labels, weight if self.class_weight is None else weight * self.class_weight[labels[:, 0]]

    def _choose(
        self,
        path: FeaturePath,
        frequencies: Sequence[Tensor],
        blocks: Callable[[], Iterable[Block]],
        count: int,
    ) -> None:
        lambdas = path.grid() if self.options.lambdas is None else list(self.options.lambdas)
        for lam in lambdas:
            path.check_regular(lam)

        def weighted() -> Iterable[tuple[Block, Tensor]]:
            for block in map(_present, blocks()):
                if len(block[0]):
                    yield block, self._weighted(block)[2]

        offset = None if self.class_weight is None else -self.class_weight.log()
        self.solved = select(
            path,
            weighted,
            self.num_classes,
            lambdas,
            count=count,
            frequencies=frequencies if self.options.full else None,
            offset=offset,
            criterion=self.options.criterion,
            warn=self.options.lambdas is not None,
            progress=self.options.verbose,
        )
        self.path, self.rows, self.left = path, None, None

    def _form_sums(self) -> Moments | None:
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
            f"sum {mass:.3g}; leave-one-out needs a sample to be left"
        )


def _find(wanted: Sequence[bytes], places: dict[bytes, int]) -> list[int]:
    """Where each sample stands among those that were fitted."""
    if not all(key in places for key in wanted):
        raise ValueError(
            "expected samples that were fitted, of the same precision and with their labels and weights, got one that was not"
        )
    return [places[key] for key in wanted]
