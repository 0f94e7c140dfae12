"""The report's statistics, against SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from squareloss.lab.report.statistics import Summary, agreement, bootstrapped, paired, summarise


def test_paired_interval_is_that_of_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 6), rng.normal(0, 1, 6)
    found = paired(dict(enumerate(a)), dict(enumerate(b)))
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx((a - b).mean())


def test_only_seeds_that_both_have_are_paired():
    found = paired({0: 1.0, 1: 2.0, 5: 9.0}, {1: 1.5, 0: 0.0, 7: 4.0})
    assert found.value == pytest.approx(0.75) and found.how == "2 seeds, paired"
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: 1.0}, {0: 3.0}).low is None


def test_overlapping_training_sets_widen_the_interval():
    """Repeated splits of one sample: the plain interval misses the truth too often, the widened one does not."""
    rng = np.random.default_rng(1)
    misses = {0.0: 0, 0.25: 0}
    for _ in range(400):
        sample = rng.normal(0, 1, 100)  # differences of two methods on each sample; the truth is 0
        splits = {seed: float(rng.permutation(sample)[:20].mean()) for seed in range(10)}
        shared = sample.mean() * 2  # both also depend on what they were trained on, which the splits share
        differences = {seed: value + shared for seed, value in splits.items()}
        for overlap in misses:
            misses[overlap] += paired(differences, dict.fromkeys(differences, 0.0), overlap).sign != 0
    assert misses[0.25] < misses[0.0] / 1.5
    plain, wide = (paired({0: 1.0, 1: 2.0, 2: 4.0}, {0: 0.0, 1: 0.0, 2: 0.0}, o) for o in (0.0, 1 / 3))
    assert (wide.high - wide.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(2))


def test_a_few_equal_differences_have_no_spread_to_go_by():
    few, many = ({seed: seed - 3 / 80 for seed in range(n)} for n in (2, 6))
    told = paired(few, {seed: float(seed) for seed in few})
    assert (told.low, told.high, told.sign) == (None, None, 0) and told.value == pytest.approx(-3 / 80)
    assert told.how == "2 seeds with the same difference, no interval"
    told = paired(many, {seed: float(seed) for seed in many})
    assert told.sign == -1  # 1 in 32 by chance
    assert (told.low, told.high) == (told.value, told.value), "no width that rounding made"
    assert told.interval("{:.2f}".format) == "(the same for all 6 seeds)", "[-0.04, -0.04] would seem to be sure"
    assert paired(many, {seed: float(seed) for seed in many}, 0.25).sign == 0, "six that overlap are worth less than six"
    same = paired(few, few)
    assert (same.low, same.high, same.sign) == (0, 0, 0), "no difference needs no interval, and is none"


def test_bootstrap_interval_is_the_basic_one():
    a, b = np.linspace(0.5, 0.9, 201), np.zeros(201)
    found = bootstrapped(0.8, 0.0, a, b)
    assert (found.low, found.high) == pytest.approx((1.6 - np.quantile(a, 0.975), 1.6 - np.quantile(a, 0.025)))
    assert bootstrapped(0.8, 0.0, [math.inf], [0.0]).low is None
    same = bootstrapped(0.8, 0.8, a, a)
    assert (same.low, same.high) == (0, 0)
    assert same.interval("{:.2f}".format) == "(one seed, no spread in draws of the test points)"


def test_rounding_does_not_decide_what_the_bootstrap_tells_apart():
    for error in (-1e-7, 1e-7):
        found = bootstrapped(0.75, 0.71, np.full(200, 0.79 + error), np.full(200, 0.71))
        assert (found.low, found.high, found.sign) == (0, 0, 0)


def test_bootstrap_interval_of_medians_finds_no_difference_where_there_is_none():
    rng, draws = np.random.default_rng(0), 200
    outside = {True: 0, False: 0}
    for _ in range(draws):
        points = np.abs(rng.normal(1.2, 0.6, 30)) * np.exp(0.05 * rng.normal(size=(2, 30)))
        a, b = np.median(points, 1)
        of_a, of_b = np.median(points[:, rng.integers(30, size=(300, 30))], 2)
        for medians in outside:
            outside[medians] += bootstrapped(a, b, of_a, of_b, medians).sign != 0
    assert outside[True] <= 0.05 * draws < 0.1 * draws < outside[False]


def test_summary_and_agreement():
    assert summarise([]) == Summary(None, None, 0)
    assert summarise([2.0]) == Summary(2.0, None, 1)
    found = summarise([1.0, 2.0, 3.0])
    assert (found.mean, found.std, found.error) == pytest.approx((2, 1, 1 / math.sqrt(3)))
    assert [agreement(found, [mean, None, None]) for mean in (3.1, 3.2, 4.4, 4.5)] == [
        "agrees", "can't be told", "can't be told", "differs",  # beyond 4.3 standard errors, Student's t of three seeds
    ]  # fmt: skip
    assert agreement(found, [3.2, 1.0, 3]) == "agrees"  # the paper's own error counts
    assert agreement(summarise([1.0]), [1.0, None, None]) == ""
    assert [agreement(summarise([1.0, 1.0]), [mean, None, None]) for mean in (1.0, 1.1)] == ["agrees", "differs"]


def test_differs_is_welchs_test():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 4), rng.normal(0, 2, 5)
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert low < 0 < high and high - low > 4 * np.hypot(a.std(ddof=1) / 2, b.std(ddof=1) / 5**0.5)
    edge = a.mean() - b.mean() - low  # the paper's mean at which the interval ends at zero
    for shift, word in ((0.99, "can't be told"), (1.01, "differs")):
        paper = [a.mean() + shift * edge, b.std(ddof=1), 5]
        assert agreement(summarise(list(a)), paper) == word


def test_infinite_values_have_no_interval_and_break_nothing():
    inf = float("inf")
    assert summarise([inf, inf]) == Summary(inf, None, 2)
    told = paired({0: inf, 1: 2.0}, {0: inf, 1: 1.0})
    assert told.low is None and told.sign == 0 and told.value != told.value
    drawn = bootstrapped(2.0, 1.0, [2.0, inf, 2.0], [1.0, inf, 1.0])
    assert (drawn.low, drawn.high) == (1.0, 1.0)
    for a, mine, theirs in ((inf, [inf, 5.0], [1.0, 1.0]), (inf, [5.0, 5.0], [1.0, 1.0]), (5.0, [5.0, inf], [1.0, 1.0])):
        told = bootstrapped(a, 1.0, mine, theirs)
        assert (told.low, told.high, told.sign) == (None, None, 0), "what is infinite for one alone has no ground"
