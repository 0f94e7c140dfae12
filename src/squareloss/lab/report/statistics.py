"""Means over seeds, differences paired by seed, and what can be told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (n - 1) over n seeds; std is None for one seed or infinite values, mean None for none."""

    mean: float | None
    std: float | None
    n: int

    @property
    def error(self) -> float | None:
        """The standard error of the mean."""
        return None if self.std is None else self.std / math.sqrt(self.n)


def summarise(values: Sequence[float]) -> Summary:
    """Of the values of all seeds."""
    n = len(values)
    mean = sum(values) / n if n else None  # of infinite values (a margin that no point bounds), infinite
    return Summary(mean, float(np.std(values, ddof=1)) if n > 1 and np.isfinite(values).all() else None, n)


def mean_std(mean: float | None, std: float | None, show: Callable[[float], str]) -> str:
    """ "0.9504 (0.0007)", as `show` writes numbers: the mean alone where there is no std, a dash where there is no mean."""
    if mean is None:
        return "–"
    return show(mean) if std is None else f"{show(mean)} ({show(std)})"


@dataclass(frozen=True)
class Difference:
    """A mean difference a - b with a 95% interval; low and high are None where there is no ground for one.

    `how` says what the interval rests on.
    """

    value: float
    low: float | None
    high: float | None
    how: str

    @property
    def sign(self) -> int:
        """1 or -1 if the interval is on one side of zero, else 0: can't be told apart."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def interval(self, show: Callable[[float], str]) -> str:
        """ "[+0.10, +0.92]" as `show` writes numbers; in words where all differences are the same; "" without one."""
        if self.low is None or self.high is None:
            return ""
        return f"({self.how})" if self.low == self.high else f"[{show(self.low)}, {show(self.high)}]"


def paired(a: Mapping[int, float], b: Mapping[int, float], overlap: float = 0.0) -> Difference | None:
    """The difference a - b paired by seed, with Student's interval; None if no seed has both.

    mean d +- t sqrt(1/n + overlap) s, where d are the n differences and s their standard deviation. If each seed draws its
    own test split from the same samples, training sets overlap and the differences are not independent: `overlap`, test
    samples per training sample, widens the interval for that (Nadeau and Bengio 2003). Else it is 0. Differences that are
    all the same, as shares of few test points may be, have no spread to go by: from six on they stand, as by a sign test,
    which needs independent ones. By the same correction n that overlap are worth n / (1 + n overlap).
    """
    seeds = sorted(set(a) & set(b))
    if not seeds:
        return None
    differences = [a[seed] - b[seed] for seed in seeds]
    mean, n = sum(differences) / len(seeds), len(seeds)
    if n == 1:
        return Difference(mean, None, None, "one seed")
    if not np.isfinite(differences).all():
        return Difference(mean, None, None, "infinite for some seeds")
    spread = float(np.std(differences, ddof=1))
    if spread <= 1e-9 * abs(mean):
        if mean and n / (1 + n * overlap) < 6:
            return Difference(mean, None, None, f"{n} seeds with the same difference, no interval")
        return Difference(mean, mean, mean, f"the same for all {n} seeds")
    half = quantile(n - 1) * math.sqrt(1 / n + overlap) * spread
    return Difference(mean, mean - half, mean + half, f"{n} seeds, paired")


def bootstrapped(
    a: float, b: float, replicates_a: Sequence[float], replicates_b: Sequence[float], medians: bool = False
) -> Difference:
    """The difference a - b of one seed, with an interval of replicates that drew the same test points for both.

    The interval is the basic one. Of medians it is that of plain quantiles: their draws are skewed, and where there is no
    difference the mirrored quantiles of the basic interval leave zero out in 8 to 30% of cases.

    Draws that are infinite for both tell no difference and are left out; one that is infinite for one leaves no interval.
    """
    value = a - b
    with np.errstate(invalid="ignore"):
        drawn = np.subtract(replicates_a, replicates_b, dtype=float)
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return Difference(value, None, None, "one seed")
    if not np.isfinite([value, *drawn]).all():
        return Difference(value, None, None, "infinite for some draws")
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    how = "one seed, bootstrap of the test points" if low < high else "one seed, no spread in draws of the test points"
    if not medians:
        low, high = 2 * value - high, 2 * value - low
    rounding = 2e-6 * max(abs(a), abs(b))  # of replicates, which have six digits: it must not decide what excludes zero
    low, high = (0.0 if abs(end) <= rounding else float(end) for end in (low, high))
    return Difference(value, low, high, how)


def quantile(freedom: float) -> float:
    """Student's t at 97.5%."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - (1 - LEVEL) / 2))


def agreement(ours: Summary, paper: Sequence[float | None]) -> str:
    """Whether our mean "agrees" with the paper's or "differs" from it, "can't be told", or nothing if the error is not known.

    They agree within two standard errors of the difference, and differ outside of Welch's interval, which is wide for few
    runs: of two of ours, up to 13 standard errors.

    Arguments:
        ours: our summary.
        paper: [mean, std, number of runs]; std and number may be None, then only our error counts.
    """
    mean, std, runs = paper
    if ours.mean is None or mean is None or ours.error is None:
        return ""
    theirs = std / math.sqrt(runs) if std is not None and runs else 0.0
    apart, error = abs(ours.mean - mean), math.hypot(ours.error, theirs)
    if apart <= 2 * error:
        return "agrees"
    parts = ours.error**4 / (ours.n - 1) + (theirs**4 / (runs - 1) if runs and runs > 1 else 0.0)
    freedom = error**4 / parts if parts > 0 else math.inf
    return "differs" if apart > quantile(freedom) * error else "can't be told"
