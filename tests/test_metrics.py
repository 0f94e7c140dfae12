"""Metrics against definitions written out as loops, closed forms, and identities between them."""

from __future__ import annotations

import json
import math
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, integrate, optimize, stats

from squareloss import SquareLoss, metrics, simplex
from squareloss.codings import Simplex
from squareloss.metrics import _inputs, _smooth
from squareloss.metrics._binned import Classwise

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TOP_LABEL = (metrics.ece, metrics.ece_equal_mass, metrics.debiased_ece, metrics.smooth_ece)
ALL = (*TOP_LABEL, metrics.classwise_ece, metrics.brier, metrics.nll, metrics.accuracy)


def draw(samples, classes, *, seed=0, sharpness=1.3, raw=False, dtype=torch.float64, levels=None):
    """Miscalibrated predictions and labels; `raw` leaves [0, 1]; `levels` rounds, so that confidences tie."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, classes, generator=g, dtype=torch.float64) * 2
    labels = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    p = (sharpness * z).softmax(1)
    if levels:
        p = (p * levels).round() / levels
    if raw:
        p = p + 0.2 * torch.randn(samples, classes, generator=g, dtype=torch.float64)
        p = p + (1 - p.sum(1, keepdim=True)) / classes
    return p.to(dtype), labels


def top(p, y):
    values = p.double().numpy()
    pick = values.argmax(1)
    confidence = np.clip(values[np.arange(len(pick)), pick], 0, 1)
    return confidence, (pick == y.numpy()).astype(float)


# ---- bins


def loop_ece(confidence, correct, bins):
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = (confidence > low) & (confidence <= high) | ((b == 0) & (confidence == 0))
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_ece_is_its_definition(bins, raw):
    p, y = draw(500, 5, raw=raw)
    assert metrics.ece(p, y, bins=bins) == pytest.approx(loop_ece(*top(p, y), bins), abs=1e-12)


@pytest.mark.filterwarnings("ignore:expected probabilities")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_are_closed_on_the_right_and_the_first_one_on_the_left(dtype):
    edges = torch.arange(16, dtype=torch.float64) / 15
    p = torch.stack([edges, edges - 2], 1).to(dtype)  # the first class is always on top, its value exactly on an edge
    table = metrics.reliability(p, torch.zeros(16, dtype=torch.long), bins=15)
    assert table.count.tolist() == [2, *[1] * 14]  # 0 and 1/15 share the first bin; 1.0 lies in the last


def test_confidence_one_is_in_the_last_bin_with_its_neighbours():
    # accuracies 1 and 0 at confidences 1.0 and 0.96 average to 1/2 in one bin; torchmetrics makes two bins of them
    p = torch.tensor([[1.0, 0.0], [0.96, 0.04]], dtype=torch.float64)
    assert metrics.ece(p, torch.tensor([0, 1])) == pytest.approx(0.98 - 0.5)
    assert metrics.ece(p[:1], torch.tensor([1])) == 1.0


def test_noise_is_the_ece_of_calibrated_classifiers():
    g = torch.Generator().manual_seed(0)
    c = torch.rand(2000, generator=g, dtype=torch.float64) * 0.5 + 0.5
    p = torch.stack([c, 1 - c], 1)
    drawn = [metrics.ece(p, (torch.rand(2000, generator=g, dtype=torch.float64) > c).long()) for _ in range(200)]
    assert drawn[0].details["noise"] == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / math.sqrt(200))


def test_reliability_has_the_ece():
    p, y = draw(700, 4)
    table = metrics.reliability(p, y)
    assert table.ece == pytest.approx(float(metrics.ece(p, y)), abs=1e-12)
    assert table.count.sum() == 700
    assert float((table.accuracy * table.count).sum()) / 700 == pytest.approx(float(metrics.accuracy(p, y)))


def loop_equal_mass(confidence, bins):
    below = (confidence[None, :] < confidence[:, None]).sum(1)
    return bins * below // len(confidence)


@pytest.mark.parametrize("levels", [None, 6, 40])
@pytest.mark.parametrize("samples", [11, 300, 451])
def test_equal_mass_is_its_definition(samples, levels):
    p, y = draw(samples, 4, levels=levels)
    confidence, correct = top(p, y)
    cell = loop_equal_mass(confidence, 15)
    gaps = [abs((confidence - correct)[cell == b].sum()) for b in range(15)]
    assert metrics.ece_equal_mass(p, y) == pytest.approx(sum(gaps) / samples, abs=1e-12)


def test_equal_mass_bins_hold_equally_many():
    confidence = np.random.default_rng(0).permutation(300) / 300
    assert np.bincount(loop_equal_mass(confidence, 15)).tolist() == [20] * 15


@pytest.mark.parametrize("levels", [None, 6])
def test_debiased_is_the_mean_over_pairs_of_different_samples(levels):
    p, y = draw(200, 4, levels=levels)
    confidence, correct = top(p, y)
    cell = loop_equal_mass(confidence, 15)
    square = 0.0
    for b in set(cell):
        s, hit = confidence[cell == b].mean(), correct[cell == b]
        pairs = [(s - hit[i]) * (s - hit[j]) for i in range(len(hit)) for j in range(len(hit)) if i != j]
        square += len(hit) / 200 * np.mean(pairs) if pairs else 0.0
    result = metrics.debiased_ece(p, y)
    assert result.details["square"] == pytest.approx(square, abs=1e-12)
    assert result == pytest.approx(math.sqrt(max(square, 0)), abs=1e-9)


def test_bins_of_one_sample_tell_nothing():
    p, y = draw(11, 4)  # 15 bins, no ties: no bin has two samples, so there is no pair
    assert metrics.debiased_ece(p, y).details["square"] == 0
    assert metrics.ece_equal_mass(p, y) > 0


def test_debiased_square_is_unbiased_where_the_plug_in_is_not():
    # two confidences, both right: E = 0; the plug-in of 30 bins of 10 samples is about p (1 - p) / 10
    g = torch.Generator().manual_seed(0)
    squares, plug_in = [], []
    for _ in range(400):
        c = torch.rand(300, generator=g, dtype=torch.float64) * 0.4 + 0.55
        p = torch.stack([c, 1 - c], 1)
        y = (torch.rand(300, generator=g, dtype=torch.float64) > c).long()
        squares.append(metrics.debiased_ece(p, y, bins=30).details["square"])
        plug_in.append(float(metrics.ece_equal_mass(p, y, bins=30)) ** 2)
    error = np.std(squares) / 20
    assert abs(np.mean(squares)) < 3 * error
    assert np.mean(plug_in) > 20 * error


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("bins", [1, 2, 15])
def test_classwise_is_its_definition(bins, raw):
    p, y = draw(300, 6, raw=raw)
    columns = p.clamp(0, 1).numpy()
    per_class = [loop_ece(columns[:, k], (y.numpy() == k).astype(float), bins) for k in range(6)]
    assert metrics.classwise_ece(p, y, bins=bins) == pytest.approx(np.mean(per_class), abs=1e-12)


def test_classwise_needs_no_more_for_classes_that_no_sample_may_have():
    """Replicates of it are products with a matrix of one row per bin in use, at most B - 1 a sample, not B - 1 a class."""
    p, y = draw(10, 5000)
    assert Classwise(_inputs.read(p, y), 15).outer.shape[0] <= 10 * 14


def test_classwise_of_many_classes_in_blocks(monkeypatch):
    p, y = draw(40, 600)
    monkeypatch.setattr(_inputs.Predictions, "blocks", lambda self: torch.split(self.values, 17))
    per_class = [loop_ece(p[:, k].numpy(), (y.numpy() == k).astype(float), 15) for k in range(600)]
    assert metrics.classwise_ece(p, y) == pytest.approx(np.mean(per_class), abs=1e-12)


# ---- smooth


def brute_smooth(confidence, residual, bandwidth):
    """smECE at a bandwidth: the images of every sample summed one by one, the integral by fine trapezia."""
    t = np.linspace(0, 1, 2001)
    images = np.concatenate([sign * confidence + 2 * shift for shift in range(-3, 4) for sign in (-1, 1)])
    near = (images > -7 * bandwidth) & (images < 1 + 7 * bandwidth)
    kernel = np.exp(-0.5 * ((t[:, None] - images[near]) / bandwidth) ** 2) / (bandwidth * math.sqrt(2 * math.pi))
    return integrate.trapezoid(np.abs(kernel @ np.tile(residual, 14)[near]) / len(residual), t)


@pytest.mark.parametrize(
    ("samples", "sharpness", "classes"), [(60, 1.0, 3), (60, 2.0, 3), (400, 1.2, 3), (20, 0.3, 8), (3, 1.0, 2)]
)
def test_smooth_is_the_fixed_point_of_the_brute_force(samples, sharpness, classes):
    p, y = draw(samples, classes, sharpness=sharpness)
    confidence, correct = top(p, y)
    gap = lambda s: brute_smooth(confidence, confidence - correct, s) - s
    bandwidth = optimize.brentq(gap, 1e-3, 1, xtol=1e-8)
    result = metrics.smooth_ece(p, y)
    assert result == pytest.approx(bandwidth, abs=2e-5)
    assert result.details["bandwidth"] == pytest.approx(float(result), rel=1e-8)


def test_the_spectrum_is_the_cosine_transform():
    grid = torch.randn(2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ends = torch.tensor([2.0, *[1.0] * 7, 2.0], dtype=torch.float64)
    spectrum = _smooth._spectrum(grid)
    np.testing.assert_allclose(spectrum.real, fft.dct((grid * ends).numpy(), type=1), atol=1e-12)
    assert float(spectrum.imag.abs().max()) < 1e-12


def test_smooth_below_the_smallest_bandwidth():
    certain = torch.eye(3, dtype=torch.float64)
    result = metrics.smooth_ece(certain, torch.arange(3))
    assert (float(result), result.details["bandwidth"]) == (0.0, pytest.approx(1e-3))
    barely = torch.tensor([[0.9996, 0.0004]], dtype=torch.float64)
    result = metrics.smooth_ece(barely, torch.tensor([0]))
    assert result == pytest.approx(4e-4, abs=1e-9)  # one residual has one sign, so any bandwidth gives |mean residual|


def test_smooth_changes_little_when_confidences_do():
    # at 1/2, half right: moved by 1e-4, small bins part the right from the wrong, and ece jumps; smooth_ece stays below
    # twice the root of the distance
    p = torch.full((1000, 2), 0.5, dtype=torch.float64)
    y = torch.arange(1000) % 2
    moved = p.clone()
    moved[:, 0] += torch.where(y == 0, 1e-4, 2e-4)
    moved[:, 1] = 1 - moved[:, 0]
    assert metrics.ece(moved, y, bins=10_000) > 0.4
    assert metrics.smooth_ece(p, y) == 0
    assert metrics.smooth_ece(moved, y) < 2 * math.sqrt(2e-4)


# ---- means and maxima


def test_brier_is_the_simplex_loss_in_disguise():
    p, y = draw(200, 7, raw=True)
    outputs = (p - 1 / 7) * 7  # eta = (1 + f) / K
    assert torch.allclose(Simplex().eta(outputs), p)
    loss = SquareLoss(Simplex(), scale=2.0)(outputs, y)  # 2/K |f - v_y|^2, of codes K e_y - 1
    assert metrics.brier(p, y) == pytest.approx(float(loss) / 14, rel=1e-12)


def test_projection_never_worsens_brier():
    p, y = draw(300, 5, raw=True)
    assert metrics.brier(simplex.project(p), y) < metrics.brier(p, y)


def test_nll_floor_and_zero_mass_are_reported():
    p = torch.tensor([[0.0, 1.0], [0.25, 0.75], [-0.5, 1.5], [1.5, -0.5]], dtype=torch.float64)
    result = metrics.nll(p, torch.tensor([0, 0, 1, 1]), floor=1e-3)
    assert result == pytest.approx((2 * -math.log(1e-3) - math.log(0.25)) / 4)
    assert result.details == {"floor": 1e-3, "floored": 0.5, "zero": 0.5}
    assert metrics.nll(p[:3], torch.tensor([0, 0, 1])).details["zero"] == pytest.approx(1 / 3)
    assert result.outside == 0.5
    assert metrics.nll(p, torch.tensor([0, 0, 1, 1]), floor=0.25).details["floored"] == 0.5  # one at the floor is not below it
    assert metrics.nll(p[:1], torch.tensor([0])) == pytest.approx(12 * math.log(10))  # the default floor


def test_linf_calibration_error():
    eta = torch.tensor([0.2, 0.5, 0.9])
    assert metrics.linf_calibration_error(torch.tensor([0.3, 0.1, 0.9]), eta) == pytest.approx(0.4)
    both = metrics.linf_calibration_error(torch.tensor([[1.3, -0.3], [0.5, 0.5]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    assert (float(both), both.outside) == (pytest.approx(0.3), 0.5)
    assert metrics.linf_calibration_error(torch.tensor([0.0, 1.0, 0.9]), eta).outside == 0  # 0 and 1 are probabilities


@pytest.mark.parametrize(("right", "samples"), [(0, 5), (5, 5), (913, 1000), (1, 1)])
def test_wilson_is_scipys(right, samples):
    expected = stats.binomtest(right, samples).proportion_ci(method="wilson")
    low, high = metrics.wilson(right / samples, samples)
    assert (low, high) == (pytest.approx(expected.low, abs=1e-12), pytest.approx(expected.high, abs=1e-12))
    for n in range(1, 100):  # rounding leads nowhere beyond
        assert metrics.wilson(0.0, n)[0] == 0 and metrics.wilson(1.0, n)[1] == 1
    for share, n in ((0.5, 0), (3, 10), (math.nan, 10)):
        with pytest.raises(ValueError, match="expected a share in"):
            metrics.wilson(share, n)


def test_accuracy_breaks_ties_for_the_first_class():
    p = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    result = metrics.accuracy(p, torch.tensor([0, 1]))
    assert result == 0.5
    assert (result.low, result.high) == metrics.wilson(0.5, 2)


# ---- what holds for all


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 60), st.booleans(), st.sampled_from([None, 4]))
def test_bounds_and_order_of_samples(seed, classes, samples, raw, levels):
    p, y = draw(samples, classes, seed=seed, raw=raw, levels=levels)
    confidence, correct = top(p, y)
    bias, spread = abs((confidence - correct).mean()), np.abs(confidence - correct).mean()
    for metric in (metrics.ece, metrics.ece_equal_mass, metrics.smooth_ece):
        assert bias - 2e-5 <= metric(p, y) <= spread + 2e-5
    mixed = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    for metric in ALL:
        assert metric(p[mixed], y[mixed]) == pytest.approx(float(metric(p, y)), abs=1e-7)


@pytest.mark.parametrize("metric", TOP_LABEL)
def test_more_noise_is_more_error_and_right_certainty_is_none(metric):
    p, y = draw(4000, 5, sharpness=1.0)
    sharp, _ = draw(4000, 5, sharpness=2.0)
    assert metric(p, y) < metric(sharp, y) / 3
    certain = torch.eye(5)[y]
    assert metric(certain, y) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("metric", ALL)
def test_dtypes_and_devices(metric, device, dtype):
    p, y = draw(500, 5)
    low = p.to(device, dtype)
    # the same values in float64 may fall on the other side of a float32 edge only if they are equal to it
    assert metric(low, y.to(device)) == pytest.approx(float(metric(low.cpu().double(), y)), abs=1e-5)


def test_integers_of_any_width_and_gradients_are_accepted():
    p, y = draw(50, 3)
    assert metrics.ece(p.requires_grad_(), y.to(torch.uint8)) == metrics.ece(p, y)


@pytest.mark.parametrize("metric", ALL)
def test_bad_input(metric):
    p, y = draw(10, 3)
    broken = p.clone()
    broken[3, 1] = float("nan")
    for wrong, labels, error, words in [
        (broken, y, ValueError, "finite"),
        (p.masked_fill(p > 0.9, float("inf")).index_fill(0, torch.tensor([0]), float("-inf")), y, ValueError, "finite"),
        (p, y[:5], ValueError, "labels of shape"),
        (p, y[:, None], ValueError, "labels of shape"),
        (p, y.double(), TypeError, "integer labels"),
        (p, y > 0, TypeError, "integer labels"),
        (p, y + 1 + (2 - y.max()), ValueError, r"\[0, 3\)"),
        (p, y - 1 - y.min(), ValueError, r"\[0, 3\)"),
        (p[:, 0], y, ValueError, "torch.stack"),
        (p[:, :1], y, ValueError, "torch.stack"),
        (p[:0], y[:0], ValueError, "N >= 1"),
        (p.numpy(), y, TypeError, "torch.as_tensor"),
        (p, y.numpy(), TypeError, "torch.as_tensor"),
        (y, y, TypeError, "floating-point"),
    ]:
        with pytest.raises(error, match=words):
            metric(wrong, labels)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 2)])
def test_predictions_of_pixels_are_flattened_as_the_error_says(shape):
    p, y = draw(math.prod(shape), 3)
    images, labels = p.reshape(*shape, 3).movedim(-1, 1), y.reshape(shape)
    advice = r"for \(N, K, d1, \.\.\.\) pass (.*)"
    with pytest.raises(ValueError, match=advice) as error:
        metrics.ece(images, labels)
    again = eval(re.search(advice, str(error.value))[1], {"p": images, "labels": labels})
    assert torch.equal(again[0], p)
    assert torch.equal(again[1], y)
    with pytest.raises(ValueError, match=advice):  # then what to do with one probability comes
        metrics.ece(images[:, :1], labels)


def test_bad_options():
    p, y = draw(10, 3)
    for bins in (0, 2.5):
        with pytest.raises(ValueError, match="bins >= 1"):
            metrics.ece(p, y, bins=bins)
    for floor in (0, 1):
        with pytest.raises(ValueError, match="floor in"):
            metrics.nll(p, y, floor=floor)
    with pytest.raises(ValueError, match="2 replicates"):
        metrics.ece(p, y, bootstrap=1)
    assert metrics.ece(p, y, bootstrap=2).high is not None
    for value in (1.5, -0.5):
        with pytest.raises(ValueError, match="swapped"):
            metrics.linf_calibration_error(torch.tensor([0.5]), torch.tensor([value]))
    for estimate, eta in (([0.5], torch.tensor([0.5])), (torch.tensor([0.5]), torch.tensor([1]))):
        with pytest.raises(TypeError, match=r"expected (estimates of eta as a torch.Tensor|floating-point values of eta)"):
            metrics.linf_calibration_error(estimate, eta)
    with pytest.raises(ValueError, match="finite estimates"):
        metrics.linf_calibration_error(torch.tensor([math.nan]), torch.tensor([0.5]))
    for estimate, eta in [
        (torch.rand(1), torch.rand(2)),
        (torch.tensor(0.5), torch.tensor(0.5)),
        (torch.rand(0), torch.rand(0)),
    ]:
        with pytest.raises(ValueError, match="one shape"):
            metrics.linf_calibration_error(estimate, eta)


def test_logits_are_noticed():
    logits, y = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * 5, torch.zeros(50, dtype=torch.long)
    for metric in (metrics.ece, metrics.brier, metrics.evaluate):
        with pytest.warns(UserWarning, match="scores or logits") as told:
            metric(logits - logits.mean(1, keepdim=True), y, bootstrap=0)
        assert told[0].filename == __file__  # it points to the call


def test_share_and_mass_outside():
    eta = torch.tensor([[1.2, -0.2, 0.0], [0.3, 0.3, 0.4]])
    result = metrics.evaluate(eta, torch.tensor([0, 1]), bootstrap=0)
    assert result.outside == pytest.approx(2 / 6)
    assert result.outside_mass == pytest.approx(0.4 / 2)
    assert all(metric.outside == result.outside for metric in result.values())
    rounded = torch.tensor([[1 + 1.2e-7, -1e-7]])
    assert metrics.ece(rounded, torch.tensor([0])).outside == 0
    assert metrics.ece(torch.tensor([[1 + 2e-6, -2e-6]]), torch.tensor([0])).outside == 1


# ---- results


def test_a_metric_is_a_float():
    p, y = draw(200, 3)
    result = metrics.ece(p, y, bootstrap=50)
    assert isinstance(result, float)
    assert f"{result:.3f}" == f"{float(result):.3f}"
    assert json.loads(json.dumps(result)) == result
    again = pickle.loads(pickle.dumps(result))
    assert (again, again.low, again.details, again.name) == (result, result.low, result.details, "ece")
    assert result.low <= result <= result.high
    assert str(result).startswith("ece 0.") and "[" in str(result)
    assert "[" not in str(metrics.ece(p, y))  # no interval


def test_evaluate_is_every_metric_with_its_interval():
    p, y = draw(300, 4, raw=True)
    result = metrics.evaluate(p, y, bootstrap=100, seed=3)
    assert list(result) == ["accuracy", "ece", "ece_equal_mass", "debiased_ece", "smooth_ece", "classwise_ece", "brier", "nll"]
    for metric in ALL:
        alone = metric(p, y, bootstrap=100, seed=3)
        together = result[alone.name]
        assert together.to_dict() == pytest.approx(alone.to_dict(), abs=1e-9)
    assert json.loads(json.dumps(result.to_dict()))["ece"]["value"] == result["ece"]
    assert "debiased_ece" in str(result)
    assert result == metrics.evaluate(p, y, bootstrap=100, seed=3) != metrics.evaluate(p, y, bootstrap=100, seed=4)
    with pytest.raises(KeyError, match="Available"):
        result["mce"]


def test_defaults_agree(capsys):
    """One seed and one number of bins wherever none is given, and nothing is printed."""
    p, y = draw(100, 3)
    result = metrics.evaluate(p, y, bootstrap=20)
    for metric in ALL:
        alone = metric(p, y, bootstrap=20)
        assert result[alone.name].to_dict() == pytest.approx(alone.to_dict(), abs=1e-9)
        assert metric(p, y).details.get("bins", 15) == 15
    assert capsys.readouterr().out == ""


def test_evaluate_with_known_eta(capsys):
    p, y = draw(300, 4)
    eta = torch.roll(p, 1, 0)
    result = metrics.evaluate(p, y, eta=eta, bootstrap=20, progress=True)
    alone = metrics.linf_calibration_error(p, eta, bootstrap=20)
    assert result["linf_calibration_error"] == alone == float((p - eta).abs().max())
    assert result["linf_calibration_error"].high == alone.high
    assert "bootstrap" in capsys.readouterr().out


def test_whole_numbers_of_numpy_and_labels_of_any_whole_type():
    p, y = torch.softmax(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), 1), torch.arange(50) % 3
    plain = metrics.evaluate(p, y, bins=7, bootstrap=10, seed=3)
    same = metrics.evaluate(p, y.to(torch.uint16), bins=np.int64(7), bootstrap=np.int64(10), seed=np.int64(3))
    assert json.dumps(same.to_dict()) == json.dumps(plain.to_dict())
    assert metrics.ece(p, y, bins=np.int64(7)).to_dict() == metrics.ece(p, y, bins=7).to_dict()
