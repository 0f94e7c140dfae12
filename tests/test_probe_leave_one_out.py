"""RidgeProbe: leave-one-out is n refits, where a fit interpolates too; what rounding hides is not chosen."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from probe_blobs import TIGHT, blobs, codes
from squareloss.probe import RidgeProbe


@pytest.mark.parametrize(
    "options", [{}, {"fit_intercept": False}, {"class_weight": {0: 3.0, 2: 0.5}}, {"class_weight": "balanced"}]
)
@pytest.mark.parametrize(("n", "d"), [(40, 5), (20, 30)])
def test_leave_one_out_is_n_refits(n, d, options):
    """Every sample, with sample weights; the scale of the features and the class weights are those of all samples."""
    x, y = blobs(n, d)
    rng = np.random.default_rng(3)
    s = rng.uniform(0.3, 2, n)
    probe = RidgeProbe([0.1, 2.0], **options).fit(x, y, s)
    mean = (probe_weights(probe, y, s) @ x) / probe_weights(probe, y, s).sum()
    scale = np.sqrt(probe_weights(probe, y, s) @ (x - mean) ** 2 / probe_weights(probe, y, s).sum())
    refits = {}
    for lam in (0.1, 2.0):
        refits[lam] = np.zeros((n, 3))
        for i in range(n):
            rest = np.arange(n) != i
            ridge = Ridge(alpha=lam, fit_intercept=options.get("fit_intercept", True), solver="svd")
            ridge.fit(x[rest] / scale, codes(y[rest], 3), probe_weights(probe, y, s)[rest])
            refits[lam][i] = ridge.predict(x[i : i + 1] / scale)[0]
    np.testing.assert_allclose(probe.leave_one_out(x, y, s) - probe.shift_, refits[probe.lambda_], **TIGHT)
    w = probe_weights(probe, y, s)
    for i, lam in enumerate(probe.path_["lambda"]):
        errors = ((refits[lam] - codes(y, 3)) ** 2).sum(1) / 9
        assert probe.path_["brier"][i] == pytest.approx(w @ errors / w.sum(), rel=1e-8)
        assert probe.path_["accuracy"][i] == pytest.approx(w @ (refits[lam].argmax(1) == y) / w.sum())


@pytest.mark.parametrize("how", ["fit", "partial_fit", "fit_chunks"])
@pytest.mark.parametrize("intercept", [True, False])
def test_leave_one_out_of_a_fit_that_interpolates(how, intercept):
    """Fewer samples than features, and lambda to 1e-10: residuals and 1 - h are both rounding, if taken as differences."""
    rng = np.random.default_rng(0)
    x, y, s = rng.standard_normal((30, 400)), np.arange(30) % 3, rng.uniform(0.5, 2, 30)
    lambdas = [1e-10, 1e-6, 1e-3, 1.0]
    probe = RidgeProbe(lambdas, scale_features=False, fit_intercept=intercept)
    if how == "fit":
        probe.fit(x, y, s)
    elif how == "partial_fit":
        probe.partial_fit(x[:10], y[:10], sample_weight=s[:10]).partial_fit(x[10:], y[10:], sample_weight=s[10:])
    else:
        probe.fit_chunks([(x[:10], y[:10], s[:10]), (x[10:], y[10:], s[10:])])
    for i, lam in enumerate(lambdas):
        refits = np.zeros((30, 3))
        for j in range(30):
            rest = np.arange(30) != j
            ridge = Ridge(alpha=lam, fit_intercept=intercept, solver="svd").fit(x[rest], codes(y[rest], 3), s[rest])
            refits[j] = ridge.predict(x[j : j + 1])[0]
        errors = ((refits - codes(y, 3)) ** 2).sum(1) / 9
        assert probe.path_["brier"][i] == pytest.approx(s @ errors / s.sum(), rel=1e-9)
        assert probe.path_["accuracy"][i] == pytest.approx(s @ (refits.argmax(1) == y) / s.sum())
        if lam == probe.lambda_:
            some = [7, 3, 20]  # in any order
            np.testing.assert_allclose(probe.leave_one_out(x[some], y[some], s[some]) - probe.shift_, refits[some], **TIGHT)
    absent = probe.leave_one_out(x[:2], y[:2], [0.0, s[1]])[0]  # a sample of weight 0 has nothing to be left out of
    np.testing.assert_allclose(absent, probe.decision_function(x[:1])[0])
    with pytest.raises(ValueError, match="samples that were fitted, of the same precision"):
        probe.leave_one_out(x.astype(np.float32), y, s)
    with pytest.raises(ValueError, match="got one that was not"):  # one of two
        probe.leave_one_out(np.stack([x[0], x[1] + 1]), y[:2], s[:2])


@pytest.mark.parametrize(("samples", "intercept"), [(21, True), (20, True), (20, False)])
def test_leave_one_out_of_a_fit_that_just_interpolates(samples, intercept):
    """As many samples as there are coefficients and an intercept: by products of samples still."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((samples, 20)), np.arange(samples) % 3
    options = {"scale_features": False, "fit_intercept": intercept}
    at_once, parts = RidgeProbe(1e-10, **options).fit(x, y), RidgeProbe(1e-10, **options).partial_fit(x[:9], y[:9])
    refits = np.zeros((samples, 3))
    for i in range(samples):
        rest = np.arange(samples) != i
        ridge = Ridge(alpha=1e-10, fit_intercept=intercept, solver="svd").fit(x[rest], codes(y[rest], 3))
        refits[i] = ridge.predict(x[i : i + 1])[0]
    for probe in (at_once, parts.partial_fit(x[9:], y[9:])):
        np.testing.assert_allclose(probe.leave_one_out(x, y) - probe.shift_, refits, rtol=1e-6, atol=1e-6)


def test_leave_one_out_of_a_wide_fit_is_computed_once(monkeypatch):
    x, y = blobs(40, 90)
    sets = np.stack([y, y % 2], 1)
    probe = RidgeProbe([0.1, 10.0]).fit(x, sets)
    whole = probe.leave_one_out(x, sets)
    monkeypatch.setattr("squareloss._estimator_inputs.rows", lambda *_: 7)
    monkeypatch.setattr("squareloss._probe_engine.by_label_set", None)
    for again, before in zip(probe.leave_one_out(x[::-1], sets[::-1]), whole, strict=True):
        np.testing.assert_array_equal(again[::-1], before)
    monkeypatch.undo()
    probe.forget(x[:1], sets[:1])
    never = RidgeProbe([0.1, 10.0]).fit(x[1:], sets[1:])
    for i in range(2):  # and again when samples came or went
        np.testing.assert_allclose(probe.leave_one_out(x[1:], sets[1:])[i], never.leave_one_out(x[1:], sets[1:])[i], atol=1e-6)


def test_a_lambda_that_cannot_be_judged_is_never_chosen():
    x, y = blobs(60, 5)
    x[:, 4] = 0
    x[7, 4] = 1  # fixed by itself at a small lambda
    with pytest.warns(UserWarning, match="lost in rounding at lambda = 1e-12, since .*: not chosen"):
        probe = RidgeProbe([1e-12, 1.0], criterion="accuracy", scale_features=False).fit(x, y)
    assert probe.lambda_ == 1.0
    assert np.isnan(probe.path_["brier"]).tolist() == np.isnan(probe.path_["accuracy"]).tolist() == [True, False]
    with pytest.warns(UserWarning, match="probabilities rest on the other samples"):
        alone = RidgeProbe([1e-12], scale_features=False).fit(x, y)
    assert np.isfinite(alone.predict_proba(x)).all()
    assert np.isnan(alone.leave_one_out(x, y)).any(1).tolist() == [i == 7 for i in range(60)]
    with pytest.raises(ValueError, match="expected a lambda to choose, but .* lambda = 1e-13, 1e-12; give larger ones"):
        RidgeProbe([1e-13, 1e-12], scale_features=False).fit(x, y)


@pytest.mark.parametrize("sets", [1, 2])
def test_one_lambda_that_cannot_be_judged_has_predictions(sets):
    """Of wide data with a repeated sample."""
    x, y = blobs(20, 50)
    x[1] = x[0]
    labels = np.stack([y, y % 2], 1)[:, :sets].squeeze()
    with pytest.warns(UserWarning, match="lost in rounding at lambda = 1e-11, .*: no probabilities"):
        probe = RidgeProbe(1e-11, scale_features=False).fit(x, labels)
    with pytest.warns(UserWarning, match="no probabilities"):
        RidgeProbe(1e-11, scale_features=False).partial_fit(x, labels).predict(x)
    reference = Ridge(alpha=1e-11, solver="svd").fit(x, codes(y, 3))
    scores = probe.decision_function(x)
    np.testing.assert_allclose(scores if sets == 1 else scores[0], reference.predict(x), rtol=1e-6, atol=1e-6)
    assert all(np.isnan(part).all() for part in probe.leave_one_out(x, labels))
    assert np.isnan(probe.temperature_).all()
    with pytest.raises(ValueError, match="scores are lost in rounding, .*; raise lambda"):
        probe.predict_proba(x)


def probe_weights(probe, y, s):
    if probe.class_weight == "balanced":
        return s * s.sum() / (3 * np.bincount(y, weights=s))[y]
    return s if probe.class_weight is None else s * np.array([probe.class_weight.get(k, 1.0) for k in range(3)])[y]
