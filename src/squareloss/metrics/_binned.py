"""Calibration errors that compare confidence and accuracy bin by bin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from squareloss.metrics import _inputs
from squareloss.metrics._inputs import Predictions
from squareloss.metrics._results import Metric
from squareloss.metrics._single import single


def ece(probabilities: Tensor, labels: Tensor, *, bins: int = 15, bootstrap: int = 0, seed: int = 0) -> Metric:
    """Expected calibration error of the top label: sum_b n_b/N |accuracy(b) - confidence(b)|, equal-width bins.

    The bins are (0, 1/B], (1/B, 2/B], ..., the first one closed at 0. The confidence of a sample is its largest value; raw
    eta may leave [0, 1] and is clamped to it, and the share outside is on the result. The prediction is the argmax of the
    values as given, the first if several are largest.

    Noise counts as error: `details["noise"]` is what a calibrated classifier with these confidences would show on average,
    sum_b sqrt(2/pi sum_{i in b} c_i (1 - c_i)) / N. Near it the interval means little; `debiased_ece` is made for that.

    Arguments:
        probabilities: probabilities or raw eta (N, K).
        labels: classes (N,).
        bins: how many bins.
        bootstrap: replicates for the interval; 0 for none.
        seed: where they come from.
    """
    predictions = _inputs.read(probabilities, labels)
    return single("ece", EqualWidth(predictions, bins), predictions, bootstrap, seed, {"bins": int(bins)})


def ece_equal_mass(probabilities: Tensor, labels: Tensor, *, bins: int = 15, bootstrap: int = 0, seed: int = 0) -> Metric:
    """Expected calibration error of the top label with bins that hold equally many samples.

    A sample with n_< samples of smaller confidence lies in bin floor(B n_< / N): bins of N/B samples, rounded, and samples of
    equal confidence are never parted, so the order of the samples does not matter. Each bootstrap replicate has bins of its
    own. Arguments as in `ece`.
    """
    predictions = _inputs.read(probabilities, labels)
    return single("ece_equal_mass", EqualMass(predictions, bins), predictions, bootstrap, seed, {"bins": int(bins)})


def debiased_ece(probabilities: Tensor, labels: Tensor, *, bins: int = 15, bootstrap: int = 0, seed: int = 0) -> Metric:
    """The debiased L2 calibration error of Kumar, Liang and Ma (2019), of the top label, in equal-mass bins.

    sqrt(max(E, 0)), where E = sum_b n_b/N [(confidence(b) - accuracy(b))^2 - accuracy(b) (1 - accuracy(b)) / (n_b - 1)]: the
    plug-in estimate less the noise of the accuracies, which makes E unbiased for the binned squared error, and at times
    negative; E itself is in `details["square"]`. It is the mean over pairs of different samples of one bin, so a bin of one
    sample, which has no pair, adds nothing. The interval is that of E, whose replicates are centred first, under the root.
    Arguments as in `ece`.
    """
    predictions = _inputs.read(probabilities, labels)
    return single("debiased_ece", EqualMass(predictions, bins), predictions, bootstrap, seed, {"bins": int(bins)})


def classwise_ece(probabilities: Tensor, labels: Tensor, *, bins: int = 15, bootstrap: int = 0, seed: int = 0) -> Metric:
    """The calibration error of every class's own probability, averaged over classes (Kull et al. 2019; Nixon et al. 2019).

    1/K sum_k sum_b n_bk/N |frequency of class k in b - mean probability of class k in b|, over the equal-width bins of
    `ece`; raw eta is clamped to [0, 1]. Most probabilities of many classes lie in the first bin, so for large K this is
    small: compare it only at equal K. Arguments as in `ece`.
    """
    predictions = _inputs.read(probabilities, labels)
    return single("classwise_ece", Classwise(predictions, bins), predictions, bootstrap, seed, {"bins": int(bins)})


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows of B equal-width bins.

    Attributes:
        edges: (B + 1,) of the bins, from 0 to 1.
        count: (B,) samples in each.
        confidence, accuracy: (B,) their mean confidence, and the share of them that is right; 0 in an empty bin.
    """

    edges: Tensor  # (B + 1,)
    count: Tensor  # (B,)
    confidence: Tensor  # (B,)
    accuracy: Tensor  # (B,)

    @property
    def ece(self) -> float:
        """The expected calibration error of these bins."""
        return float((self.count * (self.accuracy - self.confidence).abs()).sum() / self.count.sum())


def reliability(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> Reliability:
    """The bins of `ece` with their counts, mean confidences and accuracies, in float64 on the CPU. Arguments as in `ece`."""
    predictions = _inputs.read(probabilities, labels)
    cell = equal_width(predictions.confidence, bins)
    once = torch.ones(1, len(cell), dtype=torch.float64, device=cell.device)
    columns = (once, once * predictions.confidence, once * predictions.correct)
    count, confidence, accuracy = (by_cell(column, cell, bins).squeeze(0).cpu() for column in columns)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    return Reliability(edges, count, confidence / count.clamp_min(1), accuracy / count.clamp_min(1))


def equal_width(values: Tensor, bins: int) -> Tensor:
    """The bin of each value in [0, 1]: 0 for [0, 1/B], b for (b/B, (b+1)/B]. Edges are rounded to the values' dtype."""
    return torch.bucketize(values, _inner_edges(values, bins))


def by_cell(weighted: Tensor, cell: Tensor, cells: int) -> Tensor:
    """Sums (R, cells) of the columns of `weighted` (R, M) that fall into each cell; `cell` is (M,) or (R, M)."""
    return weighted.new_zeros(len(weighted), cells).scatter_add_(1, cell.expand(weighted.shape), weighted)


class EqualWidth:
    """counts -> ece."""

    def __init__(self, predictions: Predictions, bins: int) -> None:
        self.bins = check_bins(bins)
        self.residual = predictions.residual
        self.cell = equal_width(predictions.confidence, bins)
        confidence = predictions.confidence.double()
        variance = by_cell((confidence * (1 - confidence))[None], self.cell, bins)
        self.noise = (2 / math.pi * variance).sqrt().sum(1) / predictions.samples  # (1,)

    def __call__(self, counts: Tensor) -> dict[str, Tensor]:
        gaps = by_cell(counts * self.residual, self.cell, self.bins)
        return {"ece": gaps.abs().sum(1) / counts.shape[1], "ece.noise": self.noise.expand(len(counts))}


class EqualMass:
    """counts -> ece_equal_mass, debiased_ece.

    With samples in order of confidence a bin is a run of them, so its sums are differences of running sums.
    """

    def __init__(self, predictions: Predictions, bins: int) -> None:
        self.bins = check_bins(bins)
        confidence, self.order = predictions.confidence.sort()
        self.last = torch.searchsorted(confidence, confidence, right=True) - 1  # the last sample of the same confidence
        self.residual = predictions.residual[self.order]
        self.correct = predictions.correct[self.order]

    def __call__(self, counts: Tensor) -> dict[str, Tensor]:
        samples = counts.shape[1]
        counts = counts.gather(1, self.order.expand(counts.shape))
        running = counts.cumsum(1)
        size, gap, accuracy = self._sums(running, counts)
        accuracy = accuracy / size
        square = (gap / size).square() - accuracy * (1 - accuracy) / (size - 1)  # NaN or infinite up to a size of 1
        square = (size * square).where(size > 1, 0.0).sum(1) / samples
        return {
            "ece_equal_mass": gap.abs().sum(1) / samples,
            "debiased_ece": square.clamp_min(0).sqrt(),
            "debiased_ece.square": square,
        }

    def _sums(self, running: Tensor, counts: Tensor) -> list[Tensor]:
        """Size, sum of residuals and sum of correct ones of each bin, (R, B) each."""
        # bin j ends with the sample at which the count reaches (j + 1) N / B, and with its equals
        reach = torch.arange(1, self.bins + 1, dtype=torch.float64, device=counts.device) * counts.shape[1] / self.bins
        end = self.last[torch.searchsorted(running, reach.expand(len(counts), -1).contiguous())]  # (R, B)
        columns = (running, (counts * self.residual).cumsum_(1), (counts * self.correct).cumsum_(1))
        sums = [column.gather(1, end) for column in columns]
        return [torch.diff(column, dim=1, prepend=torch.zeros_like(column[:, :1])) for column in sums]


class Classwise:
    """counts -> classwise_ece.

    The K B sums are not formed one by one: few probabilities of a sample lie beyond the first bin, B - 1 at most, so theirs
    are a sparse matrix's product, with a row for each bin that has some; and the first bin of a class is the sum over all
    samples, a dense product, less the others.
    """

    def __init__(self, predictions: Predictions, bins: int) -> None:
        self.labels, self.blocks = predictions.labels, predictions.blocks()
        self.samples, self.classes = predictions.values.shape
        edges = _inner_edges(predictions.values, bins)
        beyond = predictions.values > (edges[0] if bins > 1 else float("inf"))
        sample, klass = beyond.nonzero(as_tuple=True)
        value = predictions.values[sample, klass].clamp(max=1)
        cells, cell = torch.unique(klass * bins + torch.bucketize(value, edges), return_inverse=True)
        self.klass = cells // bins
        residual = value.double() - (klass == self.labels[sample]).double()
        size = (len(cells), self.samples)
        with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]  # or torch warns that none are
            self.outer = torch.sparse_coo_tensor(torch.stack([cell, sample]), residual, size).coalesce()

    def __call__(self, counts: Tensor) -> dict[str, Tensor]:
        total = -by_cell(counts, self.labels, self.classes)  # (R, K)
        for part, block in zip(torch.split(counts, len(self.blocks[0]), dim=1), self.blocks, strict=True):
            total += part @ block.clamp(0, 1).double()
        outer = torch.sparse.mm(self.outer, counts.T.contiguous())  # (bins that have some, R); of a view twice as slow
        first = total.T.index_add_(0, self.klass, outer, alpha=-1)  # (K, R)
        return {"classwise_ece": (first.abs_().sum(0) + outer.abs_().sum(0)) / (self.samples * self.classes)}


def check_bins(bins: int) -> int:
    """The number of bins, if it is one."""
    if not isinstance(bins, (int, Integral)) or bins < 1:  # mypy does not know that int is one
        raise ValueError(f"expected a whole number of bins >= 1, got {bins!r}; 15 is usual")
    return int(bins)


def _inner_edges(values: Tensor, bins: int) -> Tensor:
    edges = torch.arange(1, check_bins(bins), dtype=torch.float64) / bins
    return edges.to(values)
