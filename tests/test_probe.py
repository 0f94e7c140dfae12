"""RidgeProbe: scores, the choice of lambda, weights, probabilities, both array worlds."""

import pickle
import re
import sys
from itertools import count

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from probe_blobs import TIGHT, blobs, codes, same_choice, same_model
from squareloss import NTKClassifier, SquareLossClassifier, _probability_map, _selection
from squareloss._probability_map import Curve, fit_curve
from squareloss.calibrators import Temperature
from squareloss.codings import Simplex
from squareloss.probe import RandomFeatures, RidgeProbe


@pytest.mark.parametrize(("n", "d"), [(60, 5), (15, 30)])
def test_scores_are_ridge_of_scikit_learn_on_the_codes(n, d):
    x, y = blobs(n, d)
    for lam in (0.01, 1.0, 50.0):
        probe = RidgeProbe([lam], scale_features=False).fit(x, y)
        reference = Ridge(alpha=lam, solver="svd").fit(x, codes(y, 3))
        np.testing.assert_allclose(probe.decision_function(x) - probe.shift_, reference.predict(x), **TIGHT)
        np.testing.assert_allclose(probe.coef_, reference.coef_, **TIGHT)
        np.testing.assert_allclose(probe.coef_.sum(0), 0, atol=1e-10)
        scaled = RidgeProbe([lam], calibration="temperature").fit(x, y)
        assert not scaled.shift_.any()
        reference = Ridge(alpha=lam, solver="svd").fit(x / x.std(0), codes(y, 3))
        np.testing.assert_allclose(scaled.decision_function(x), reference.predict(x / x.std(0)), **TIGHT)


def test_brier_is_the_squared_error_of_eta():
    x, y = blobs()
    probe = RidgeProbe([1.0]).fit(x, y)
    eta = Simplex().eta(torch.from_numpy(probe.leave_one_out(x, y) - probe.shift_)).numpy()
    assert probe.path_["brier"][0] == pytest.approx(((eta - np.eye(3)[y]) ** 2).sum(1).mean())


@pytest.mark.parametrize("criterion", ["brier", "accuracy"])
def test_lambda_has_the_best_leave_one_out_result(criterion):
    x, y = blobs(60, 30, spread=3.0)
    probe = RidgeProbe(criterion=criterion).fit(x, y)
    results = np.array(probe.path_[criterion])
    best = results.argmin() if criterion == "brier" else results.argmax()
    assert probe.lambda_ == probe.path_["lambda"][best]
    assert len(results) == 28
    assert 0 < best < 27  # the default path has the answer inside


def test_weight_zero_is_absence_and_equal_weights_scale_lambda():
    x, y = blobs(80, 5)
    s = (np.arange(80) % 4 != 0).astype(float)
    same_model(RidgeProbe([1.0]).fit(x, y, s), RidgeProbe([1.0]).fit(x[s > 0], y[s > 0]))
    for n, d in ((60, 5), (30, 50)):  # by sums, and by products
        x, y = blobs(n, d)
        s = (np.arange(n) % 3 != 0).astype(float)
        some = RidgeProbe().fit(x[s > 0], y[s > 0])
        for probe in (RidgeProbe().fit(x, y, s), RidgeProbe().partial_fit(x, y, sample_weight=s)):
            same_model(probe, some)
            np.testing.assert_allclose(probe.predict_proba(x), some.predict_proba(x), atol=1e-9)
            assert len(probe._engine.reservoir) == s.sum()
    x, y = blobs(80, 5)
    same_model(RidgeProbe([3.0]).fit(x, y, np.full(80, 3.0)), RidgeProbe([1.0]).fit(x, y))
    twice = np.concatenate([np.arange(80), np.arange(40)])
    same_model(RidgeProbe([1.0]).fit(x[twice], y[twice]), RidgeProbe([1.0]).fit(x, y, np.where(np.arange(80) < 40, 2.0, 1.0)))


def test_balanced_class_weights_count_samples_by_their_weights_and_are_never_forgotten_in_parts():
    x, y = blobs(120, 5)
    s = np.where((y == 0) & (np.arange(120) % 3 > 0), 0.0, 1.0)  # of class 0 a third is left
    probe, some = (RidgeProbe([1.0], class_weight="balanced") for _ in range(2))
    same_model(probe.fit(x, y, s), some.fit(x[s > 0], y[s > 0]))
    np.testing.assert_allclose(probe.predict_proba(x), some.predict_proba(x), atol=1e-9)
    twice = np.repeat(np.arange(120), 1 + (y == 1))
    same_model(probe.fit(x[twice], y[twice]), some.fit(x, y, 1.0 + (y == 1)))
    with pytest.raises(ValueError, match="samples that are forgotten, got 'balanced', which needs all"):
        probe.forget(x[:9], y[:9])


def test_class_weights_move_the_decision_and_not_the_probabilities():
    rng = np.random.default_rng(0)
    y = (rng.uniform(size=6000) < 0.1).astype(int)
    x = rng.standard_normal((6000, 3)) + 1.5 * y[:, None] * np.array([1, 0, 0])
    plain, balanced = RidgeProbe().fit(x, y), RidgeProbe(class_weight="balanced").fit(x, y)
    assert np.mean(balanced.predict(x)[y == 1] == 1) > np.mean(plain.predict(x)[y == 1] == 1) + 0.3
    for probe in (plain, balanced):
        assert probe.predict_proba(x)[:, 1].mean() == pytest.approx(y.mean(), abs=0.01)
    true = 1 / (1 + 9 * np.exp(1.5**2 / 2 - 1.5 * x[:, 0]))
    assert np.abs(balanced.predict_proba(x)[:, 1] - true).mean() < 0.02


@pytest.mark.parametrize("calibration", ["full", "temperature"])
def test_probabilities_are_calibrated(calibration):
    x, y = blobs(6000, 8, 4, spread=1.0)
    probe = RidgeProbe(calibration=calibration).fit(x[:3000], y[:3000])
    p = probe.predict_proba(x[3000:])
    np.testing.assert_allclose(p.sum(1), 1)
    assert (p.argmax(1) == probe.predict(x[3000:])).all()
    assert abs(p.max(1).mean() - (p.argmax(1) == y[3000:]).mean()) < 0.02


def drawn(logits, seed=0):
    return torch.multinomial(logits.softmax(1), 1, generator=torch.Generator().manual_seed(seed))[:, 0]


def test_the_probability_map_finds_what_made_the_labels():
    n, ones = 40_000, torch.ones(40_000, dtype=torch.float64)
    u = 0.4 * torch.randn(n, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    frequency = torch.tensor([0.55, 0.25, 0.15, 0.05], dtype=torch.float64)
    v = u + 0.2 * (frequency.log() - frequency.log().mean())
    curve = fit_curve(4 * u, drawn(6 * v - 2 * v**2), ones, frequency)
    assert curve.slope == pytest.approx(6, rel=0.03)
    assert curve.bend == pytest.approx(2, rel=0.1)
    torch.testing.assert_close(curve.shift, v[0] - u[0], rtol=0.05, atol=0.02)
    # a temperature alone is that of the calibrator, but for one sample's worth of doubt
    labels = drawn(2.5 * u)
    plain = fit_curve(u, labels, ones, None)
    assert 4 / plain.slope == pytest.approx(Temperature().fit(u, labels).temperature_, rel=0.01)
    assert plain.bend == 0
    assert not plain.shift.any()


def test_rounding_does_not_bend_the_probability_map_of_two_classes():
    """Their scores are opposite, so a bend has nothing to hold on to; by how much they are not is no signal."""
    g = torch.Generator().manual_seed(1)
    score = torch.randn(200, 1, generator=g, dtype=torch.float64)
    labels, ones = drawn(torch.cat([score, -score], 1)), torch.ones(200, dtype=torch.float64)
    frequency = labels.bincount().double() / 200
    off = 1e-11 * (labels[:, None] - 0.5) * score.sign()  # which even tells the labels
    exact, rounded = (fit_curve(torch.cat([score + e, -score + e], 1), labels, ones, frequency) for e in (0, off))
    assert (rounded.slope, rounded.bend) == pytest.approx((exact.slope, exact.bend), rel=1e-6, abs=1e-6)


def test_the_probability_map_is_the_same_in_blocks_of_any_size(monkeypatch):
    u = torch.randn(500, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels, weight = drawn(3 * u), torch.linspace(0, 2, 500, dtype=torch.float64)
    frequency, offset = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), torch.tensor([0.1, 0.0, -0.2], dtype=torch.float64)
    whole = fit_curve(u, labels, weight, frequency, offset)
    monkeypatch.setattr(_probability_map, "BLOCK", 3 * 70)
    parts = fit_curve(u, labels, weight, frequency, offset)
    assert (parts.slope, parts.bend) == pytest.approx((whole.slope, whole.bend), rel=1e-9)
    torch.testing.assert_close(parts.shift, whole.shift)


def test_perfect_scores_leave_one_samples_doubt():
    labels = torch.arange(30) % 3
    codes = Simplex().encode(labels, 3).double()
    curve = fit_curve(codes, labels, torch.ones(30, dtype=torch.float64), None)
    wrong = torch.full((30, 3), 1 / 31 / 3, dtype=torch.float64)
    torch.testing.assert_close(curve.probabilities(codes), wrong.scatter(1, labels[:, None], 1 - 2 / 31 / 3))


@pytest.mark.parametrize("signal", [0.0, 0.2, 1.0])
def test_the_probability_map_takes_few_passes_however_sure_the_scores_are(monkeypatch, signal):
    n, k, passes = 3000, 100, []
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, k, (n,), generator=generator)
    scores = signal * Simplex().encode(labels, k).double() + 10 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    whole = _probability_map._derivatives
    monkeypatch.setattr(_probability_map, "_derivatives", lambda *arguments: passes.append(1) or whole(*arguments))
    ones, frequency = torch.ones(n, dtype=torch.float64), (torch.bincount(labels, minlength=k) / n).double()
    curve = fit_curve(scores, labels, ones, frequency)
    assert len(passes) < 30
    u, doubt = scores / k + curve.shift, 1 / (n + 1)
    target = F.one_hot(labels, k) * (1 - doubt) + doubt / k
    loss = lambda factor: float(-(target * torch.log_softmax(factor * (curve.slope * u - curve.bend * u**2), 1)).sum(1).mean())
    assert loss(1.0) <= min(loss(0.999), loss(1.001)) or curve.slope == 1e-3  # where the scores say nothing


def test_a_class_without_samples_counts_as_half_a_sample():
    u = torch.randn(200, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels, ones = drawn(3 * u[:, :2]), torch.ones(200, dtype=torch.float64)
    none, half = (fit_curve(3 * u, labels, ones, torch.tensor([0.7, 0.3, f], dtype=torch.float64)) for f in (0, 0.5 / 200))
    assert half.shift.any()
    torch.testing.assert_close(none.shift, half.shift)


@pytest.mark.parametrize(("bend", "kept"), [(9, 0.75), (-12, -1.5)])
def test_the_bend_is_no_more_than_keeps_the_map_increasing_for_eta_in_0_1(bend, kept):
    u = 0.3 * torch.randn(20_000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    frequency = torch.full((3,), 1 / 3, dtype=torch.float64)
    curve = fit_curve(3 * u, drawn(6 * u - bend * u**2), torch.ones(len(u), dtype=torch.float64), frequency)
    assert curve.bend / curve.slope == pytest.approx(kept)


@pytest.mark.parametrize("bend", [4.5, -9.0])
def test_the_map_is_its_parabola_up_to_nine_tenths_of_the_way_to_the_vertex(bend):
    turn = 0.9 * 6 / (2 * bend)
    u = torch.linspace(*((-1, turn) if bend > 0 else (turn, 1)), 40, dtype=torch.float64).view(10, 4)
    curve = Curve(6.0, bend, torch.zeros(4, dtype=torch.float64), None)
    torch.testing.assert_close(curve.probabilities(4 * u), torch.softmax(6 * u - bend * u**2, 1))


def test_weights_count_in_the_probability_map():
    u = torch.randn(2000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels, frequency = drawn(3 * u), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    twice = torch.cat([torch.arange(2000), torch.arange(500)])
    double = torch.where(torch.arange(2000) < 500, 2.0, 1.0).double()
    repeated = fit_curve(u[twice], labels[twice], torch.ones(2500, dtype=torch.float64), frequency)
    weighted = fit_curve(u, labels, double, frequency)
    assert weighted.slope == pytest.approx(repeated.slope, rel=5e-3)
    unweighted = fit_curve(u, labels, torch.ones_like(double), frequency)
    assert abs(weighted.slope - repeated.slope) < 0.2 * abs(unweighted.slope - repeated.slope)


@pytest.mark.parametrize(("pace", "left"), [(5, "2 min"), (60, "19 min")])  # seconds a pass, and twenty passes are usual
def test_the_probability_map_shows_progress_with_an_estimate(capsys, monkeypatch, pace, left):
    clock = count(0, pace)
    monkeypatch.setattr("squareloss._progress.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    x, y = blobs(n=200)
    RidgeProbe(verbose=True).fit(x, y)
    shown = capsys.readouterr().err
    assert re.search(rf"probability map: +5%, {left} left", shown)
    assert shown.endswith("\n") and shown.count("\n") == 1
    RidgeProbe().fit(x, y)
    assert capsys.readouterr().err == ""


def test_probabilities_keep_the_order_of_the_scores_everywhere():
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    ones, frequency = torch.ones(2000, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)
    ladder = torch.linspace(-30, 30, 301, dtype=torch.float64)
    for labels in (
        scores.argmax(1),
        torch.randint(3, (2000,), generator=generator),
        scores.abs().argmin(1),
        scores.abs().argmax(1),
    ):
        curve = fit_curve(scores, labels, ones, frequency)
        p = curve.probabilities(torch.stack([ladder, torch.zeros_like(ladder), torch.full_like(ladder, -40)], 1))
        log_odds = (p[:, 0].log() - p[:, 1].log())[(p[:, :2] > 1e-300).all(1)]
        assert (log_odds.diff() > 0).all()


@pytest.mark.parametrize("samples", [200, 15])  # more than features, and fewer
def test_a_constant_feature_changes_nothing(samples):
    x, y = blobs(samples, 20, 3)
    s = np.random.default_rng(0).uniform(0.1, 3, samples)
    for value in (0.1, 1e6 / 3):  # their means are off by rounding, which is no spread
        beside = np.c_[x, np.full(samples, value)]
        plain, probe = RidgeProbe([1.0]).fit(x, y, s), RidgeProbe([1.0]).fit(beside, y, s)
        np.testing.assert_allclose(probe.decision_function(beside + 1e-3), plain.decision_function(x + 1e-3), atol=1e-6)


def test_features_that_say_nothing_leave_the_class_frequencies():
    y = np.arange(40) % 4 // 3  # three to one
    probe = RidgeProbe().fit(np.ones((40, 2)), y)
    np.testing.assert_allclose(probe.predict_proba(np.ones((1, 2))), [[0.75, 0.25]], atol=0.03)


@pytest.mark.parametrize("shares", [[0.9, 0.1], [0.5, 0.3, 0.2], [0.5, 0.5, 0.0]])
def test_noise_leaves_the_class_frequencies(shares):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(3000, 12)), rng.choice(len(shares), 3000, p=shares)
    p = RidgeProbe().partial_fit(x, y, classes=np.arange(len(shares))).predict_proba(x)
    np.testing.assert_allclose(p, np.broadcast_to(shares, p.shape), atol=0.05)


@pytest.mark.parametrize("seed", [729, 1261, 1393])
def test_few_scores_that_say_nothing_are_no_worse_than_the_uniform_distribution(seed):
    """Where the scores hardly count, what is added to them is large, and a bend would be one of that."""
    g = torch.Generator().manual_seed(seed)
    n, k = int(torch.randint(5, 40, (1,), generator=g)), int(torch.randint(2, 5, (1,), generator=g))
    labels, scores = torch.randint(k, (n,), generator=g), torch.randn(n, k, generator=g).double()
    scores -= scores.mean(1, keepdim=True)
    curve = fit_curve(scores, labels, torch.ones(n, dtype=torch.float64), torch.bincount(labels, minlength=k).double() / n)
    assert curve.bend == 0 and float(curve.shift.abs().max()) > 1
    likelihood = curve.probabilities(scores).gather(1, labels.unsqueeze(1)).clamp_min(1e-300).log().mean()
    assert float(likelihood) > -np.log(k)


@pytest.mark.parametrize(("samples", "features"), [(3000, 5), (60, 80)])
def test_probabilities_of_many_samples_rest_on_every_so_many(monkeypatch, samples, features):
    x, y = blobs(samples, features, 3)
    whole = RidgeProbe().fit(x, y)
    monkeypatch.setattr(_selection, "CALIBRATION", samples)  # of three scores each: every third sample
    thinned = RidgeProbe().fit(x, y)
    same_model(thinned, whole)
    assert thinned.path_ == whole.path_
    third = whole.leave_one_out(x, y) - whole.shift_
    some, ones = np.arange(0, samples, 3), torch.ones(samples // 3, dtype=torch.float64)
    frequency = torch.from_numpy(np.bincount(y) / samples)
    curve = fit_curve(torch.from_numpy(third[some]), torch.from_numpy(y[some]), ones, frequency)
    assert thinned.temperature_ == pytest.approx(3 / curve.slope, rel=1e-6)
    assert thinned.temperature_ != pytest.approx(whole.temperature_, rel=1e-6)


@pytest.mark.parametrize("samples", [200, 20])  # more than features, and fewer
def test_lambdas_are_judged_alike_however_many_at_once(monkeypatch, samples):
    x, y = blobs(samples, 30, 3)
    whole = RidgeProbe().fit(x, y)
    for columns in (1, 7):
        monkeypatch.setattr(_selection, "COLUMNS", columns)
        same_choice(RidgeProbe().fit(x, y), whole)


def test_every_so_many_samples_means_those_that_have_a_weight(monkeypatch):
    monkeypatch.setattr(_selection, "CALIBRATION", 50)  # every 4th of 60, every 3rd of 45
    x, y = blobs(4200, 5)
    for used in (np.arange(60) % 4 != 0, np.arange(4200) > 4150):  # no sample of the first block
        n = len(used)
        probe, alone = RidgeProbe().fit(x[:n], y[:n], used * 1.0), RidgeProbe().fit(x[:n][used], y[:n][used])
        same_model(probe, alone)
        if n == 60:  # in one block: the same samples are taken
            same_choice(probe, alone)
        assert np.isfinite(probe.predict_proba(x)).all()


def test_tensors_in_tensors_out():
    x, y = blobs(100, 6)
    arrays, tensors = RidgeProbe().fit(x, y), RidgeProbe().fit(torch.from_numpy(x), torch.from_numpy(y))
    inputs = torch.from_numpy(x)
    for name in ("predict", "predict_proba", "decision_function"):
        answer = getattr(tensors, name)(inputs)
        assert isinstance(answer, torch.Tensor)
        np.testing.assert_allclose(answer.numpy(), getattr(arrays, name)(x), atol=1e-10)
    assert isinstance(tensors.predict(x), np.ndarray)
    named = RidgeProbe().fit(torch.from_numpy(x), np.array(["a", "b", "c"])[y])
    assert set(named.predict(torch.from_numpy(x))) <= {"a", "b", "c"}  # names have no tensor
    piped = make_pipeline(RandomFeatures(20), RidgeProbe()).fit(inputs, torch.from_numpy(y))
    assert isinstance(piped.predict_proba(inputs), torch.Tensor)
    half = RidgeProbe([1.0]).fit(inputs.bfloat16(), torch.from_numpy(y))
    same_model(half, RidgeProbe([1.0]).fit(inputs.bfloat16().double(), y))


def test_pickle_and_two_classes():
    x, y = blobs(80, 5, 2)
    probe = pickle.loads(pickle.dumps(RidgeProbe().partial_fit(x, y)))
    assert probe.decision_function(x).shape == (80,)
    assert ((probe.decision_function(x) > 0) == probe.predict(x)).all()
    assert probe.predict_proba(x).shape == (80, 2)
    same_model(pickle.loads(pickle.dumps(probe)), RidgeProbe().fit(x, y))


def test_bad_input_is_refused():
    x, y = blobs(30, 4)
    nan = np.where(x == x.max(), np.nan, x)
    with pytest.raises(NotFittedError, match="not fitted"):
        RidgeProbe().predict(x)
    with pytest.raises(NotFittedError):
        print(RidgeProbe().coef_)
    with pytest.raises(ValueError, match="singular features .* got lambda = 0"):
        RidgeProbe([0.0, 1.0]).fit(np.hstack([x, x]), y)
    with pytest.raises(ValueError, match="singular features"):
        RidgeProbe([0.0]).partial_fit(np.hstack([x, x]), y).predict(np.hstack([x, x]))
    with pytest.raises(ValueError, match="at least 2 samples, got n_samples = 1"):
        RidgeProbe().fit(x[:1], y[:1])
    assert RidgeProbe(1.0).fit(x[:2], [0, 1]).predict(x[:2]).tolist() == [0, 1]  # two are enough
    with pytest.raises(ValueError, match="at least 2 samples"):
        RidgeProbe().partial_fit(x[:1], y[:1], classes=[0, 1, 2]).predict(x)
    with pytest.raises(ValueError, match="at least 2 samples and a positive sum of weights, got n_samples = 1, sum 2"):
        RidgeProbe().fit(x[:3], y[:3], [2.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="two classes or more, got one class: \\[0\\]"):
        RidgeProbe().fit(x, np.zeros(30, int))
    for bad in (nan, torch.from_numpy(nan)):
        with pytest.raises(ValueError, match="NaN"):
            RidgeProbe().fit(bad, y)
        with pytest.raises(ValueError, match="NaN"):
            RidgeProbe().fit(x, y).predict(bad)
    with pytest.raises(ValueError, match="3 features, but RidgeProbe is expecting 4"):
        RidgeProbe().fit(x, y).predict(torch.from_numpy(x[:, :3]))
    with pytest.raises(ValueError, match=r"Unknown criterion 'auc'. Available: brier, accuracy"):
        RidgeProbe(criterion="auc").fit(x, y)
    with pytest.raises(ValueError, match="lambda >= 0"):
        RidgeProbe([-1.0]).fit(x, y)
    for lambdas in ("auto", [[1.0]], object()):
        with pytest.raises(ValueError, match="expected lambda: a number >= 0, a list of them, or None"):
            RidgeProbe(lambdas).fit(x, y)
    for lambdas in (1.0, 1, np.float32(1), np.array([1.0]), torch.ones(1)):
        same_model(RidgeProbe(lambdas).fit(x, y), RidgeProbe([1.0]).fit(x, y))
    for device in ("cuda:99", 3.5):
        with pytest.raises(ValueError, match=f"device .* that torch can use here, got {device!r}"):
            RidgeProbe(device=device).fit(x, y)
    same_model(RidgeProbe([1.0], device="auto").fit(x, y), RidgeProbe([1.0]).fit(x, y))
    for bad in (x, x[:3], torch.from_numpy(x)):
        with pytest.raises(ValueError, match="features below 1e\\+100, .* got [0-9]e\\+20[0-9]; divide"):
            RidgeProbe().fit(bad * 1e200, y[: len(bad)])
    np.testing.assert_allclose(RidgeProbe().fit(x * 1e90, y).predict_proba(x * 1e90), RidgeProbe().fit(x, y).predict_proba(x))
    with pytest.raises(ValueError, match="one lambda or more"):
        RidgeProbe([]).fit(x, y)
    with pytest.raises(ValueError, match="'balanced', which needs all"):
        RidgeProbe(class_weight="balanced").partial_fit(x, y)
    for fit in (RidgeProbe(class_weight="equal").fit, RidgeProbe(class_weight="equal").partial_fit):
        with pytest.raises(ValueError, match="class_weight"):
            fit(x, y)
    with pytest.raises(ValueError, match="several label sets"):
        RidgeProbe(class_weight={0: 2.0}).fit(x, np.stack([y, y], 1))
    with pytest.raises(ValueError, match="class weights > 0"):
        RidgeProbe(class_weight={0: 0.0}).fit(x, y)
    with pytest.raises(ValueError, match="2 label sets"):
        RidgeProbe().fit(x, np.stack([y, y], 1)).partial_fit(x, y)
    with pytest.raises(ValueError, match="shape \\(30,\\)"):
        RidgeProbe().fit(x, y[:-1])


@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_accepts_it():
    reason = "leaving out a sample of weight 2 removes both copies, so lambda may differ, as with sklearn's RidgeCV"
    check_estimator(RidgeProbe(), expected_failed_checks={"check_sample_weight_equivalence_on_dense_data": reason})
    check_estimator(RandomFeatures(20))


def test_random_features_tend_to_the_arc_cosine_kernel():
    """With no bias, E 2 relu(w.x) relu(w.z) = |x||z| (sin t + (pi - t) cos t) / (pi d), t the angle (Cho and Saul 2009)."""
    x = np.random.default_rng(0).standard_normal((6, 5))
    features = RandomFeatures(200_000, bias=0.0, keep=False).fit(x)
    phi = features.transform(x)
    z = (x - x.mean(0)) / (x - x.mean(0)).std()
    norms = np.linalg.norm(z, axis=1)
    angle = np.arccos((z @ z.T / np.outer(norms, norms)).clip(-1, 1))
    kernel = np.outer(norms, norms) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (np.pi * 5)
    np.testing.assert_allclose(phi @ phi.T, kernel, atol=0.03)


def test_random_features_of_tensors_and_dtypes():
    x = np.random.default_rng(0).standard_normal((6, 5))
    features = RandomFeatures(7).fit(x)
    assert features.transform(x).shape == (6, 12)
    assert features.transform(x.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(features.transform(torch.from_numpy(x)).numpy(), features.transform(x))
    np.testing.assert_allclose(RandomFeatures(7).fit(torch.from_numpy(x)).transform(x), features.transform(x))
    assert (RandomFeatures(7, random_state=1).fit_transform(x) != features.transform(x))[:, 5:].any()
    with pytest.raises(NotFittedError):
        RandomFeatures(3).transform(x)
    with pytest.raises(ValueError, match="expected width to be 1 or more, got 0"):
        RandomFeatures(0).fit(x)
    with pytest.raises(TypeError, match="expected width to be a whole number, got '7'"):
        RandomFeatures("7").fit(x)


def test_random_features_in_scikit_learns_manner():
    x = np.random.default_rng(0).standard_normal((6, 5))
    same = [RandomFeatures(7, random_state=seed).fit_transform(x) for seed in (3, np.int64(3))]
    np.testing.assert_array_equal(*same)
    drawn = [RandomFeatures(7, random_state=seed).fit_transform(x) for seed in (None, np.random.RandomState(3))]
    assert (drawn[0] != drawn[1])[:, 5:].any()
    names = RandomFeatures(7).set_output(transform="default").fit(x).get_feature_names_out()
    assert list(names) == [f"randomfeatures{i}" for i in range(12)]
    assert len(RandomFeatures(7, keep=False).fit(x).get_feature_names_out()) == 7


def test_digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    model = make_pipeline(RandomFeatures(300), RidgeProbe()).fit(x[:1200], y[:1200])
    assert model.score(x[1200:], y[1200:]) > 0.96
    p = model.predict_proba(x[1200:])
    assert abs(p.max(1).mean() - model.score(x[1200:], y[1200:])) < 0.03


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("n", "d"), [(200, 20), (30, 60)])
def test_on_a_gpu(n, d):
    x, y = blobs(n, d, 4)
    here = RidgeProbe().fit(x, y)
    there = RidgeProbe(device="cuda").fit(x, y)
    tensors = RidgeProbe().fit(torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda())
    assert tensors.predict_proba(torch.from_numpy(x).cuda()).is_cuda
    for probe in (there, tensors):
        same_model(probe, here)
        same_choice(probe, here)
        np.testing.assert_allclose(probe.predict_proba(x), here.predict_proba(x), atol=1e-6)
    there.forget(x[:5], y[:5]).partial_fit(x[:5], y[:5])
    same_model(there, here)


@pytest.mark.parametrize("missing", [None, float("nan"), "pandas.NA"], ids=str)
def test_missing_labels_are_said_to_be_missing(missing):
    missing = pytest.importorskip("pandas").NA if missing == "pandas.NA" else missing
    x, y = np.eye(6), np.array(["a", "b", "a", "b", "a", missing], dtype=object)
    for model in (RidgeProbe(), NTKClassifier(), SquareLossClassifier()):
        with pytest.raises(ValueError, match="expected a label for every sample, got None or NaN for some; drop those"):
            model.fit(x, y)


@pytest.mark.parametrize(("other", "kinds"), [(np.arange(20) % 2, "text and int"), (np.arange(20) % 2 > 0, "text and bool")])
def test_label_sets_of_several_kinds_are_refused_and_can_be_made_text(other, kinds):
    pandas = pytest.importorskip("pandas")
    x, words = np.random.default_rng(0).normal(size=(20, 3)), np.array(["a", "b", "c", "a"] * 5)
    y = pandas.DataFrame({"words": words, "other": other})
    with pytest.raises(ValueError, match=f"expected label sets of one kind, got columns of {kinds}; convert them, .*astype"):
        RidgeProbe([1.0]).fit(x, y)
    probe = RidgeProbe([1.0]).fit(x, y.astype(str))
    for column, labels in enumerate((words, other)):
        alone = RidgeProbe([1.0]).fit(x, labels)
        np.testing.assert_array_equal(probe.predict(x)[:, column], alone.predict(x).astype(str))
    np.testing.assert_array_equal(RidgeProbe([1.0]).fit(x, y.astype(str).to_numpy(object)).predict(x), probe.predict(x))


def test_names_of_a_table_are_forgotten_when_a_tensor_is_fitted():
    pandas = pytest.importorskip("pandas")
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    for model in (RidgeProbe(), NTKClassifier(), RandomFeatures(4)):
        model.fit(pandas.DataFrame(x, columns=list("abc")), y)
        model.fit(torch.from_numpy(x), y)
        assert not hasattr(model, "feature_names_in_")
