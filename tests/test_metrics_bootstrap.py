"""The bootstrap: every replicate is the metric of the resampled set; intervals do what they say."""

from __future__ import annotations

import math

import pytest
import torch

from squareloss import metrics
from squareloss.metrics import _resample
from test_metrics import ALL, draw


def resampled_indices(samples, replicates, seed):
    """The draws behind the counts, as lists of samples."""
    for block in _resample.counts(samples, replicates, seed):
        for row in block.long():
            yield torch.repeat_interleave(torch.arange(samples), row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("raw", "levels"), [(False, None), (False, 8), (True, None)])
def test_each_replicate_is_the_metric_of_the_resampled_set(raw, levels, dtype):
    p, y = draw(157, 20, raw=raw, levels=levels, dtype=dtype)
    eta, _ = draw(157, 20, seed=1)
    replicates = metrics.evaluate(p, y, eta=eta, bootstrap=12, seed=5).replicates
    for r, index in enumerate(resampled_indices(157, 12, 5)):
        assert len(index) == 157
        for metric in ALL:
            value = metric(p[index], y[index])
            assert float(replicates[value.name][r]) == pytest.approx(float(value), abs=1e-9), value.name
        largest = metrics.linf_calibration_error(p[index], eta[index])
        assert float(replicates["linf_calibration_error"][r]) == largest


def test_each_replicate_where_the_error_vanishes():
    p, y = draw(60, 3)
    p = torch.where(torch.arange(60)[:, None] < 58, torch.eye(3, dtype=torch.float64)[y], p)
    replicates = metrics.evaluate(p, y, bootstrap=40).replicates
    for r, index in enumerate(resampled_indices(60, 40, 0)):
        for metric in ALL:
            value = metric(p[index], y[index])
            assert float(replicates[value.name][r]) == pytest.approx(float(value), abs=1e-9), value.name


def test_replicates_do_not_depend_on_the_block(monkeypatch):
    p, y = draw(100, 5)
    whole = metrics.evaluate(p, y, bootstrap=50, seed=1)
    monkeypatch.setattr(_resample, "BLOCK", 700)
    parts = metrics.evaluate(p, y, bootstrap=50, seed=1)
    for name, values in whole.replicates.items():
        assert torch.allclose(values, parts.replicates[name], atol=1e-10, rtol=0), name
    other = metrics.evaluate(p, y, bootstrap=50, seed=2)
    assert not torch.equal(other.replicates["ece"], whole.replicates["ece"])


def test_many_samples_do_not_make_a_pass_over_the_predictions_for_every_other_replicate():
    rows = [len(block) for block in _resample.counts(100_000, 40, 0)]
    assert rows == [16, 16, 8]
    assert len(next(_resample.counts(1_000_000, 40, 0))) == 4  # 32 MB
    assert _resample._block(10_000_000, 40) == 1  # one at least


def test_the_global_generator_is_left_alone():
    p, y = draw(50, 3)
    before = torch.random.get_rng_state()
    metrics.evaluate(p, y, bootstrap=10)
    assert torch.equal(before, torch.random.get_rng_state())


def test_counts_are_draws_with_replacement():
    rows = torch.cat(list(_resample.counts(50, 2000, 0)))
    assert (rows.sum(1) == 50).all()
    assert torch.equal(rows, rows.round())
    # multinomial: each count has mean 1 and variance 1 - 1/N; the bounds are six standard errors over 100,000 counts
    assert float(rows.mean(0).sub(1).abs().max()) < 6 * math.sqrt(1 / 2000)
    assert float(rows.var()) == pytest.approx(1 - 1 / 50, abs=6 * math.sqrt(3 / 100_000))


def test_interval_of_a_mean_is_the_normal_one():
    p, y = draw(2000, 4)
    result = metrics.brier(p, y, bootstrap=2000)
    one_hot = torch.nn.functional.one_hot(y, 4)
    error = float((p - one_hot).square().sum(1).std()) / math.sqrt(2000)
    assert result.low == pytest.approx(result - 1.96 * error, abs=0.15 * error)
    assert result.high == pytest.approx(result + 1.96 * error, abs=0.15 * error)


def test_intervals_are_basic_ones():
    p, y = draw(400, 5, sharpness=2.0)
    result = metrics.evaluate(p, y, bootstrap=200)
    for name in ("ece", "smooth_ece", "brier"):
        low, high = result.replicates[name].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        assert (result[name].low, result[name].high) == pytest.approx((2 * result[name] - high, 2 * result[name] - low))


def test_intervals_hold_the_estimate_and_stay_in_range():
    p, y = draw(400, 5, sharpness=1.0)
    for name, metric in metrics.evaluate(p, y, bootstrap=200).items():
        assert 0 <= metric.low <= metric <= metric.high, name
    accuracy = metrics.accuracy(torch.eye(5)[y], y, bootstrap=50)
    assert accuracy.details == {"bootstrap_low": 1.0, "bootstrap_high": 1.0}
    assert accuracy.low < 1 == accuracy.high
    nearly = metrics.accuracy(torch.eye(5)[y.roll(1).where(torch.arange(400) < 2, y)][:40], y[:40], bootstrap=50)
    assert nearly < nearly.details["bootstrap_high"] == 1.0


def test_debiased_intervals_cover_the_truth():
    # the squared error of the bins is known: confidences c, accuracies c - delta
    g = torch.Generator().manual_seed(0)
    for delta, least in [(0.0, 0.95), (0.05, 0.85)]:
        covered = 0
        for trial in range(60):
            c = torch.rand(1000, generator=g, dtype=torch.float64) * 0.4 + 0.55
            y = (torch.rand(1000, generator=g, dtype=torch.float64) > c - delta).long()
            result = metrics.debiased_ece(torch.stack([c, 1 - c], 1), y, bootstrap=200, seed=trial)
            covered += result.low <= delta <= result.high
        assert covered / 60 >= least, (delta, covered)


def test_evaluations_of_two_classifiers_are_paired():
    p, y = draw(500, 5, sharpness=1.0)
    q = 0.98 * p + 0.02 / 5
    a, b = (metrics.evaluate(x, y, bootstrap=200).replicates["brier"] for x in (p, q))
    assert float((a - b).std()) < 0.2 * float(a.std())
