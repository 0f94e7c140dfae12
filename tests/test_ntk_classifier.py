"""NTKClassifier: scikit-learn's contract, leave-one-out as refits, both solvers, inputs on the sphere and off it."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.kernel_ridge import KernelRidge
from sklearn.utils.estimator_checks import check_estimator

from squareloss._probability_map import fit_curve
from squareloss.codings import Simplex
from squareloss.ntk import NTK, Laplace, NTKClassifier, to_sphere
from squareloss.ntk.iterative import Nystrom


def circle(n=300, classes=3, seed=0):
    """Points of the disc, the class by angle, so that no linear map will do; one label in ten wrong."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2))
    y = np.floor((np.arctan2(x[:, 1], x[:, 0]) + np.pi) / (2 * np.pi) * 2 * classes).astype(int) % classes
    return x, np.where(rng.random(n) < 0.1, rng.integers(0, classes, n), y)


@pytest.mark.filterwarnings("ignore")  # its own, of labels that are infinite
def test_scikit_learns_checks():
    failing = {"check_sample_weight_equivalence_on_dense_data": "leaving out a sample of weight 2 removes both copies"}
    for model in (NTKClassifier(), NTKClassifier(1.0, kernel=Laplace())):
        check_estimator(model, on_skip=None, expected_failed_checks=failing)


def test_scores_are_kernel_ridge_on_the_codes():
    x, y = circle()
    sphere = to_sphere(torch.from_numpy((x - x.mean(0)) / x.std(0) / 2**0.5))
    codes = Simplex().encode(torch.from_numpy(y), 3).double().numpy()
    expected = KernelRidge(kernel="precomputed", alpha=0.3).fit(NTK().matrix(sphere).numpy(), codes)
    for solver in ("exact", "iterative"):
        model = NTKClassifier(0.3, solver=solver, tolerance=1e-9).fit(x, y)
        tolerance = 1e-8 if solver == "exact" else 1e-6
        np.testing.assert_allclose(model.dual_coef_, expected.dual_coef_, atol=tolerance)
        found = model.decision_function(x) - model.shift_
        np.testing.assert_allclose(found, expected.predict(NTK().matrix(sphere).numpy()), atol=tolerance)
        np.testing.assert_allclose(found.sum(1), 0, atol=1e-6)


def scores_of(model, x):
    """Without the shift, which the probability map adds."""
    found = model.decision_function(x)
    return found - (model.shift_[1] if found.ndim == 1 else model.shift_)


@pytest.mark.parametrize("solver", ["exact", "iterative"])
def test_weighted_scores_are_weighted_kernel_ridge_on_the_codes(solver):
    x, y = circle()
    weight = np.random.default_rng(1).exponential(2, len(y))
    centred = x - np.average(x, axis=0, weights=weight)
    scale = np.average(centred**2, axis=0, weights=weight) ** 0.5
    h = NTK().matrix(to_sphere(torch.from_numpy(centred / scale / 2**0.5))).numpy()
    codes = Simplex().encode(torch.from_numpy(y), 3).double().numpy()
    expected = KernelRidge(kernel="precomputed", alpha=0.3).fit(h, codes, sample_weight=weight)
    model = NTKClassifier(0.3, solver=solver, tolerance=1e-9).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(model.dual_coef_, expected.dual_coef_, atol=1e-8 if solver == "exact" else 1e-6)
    np.testing.assert_allclose(scores_of(model, x), expected.predict(h), atol=1e-8 if solver == "exact" else 1e-6)
    if solver == "exact":
        path = NTKClassifier([0.3, 0.30001]).fit(x, y, torch.from_numpy(weight))
        np.testing.assert_allclose(path.path_["brier"][0], model.path_["brier"][0], rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"scale_features": False}, {"solver": "iterative", "tolerance": 1e-9}])
def test_whole_weights_are_repeated_samples_and_zero_is_absence(options):
    x, y = circle(120)
    x[:, 1] *= 3
    weight = np.random.default_rng(1).integers(0, 4, len(y))
    weighted = NTKClassifier(0.3, **options).fit(x, y, weight)
    repeated = NTKClassifier(0.3, **options).fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(scores_of(weighted, x), scores_of(repeated, x), atol=1e-6 if "solver" in options else 1e-10)
    present = weight > 0
    without = NTKClassifier(0.3, **options).fit(torch.from_numpy(x[present]), y[present], weight[present])
    np.testing.assert_array_equal(weighted.predict_proba(x), without.predict_proba(x))
    assert weighted.path_ == without.path_ and len(weighted.dual_coef_) == present.sum()


@pytest.mark.parametrize("solver", ["exact", "iterative"])
def test_weights_count_by_their_ratios_beside_mu(solver):
    """The default grid too: all weights times 8 is the same with mu times 8."""
    x, y = circle(150)
    weight = np.random.default_rng(1).exponential(2, len(y))
    one, eight = (NTKClassifier(solver=solver).fit(x, y, factor * weight) for factor in (1, 8))
    np.testing.assert_allclose(eight.path_["mu"], 8 * np.array(one.path_["mu"]), rtol=1e-9)
    np.testing.assert_allclose(eight.path_["brier"], one.path_["brier"], rtol=1e-3 if solver == "iterative" else 1e-7)
    np.testing.assert_allclose(eight.predict_proba(x), one.predict_proba(x), atol=1e-3 if solver == "iterative" else 1e-7)


@pytest.mark.parametrize("solver", ["exact", "iterative"])
@pytest.mark.parametrize("factor", [2e-30, 5e29])
def test_weights_may_be_as_small_and_as_large_as_is_said(solver, factor):
    x, y = circle(100)
    weight = np.random.default_rng(1).uniform(0.5, 1.5, 100)
    one, other = (NTKClassifier(c, solver=solver).fit(x, y, c * weight) for c in (1, factor))
    np.testing.assert_allclose(other.predict_proba(x), one.predict_proba(x), atol=1e-4 if solver == "iterative" else 1e-9)


@pytest.mark.parametrize("mu", [0.1, [0.1, 1e5]])
def test_weighted_leave_one_out_is_refits_and_the_map_is_of_their_scores(mu):
    x, y = circle(30)
    x, weight = to_sphere(torch.from_numpy(x)).numpy(), np.random.default_rng(1).exponential(2, 30)
    model = NTKClassifier(mu, bias=False).fit(x, y, weight)
    scores = np.empty((30, 3))
    for i in range(30):
        rest = np.arange(30) != i
        scores[i] = scores_of(NTKClassifier(0.1, bias=False).fit(x[rest], y[rest], weight[rest]), x[i : i + 1])[0]
    errors = (((1 + scores) / 3 - np.eye(3)[y]) ** 2).sum(1)
    assert model.mu_ == 0.1 and model.path_["brier"][0] == pytest.approx(np.average(errors, weights=weight), rel=1e-9)
    assert model.path_["accuracy"][0] == pytest.approx(np.average(scores.argmax(1) == y, weights=weight))
    frequency = torch.from_numpy(np.bincount(y, weight) / weight.sum())
    curve = fit_curve(*(torch.from_numpy(t) for t in (scores, y, weight)), frequency)
    expected = curve.probabilities(torch.from_numpy(scores_of(model, x)))
    np.testing.assert_allclose(model.predict_proba(x), expected.numpy(), atol=1e-8)


def test_weights_of_samples_held_out_count_where_leave_one_out_has_no_closed_form():
    x, y = circle(200)
    x, weight = to_sphere(torch.from_numpy(x)).numpy(), np.random.default_rng(1).exponential(2, 200) * (1 + 9 * (y == 0))
    model = NTKClassifier(0.1, bias=False, solver="iterative").fit(x, y, weight)
    out, rest = np.split(torch.randperm(200, generator=torch.Generator().manual_seed(0)).numpy(), [40])
    scores = scores_of(NTKClassifier(0.1, bias=False).fit(x[rest], y[rest], weight[rest]), x[out])
    errors = (((1 + scores) / 3 - np.eye(3)[y[out]]) ** 2).sum(1)
    assert model.path_["brier"][0] == pytest.approx(np.average(errors, weights=weight[out]), rel=1e-2)
    assert abs(np.average(errors, weights=weight[out]) / errors.mean() - 1) > 0.05
    frequency = torch.from_numpy(np.bincount(y, weight) / weight.sum())
    curve, plain = (
        fit_curve(*(torch.from_numpy(t) for t in (scores, y[out], w)), frequency).probabilities(
            torch.from_numpy(scores_of(model, x))
        )
        for w in (weight[out], np.ones(40))
    )
    np.testing.assert_allclose(model.predict_proba(x), curve.numpy(), atol=1e-3)
    assert float((curve - plain).abs().max()) > 0.01


def test_of_as_many_hits_the_first_mu_is_taken():
    """Whichever samples they are: a sum of shares would differ in its last digit."""
    labels, codes = torch.zeros(30, dtype=torch.int64), Simplex().encode(torch.zeros(30, dtype=torch.int64), 2).double()
    generator = torch.Generator().manual_seed(0)
    model = NTKClassifier(criterion="accuracy")
    model.classes_ = np.arange(2)
    hits = [(torch.randperm(30, generator=generator) < 17).long() for _ in range(500)]
    scores = [Simplex().encode(1 - hit, 2).double() for hit in hits]
    assert model._choose(list(range(500)), scores, codes, labels, torch.ones(30, dtype=torch.float64))[1] == 0
    assert set(model.path_["accuracy"]) == {17 / 30}


def test_weights_that_can_not_be():
    x, y = circle(20)
    with pytest.raises(ValueError, match="Negative"):
        NTKClassifier(0.1).fit(x, y, -np.ones(20))
    with pytest.raises(ValueError, match=r"at least 2 samples of positive weight, got n_samples = 1"):
        NTKClassifier(0.1).fit(x, y, np.eye(20)[0])
    for extreme in (1e-31, 1e31, 1e308):
        with pytest.raises(ValueError, match=r"expected weights of 1e-30 to 1e\+30 on average, got .*; multiply"):
            NTKClassifier(0.1).fit(x, y, np.full(20, extreme))
    gone = NTKClassifier(0.1).fit(x, y, y > 0)  # class 0 is known, and has no sample
    assert gone.classes_.tolist() == [0, 1, 2] and 0 not in gone.predict(x)


def test_samples_held_out_that_are_of_one_class_make_no_one_sure_of_it():
    """The frequencies explain them as well as the scores, whose slope is 0 but for rounding; nothing is divided by that."""
    worst, right = 0.0, 0
    for seed in range(20):
        g = np.random.default_rng(seed)
        x = g.normal(size=(220, 3))
        y = (x[:, 0] + 0.5 * g.normal(size=220) > 0.8).astype(int)
        held = torch.randperm(20, generator=torch.Generator().manual_seed(0)).numpy()[:4]
        y[held], x[held, 0] = 0, -np.abs(x[held, 0])
        model = NTKClassifier(solver="iterative").fit(x[:20], y[:20])
        assert np.abs(model.shift_).max() < 10
        p = model.predict_proba(x[20:])[np.arange(200), y[20:]]
        worst = max(worst, -np.log(p.clip(1e-300)).mean())
        right += (model.predict(x[20:]) == y[20:]).mean() / 20
    assert worst < 1 and right > 0.75


def test_a_constant_feature_is_none():
    x, y = circle(60)
    weight = np.random.default_rng(1).exponential(2, 60)
    wide = np.column_stack([x, np.full(60, 0.1)])
    model = NTKClassifier(0.1).fit(wide, y, weight)
    assert float(model._scale[2]) == 3**0.5 and float(model.solution_.points[:, 2].abs().max()) < 1e-15


@pytest.mark.parametrize("state", [np.int64(3), np.random.RandomState(3), None])
def test_any_random_state_of_scikit_learn_will_do(state):
    x, y = circle(60)
    probabilities = NTKClassifier(solver="iterative", random_state=state).fit(x, y).predict_proba(x)
    assert probabilities.shape == (60, 3)
    if isinstance(state, np.integer):
        expected = NTKClassifier(solver="iterative", random_state=3).fit(x, y).predict_proba(x)
        np.testing.assert_array_equal(probabilities, expected)


def test_one_mu_and_a_path_agree():
    x, y = circle()
    path = NTKClassifier([0.01, 0.1, 1.0]).fit(x, y)
    one = NTKClassifier(path.mu_).fit(x, y)
    best = path.path_["mu"].index(path.mu_)
    assert path.path_["brier"][best] == min(path.path_["brier"])
    assert one.path_["brier"][0] == pytest.approx(path.path_["brier"][best], rel=1e-9)
    np.testing.assert_allclose(one.predict_proba(x), path.predict_proba(x), atol=1e-7)


def test_the_path_is_leave_one_out():
    """The Brier score and the accuracy of thirty refits, on points that need no centring."""
    x, y = circle(30, classes=2)
    x = to_sphere(torch.from_numpy(x)).numpy()
    model = NTKClassifier(0.1, bias=False).fit(x, y)
    scores = []
    for i in range(30):
        rest = np.arange(30) != i
        fold = NTKClassifier(0.1, bias=False).fit(x[rest], y[rest])
        scores.append((fold.decision_function(x[i : i + 1]) - fold.shift_[1])[0])
    eta = (1 + np.array(scores)) / 2
    assert model.path_["brier"] == [pytest.approx(np.mean(2 * (eta - y) ** 2), rel=1e-9)]
    assert model.path_["accuracy"] == [np.mean((eta > 0.5) == y)]


@pytest.mark.parametrize("solver", ["exact", "iterative"])
def test_mu_is_best_by_the_criterion(solver):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((60, 3))
    y = x[:, 0] + rng.standard_normal(60) > 0
    brier, accuracy = (NTKClassifier(criterion=name, solver=solver).fit(x, y) for name in ("brier", "accuracy"))
    assert brier.path_ == accuracy.path_
    assert brier.mu_ == brier.path_["mu"][int(np.argmin(brier.path_["brier"]))]
    assert accuracy.mu_ == brier.path_["mu"][int(np.argmax(brier.path_["accuracy"]))] != brier.mu_
    for model in (brier, accuracy):
        model.set_params(memory_gb=1e-9)
        with pytest.raises(MemoryError):
            model.fit(x, y)


def test_it_learns_and_its_probabilities_fit():
    x, y = circle(900)
    model = NTKClassifier().fit(x[:450], y[:450])
    p = model.predict_proba(x[450:])
    assert model.score(x[450:], y[450:]) > 0.85  # of 0.933 possible; linear maps are near a third
    np.testing.assert_allclose(p.sum(1), 1)
    assert abs(p.max(1).mean() - model.score(x[450:], y[450:])) < 0.04
    iterative = NTKClassifier(solver="iterative").fit(x[:450], y[:450])
    assert iterative.solution_.residual <= 1e-6 and len(iterative.path_["mu"]) == 5
    assert abs(iterative.score(x[450:], y[450:]) - model.score(x[450:], y[450:])) < 0.03


def test_two_samples_are_enough():
    model = NTKClassifier(0.1).fit([[0.0], [1.0]], ["a", "b"])
    assert model.predict([[0.0], [1.0], [1.2]]).tolist() == ["a", "b", "b"]
    with pytest.raises(ValueError, match="at least 2 samples"):
        NTKClassifier(0.1).fit([[0.0]], ["a"])


def test_one_scale_for_pixels_and_one_each_for_units():
    x, y = load_digits(return_X_y=True)
    pixels = NTKClassifier(1e-3, scale_features=False).fit(x[:900], y[:900])
    assert pixels.score(x[900:], y[900:]) > 0.95
    x, y = circle(200)
    units = x * np.array([1.0, 1e6])
    plain, scaled, one = (NTKClassifier(0.1, scale_features=s) for s in (True, True, False))
    p, q = plain.fit(x, y).predict_proba(x), scaled.fit(units, y).predict_proba(units)
    np.testing.assert_allclose(p, q, atol=1e-8)
    assert one.fit(units, y).score(units, y) < plain.score(x, y) - 0.1  # one coordinate is lost


def test_points_of_the_sphere_in_float32():
    x, y = circle(80)
    wide = to_sphere(torch.from_numpy(x))
    narrow, expected = wide.float(), NTKClassifier(0.1, bias=False).fit(wide, y).predict_proba(wide)
    for points in (narrow, narrow.numpy()):
        found = NTKClassifier(0.1, bias=False).fit(points, y).predict_proba(points)
        np.testing.assert_allclose(np.asarray(found), expected.numpy(), atol=1e-5)


def test_auto_is_exact_while_that_is_quick(monkeypatch):
    x, y = circle(100)
    monkeypatch.setattr("squareloss.ntk.classifier.EXACT", 100)
    monkeypatch.setattr("squareloss.ntk.classifier.CHOICE", 99)
    assert NTKClassifier(0.1).fit(x, y).solution_.residual is None
    assert NTKClassifier([0.1, 1.0]).fit(x, y).solution_.residual <= 1e-6
    assert NTKClassifier([0.1, 1.0]).fit(x[:99], y[:99]).solution_.residual is None


def test_in_kind_and_through_a_pickle():
    x, y = circle(80, classes=2)
    names = np.array(["no", "yes"])[y]
    model = NTKClassifier(0.1).fit(x, names)
    again = pickle.loads(pickle.dumps(model))
    tensor = torch.from_numpy(x)
    assert set(model.predict(x)) == {"no", "yes"} and model.decision_function(x).shape == (80,)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert isinstance(model.predict_proba(tensor), torch.Tensor)
    assert isinstance(NTKClassifier(0.1).fit(tensor, torch.from_numpy(y)).predict(tensor), torch.Tensor)
    assert (model.predict(x) == names[:]).mean() > 0.8 and model.temperature_ > 0 and np.isfinite(model.bend_)


def test_bad_input(monkeypatch):
    x, y = circle(40)
    with pytest.raises(ValueError, match="expected X on the unit sphere.*to_sphere"):
        NTKClassifier(bias=False).fit(x, y)
    with pytest.raises(ValueError, match="features below 1e.100"):
        NTKClassifier().fit(x * 1e160, y)
    with pytest.raises(ValueError, match="got one class"):
        NTKClassifier().fit(x, np.zeros(40))
    with pytest.raises(MemoryError, match="conjugate_gradients"):
        NTKClassifier(memory_gb=1e-6).fit(x, y)
    with pytest.raises(MemoryError, match="conjugate_gradients"):
        NTKClassifier(1.0, memory_gb=1e-6).fit(x, y)
    monkeypatch.setattr(Nystrom, "of", None)  # it is refused before any work is done
    with pytest.raises(MemoryError, match="needs 5.12e-06 GB.*or RidgeProbe on RandomFeatures"):  # 40 rows of 32 numbers
        NTKClassifier(1.0, solver="iterative", memory_gb=1e-6).fit(x, y)
    monkeypatch.undo()
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    with pytest.raises(ValueError, match="40 of 80 points are repeated"):
        NTKClassifier(0.0).fit(*twice)
    with pytest.raises(ValueError, match="expected mu > 0 for a singular kernel matrix, got mu = 0; raise mu"):
        NTKClassifier([0.0, 1.0]).fit(*twice)
    for mu in (0, [0.0, 1.0]):
        with pytest.raises(ValueError, match="expected mu > 0 for the iterative solver, got mu = 0; .* solver='exact'"):
            NTKClassifier(mu, solver="iterative").fit(x, y)
        assert NTKClassifier(mu, solver="exact").fit(x, y).mu_ in (0, 1)
    with pytest.raises(ValueError, match="expected tolerance > 0 and finite, got 0$"):
        NTKClassifier(1.0, solver="iterative", tolerance=0).fit(x, y)
    NTKClassifier(0.1).fit(*twice)
    for options in ({"solver": "fast"}, {"criterion": "loss"}):
        with pytest.raises(ValueError, match="Unknown.*Available"):
            NTKClassifier(**options).fit(x, y)
    with pytest.raises(ValueError, match="finite mu >= 0"):
        NTKClassifier(-1.0).fit(x, y)
    with pytest.raises(ValueError, match="expected mu: a number >= 0, a list of them, or None .* got 'auto'"):
        NTKClassifier("auto").fit(x, y)
    with pytest.raises(ValueError, match="one mu or more"):
        NTKClassifier([]).fit(x, y)
    with pytest.raises(TypeError, match="kernel such as .* got 'foo'"):
        NTKClassifier(kernel="foo").fit(x, y)
    for mu in (np.float32(0.5), np.int64(1), np.array(0.5), np.array([0.5, 1.0])):
        assert NTKClassifier(mu).fit(x, y).mu_ in (0.5, 1.0)
    with pytest.raises(ValueError, match="one label a sample"):
        NTKClassifier().fit(x, np.stack([y, y], 1))
    with pytest.raises(NotFittedError, match="call fit"):
        NTKClassifier().predict(x)
