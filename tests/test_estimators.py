"""SquareLossClassifier: scikit-learn's contract, the losses it trains with, early stopping, and its probabilities."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import squareloss
from squareloss import CrossEntropy, OneHot, Simplex, SquareLoss, metrics
from squareloss._estimator_options import LOSSES
from squareloss._mlp_training import Trainer
from squareloss.calibrators import Asinh
from squareloss.estimators import SquareLossClassifier


def small(**options: Any) -> SquareLossClassifier:
    return SquareLossClassifier(**{"hidden": (32,), "max_epochs": 40, "learning_rate": 0.01, "random_state": 0, **options})


@pytest.fixture(scope="module")
def digits() -> list[np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=120)
    return rng.normal(size=(120, 5)) + y[:, None] * np.array([1.5, -1.0, 0.5, 0.0, 0.0]), y


def same(a: SquareLossClassifier, b: SquareLossClassifier) -> bool:
    pairs = zip(a.network_.parameters(), b.network_.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


# the reason is scikit-learn's own for SGDClassifier: here the two differ by float32 rounding, see the next test
@parametrize_with_checks(
    [small(), small(loss="cross_entropy", early_stopping=True)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "sample_weight is not equivalent to removing/repeating samples."
    },
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_weights_count_samples(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    counts = np.random.default_rng(1).integers(0, 4, size=len(y))
    options = {"batch_size": 1000, "class_weight": "balanced"}
    weighted = small(**options).fit(X, y, sample_weight=7.0 * counts)
    repeated = small(**options).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-4)
    assert np.abs(weighted.predict_proba(X) - small(**options).fit(X, y).predict_proba(X)).max() > 0.01


@pytest.mark.parametrize("early_stopping", [False, True])
def test_samples_of_weight_zero_are_as_good_as_absent(blobs: tuple[np.ndarray, np.ndarray], early_stopping: bool) -> None:
    X, y = blobs
    weight = np.where(np.arange(len(y)) % 4, 1.0, 0.0)
    wild = np.where(weight[:, None] > 0, X, 1e4)
    options = {"batch_size": 16, "max_epochs": 3, "early_stopping": early_stopping}
    a = small(**options).fit(wild, y, sample_weight=weight)
    b = small(**options).fit(X[weight > 0], y[weight > 0])
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_a_feature_that_varies_only_without_weight_is_constant(value: float) -> None:
    """Also in partial_fit, whose statistics are those of fit."""
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(300, 3)), np.where(np.arange(300) < 7, 0.0, rng.uniform(0.5, 2, size=300))
    X[:, 2] = np.where(weight > 0, value, 1.0)
    y = (X[:, 0] > 0).astype(int)
    whole = small(max_epochs=1).fit(X, y, sample_weight=weight)
    part = small().partial_fit(X, y, classes=[0, 1], sample_weight=weight)
    assert part.scale_[2] == 1
    np.testing.assert_array_equal(part.mean_, whole.mean_)
    np.testing.assert_array_equal(part.scale_, whole.scale_)


def test_a_call_of_partial_fit_is_an_epoch(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    options = {"batch_size": 50, "weight_decay": 0.1}
    whole = small(max_epochs=3, **options).fit(X, y)
    parts = small(**options)
    for _ in range(3):
        parts.partial_fit(X, y, classes=[0, 1, 2])
        parts = pickle.loads(pickle.dumps(parts))
    assert same(whole, parts)
    assert parts.loss_curve_ == whole.loss_curve_
    assert parts.n_epochs_ == 3


@pytest.mark.parametrize(
    ("samples", "expected"), [(20, 8), (179, 8), (180, 9), (999, 49), (3999, 199), (4000, 200), (9000, 200)]
)
def test_a_step_takes_a_twentieth_of_the_samples(samples: int, expected: int) -> None:
    X, y = np.random.default_rng(0).normal(size=(samples, 2)), np.arange(samples) % 2
    options = {"hidden": (3,), "max_epochs": 2, "early_stopping": False}
    model = small(**options).fit(X, y)
    assert model.batch_size_ == expected
    assert same(model, small(batch_size=expected, **options).fit(X, y))
    held_out = small(**options | {"early_stopping": True, "validation_fraction": 0.5}).fit(X, y)
    assert held_out.batch_size_ == min(200, max(8, samples // 2 // 20))  # of those that it trains on
    stream = small(**options).partial_fit(X, y, classes=[0, 1]).partial_fit(X, y)
    assert stream.batch_size_ == 200
    assert same(stream, small(batch_size=200, **options).fit(X, y))


@pytest.mark.parametrize("loss", LOSSES)
def test_few_samples_are_learned(loss: str) -> None:
    X, y = load_iris(return_X_y=True)
    assert cross_val_score(SquareLossClassifier((20,), loss, random_state=0), X, y, cv=5).mean() > 0.9


def test_a_loss_that_explodes_is_told(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    message = "expected a training loss below 1, which outputs of zero have, got .*; lower learning_rate"
    for options in ({}, {"class_weight": "balanced"}, {"early_stopping": True}, {"loss": SquareLoss(Simplex(reduced=True))}):
        with pytest.warns(ConvergenceWarning, match=message if "loss" not in options else "below"):
            model = small(learning_rate=1e6, **options).fit(X, y)
    samples = model._samples(X, y, np.ones(120))
    model.loss_curve_, model.best_epoch_ = [0.3, 1e9], 1
    model._check_loss(samples)  # those weights were kept, and are none that exploded
    model.best_epoch_ = 2
    with pytest.warns(ConvergenceWarning):
        model._check_loss(samples)


def test_outputs_of_zero_have_the_loss_that_training_is_held_against(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    """A training loss just below five times that is no reason to warn, one just above is; weights of samples count in both."""
    X, y = blobs
    weight = np.random.default_rng(0).uniform(0.1, 3, size=120)
    for loss in LOSSES:
        model = small(loss=loss, class_weight={0: 3.0}, max_epochs=1).fit(X, y, sample_weight=weight)
        zeros = model.loss_(torch.zeros(120, 3), torch.from_numpy(y)).numpy()
        for times, told in ((4.99, False), (5.01, True)):
            model.loss_curve_ = [times * np.mean(weight * zeros)]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model._check_loss(model._samples(X, y, weight))
            assert bool(caught) == told


def test_a_held_out_loss_that_is_never_a_number(blobs: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "mean_loss", lambda self, samples: float("nan"))
    model = small(early_stopping=True, patience=3).fit(*blobs)
    assert (model.n_epochs_, model.best_epoch_) == (3, 0)


def test_partial_fit_learns_from_batches_that_lack_classes(digits: list[np.ndarray]) -> None:
    X, X_test, y, y_test = digits
    model = small(hidden=(100,))
    for _ in range(10):
        for index in np.array_split(np.argsort(y % 5, kind="stable"), 5):
            model.partial_fit(X[index], y[index], classes=np.arange(10))
    assert model.score(X_test, y_test) > 0.9
    with pytest.raises(ValueError, match=r"expected labels among the classes .*, got \[10 11\]"):
        model.partial_fit(X, y + 2)
    with pytest.raises(ValueError, match="expected classes at the first call"):
        small().partial_fit(X, y)
    with pytest.raises(ValueError, match="balanced"):
        small(class_weight="balanced").partial_fit(X, y, classes=np.arange(10))


def test_a_first_partial_fit_that_is_refused_leaves_nothing_behind(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    refused = small()
    with pytest.raises(ValueError, match=r"expected labels among the classes \[0 1\], got \[2\]"):
        refused.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(NotFittedError):
        refused.predict(X)
    assert same(refused.partial_fit(X, y, classes=[0, 1, 2]), small().partial_fit(X, y, classes=[0, 1, 2]))


@pytest.mark.parametrize("kind", [str, object])
def test_numbers_and_text_are_no_labels_of_one_model(blobs: tuple[np.ndarray, np.ndarray], kind: type) -> None:
    X, y = blobs
    words = y.astype(str).astype(kind)
    model, untouched = (small().partial_fit(X, y, classes=[0, 1, 2]) for _ in range(2))
    for labels, classes in ((words, None), (words, ["0", "1", "2"]), (y, ["0", "1", "2"])):
        with pytest.raises(ValueError, match="labels that are numbers, as the classes .* are, got text such as '"):
            model.partial_fit(X, labels, classes=classes)
        assert same(model, untouched)
    with pytest.raises(ValueError, match="labels that are text, as the classes .* are, got numbers such as"):
        small().partial_fit(X, y, classes=["0", "1", "2"])
    with pytest.raises(ValueError, match=r"labels among the classes \[\], got \[0 1 2\]"):
        small().partial_fit(X, y, classes=[])


def test_nearly_all_samples_can_be_held_back_but_not_all(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    almost = np.float32(1 - 2 / len(y))  # fewer are left than there are classes
    assert small(early_stopping=True, validation_fraction=almost).fit(X, y).n_epochs_ > 0
    with pytest.raises(ValueError, match="expected validation_fraction to leave samples to train on"):
        small(early_stopping=True, validation_fraction=1 - 0.1 / len(y)).fit(X, y)


@pytest.mark.parametrize(
    "loss", [*LOSSES, SquareLoss(OneHot(k=5, M=15)), SquareLoss(Simplex(reduced=True), label_smoothing=0.1)], ids=str
)
def test_every_loss_learns_digits(loss: Any, digits: list[np.ndarray]) -> None:
    X, X_test, y, y_test = digits
    model = small(hidden=(100,), loss=loss, max_epochs=15).fit(X, y)
    p = model.predict_proba(X_test)
    assert model.score(X_test, y_test) > 0.95
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(1), 1)
    assert (model.classes_[p.argmax(1)] == model.predict(X_test)).mean() > 0.99  # ties and smoothing undone aside


def test_the_network_and_the_link_give_the_probabilities(digits: list[np.ndarray]) -> None:
    X, X_test, y, _ = digits
    model = small(max_epochs=2, calibrate=False).fit(X, y)
    assert model.network_.spec == {"name": "mlp", "inputs": 64, "hidden": [32], "outputs": 10}
    with torch.no_grad():
        outputs = model.network_(torch.tensor((X_test - model.mean_) / model.scale_, dtype=torch.float32))
    np.testing.assert_allclose(model.predict_proba(X_test), squareloss.probabilities(outputs), atol=1e-5)
    np.testing.assert_allclose(model.decision_function(X_test), outputs, atol=1e-4)


@pytest.mark.parametrize(("loss", "slope"), [("scaled_one_hot", -1.0), ("one_hot_15", -1.5)])
def test_one_hot_losses_start_much_as_cross_entropy_does(loss: str, slope: float) -> None:
    """The gradient at zero outputs is the same at the true class for any number of classes; cross-entropy's is nearly -1."""
    for K in (2, 10, 100, 1000):
        outputs = torch.zeros(1, K, requires_grad=True)
        LOSSES[loss](K)(outputs, torch.tensor([1])).backward()
        torch.testing.assert_close(outputs.grad, torch.zeros(1, K).index_fill(1, torch.tensor([1]), slope))


def test_two_classes_have_one_score(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    names = np.array(["no", "yes"])[(y > 0).astype(int)]
    for loss in ("simplex", SquareLoss(Simplex(reduced=True)), "cross_entropy"):
        model = small(loss=loss).fit(X, names)
        scores = model.decision_function(X)
        assert scores.shape == (120,)
        assert list(model.classes_) == ["no", "yes"]
        np.testing.assert_array_equal(model.predict(X), names[np.argsort(names)][[0, -1]][(scores > 0).astype(int)])
        assert model.predict_proba(X).shape == (120, 2)
        order = np.argsort(scores)
        assert (np.diff(model.predict_proba(X)[order, 1]) >= -1e-12).all()


@pytest.mark.parametrize("calibrate", [False, True])
def test_probabilities_are_those_of_the_data(calibrate: bool) -> None:
    """eta(x) = (1 + sin 3x) / 2 on a line: the estimate converges to it, and class weights do not move it."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(8000, 1))
    eta = (1 + np.sin(3 * x[:, 0])) / 2 * 0.4  # the second class is the rarer one
    y = (rng.random(8000) < eta).astype(int)
    options = {"hidden": (50, 50), "max_epochs": 15, "learning_rate": 0.003, "calibrate": calibrate}
    plain, balanced = small(**options).fit(x, y), small(class_weight="balanced", **options).fit(x, y)
    assert np.abs(plain.predict_proba(x)[:, 1] - eta).mean() < 0.03
    assert np.abs(balanced.predict_proba(x)[:, 1] - eta).mean() < 0.03
    # but they move the decision, from eta > 1/2 to eta > the share of the class
    assert plain.predict(x).mean() < 0.02
    assert np.abs(balanced.predict(x) - (eta > y.mean())).mean() < 0.05


def test_class_weights_are_sample_weights(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    weights = {0: 1.0, 1: 2.0, 2: 0.5}
    options = {"standardize": False}  # by the mean of samples as they weigh
    a = small(class_weight=weights, **options).fit(X, y)
    b = small(**options).fit(X, y, sample_weight=[weights[label] for label in y])
    np.testing.assert_allclose(a.decision_function(X), b.decision_function(X), atol=1e-3)
    c = small(loss=SquareLoss(weight=torch.tensor([1.0, 2.0, 0.5])), **options).fit(X, y)
    np.testing.assert_allclose(a.predict_proba(X), c.predict_proba(X), atol=1e-6)
    with pytest.raises(ValueError, match="class weights in one place"):
        small(loss=SquareLoss(weight=torch.ones(3)), class_weight="balanced").fit(X, y)
    with pytest.raises(ValueError, match="expected positive class weights, got 0"):
        small(class_weight={0: 0.0}).fit(X, y)
    with pytest.raises(ValueError, match="expected positive class weights, got 0"):
        small(loss=SquareLoss(weight=torch.tensor([0.0, 1.0, 1.0]))).fit(X, y)


def test_early_stopping_keeps_the_best_weights(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    options = {"hidden": (200,), "early_stopping": True, "validation_fraction": 0.3, "patience": 4}
    model = small(max_epochs=200, **options).fit(X, y)
    best = int(np.argmin(model.validation_curve_)) + 1
    assert model.best_epoch_ == best
    assert model.n_epochs_ == len(model.loss_curve_) == len(model.validation_curve_) == best + 4
    assert same(model, small(max_epochs=best, **options).fit(X, y))
    assert not same(model, small(max_epochs=best + 4, **{**options, "patience": 100, "early_stopping": False}).fit(X, y))
    assert small().fit(X, y).validation_curve_ == []


def test_calibration_on_held_out_samples(digits: list[np.ndarray]) -> None:
    X, X_test, y, y_test = digits

    def scores(**options: Any) -> tuple[float, float]:
        p = small(hidden=(100,), max_epochs=15, **options).fit(X, y).predict_proba(X_test)
        return abs(p.max(1).mean() - (p.argmax(1) == y_test).mean()), ((p - np.eye(10)[y_test]) ** 2).sum(1).mean()

    (raw_gap, raw_brier), (gap, brier) = scores(calibrate=False), scores()
    assert raw_gap > 0.1  # eta alone is underconfident here
    assert gap < 0.02
    assert brier < raw_brier
    model = small(hidden=(100,), max_epochs=15, loss="squentropy").fit(X, y)
    assert model.reading_ is not None
    order = np.argsort(model.decision_function(X_test), axis=1)
    p = np.take_along_axis(model.predict_proba(X_test), order, axis=1)
    assert (np.diff(p, axis=1) >= 0).all()  # the order of the classes stays
    assert small(max_epochs=2, early_stopping=False).fit(X, y).reading_ is None
    assert small(max_epochs=2, early_stopping=True).fit(X[:150], y[:150]).reading_ is None  # 15 are too few
    assert small(max_epochs=2, early_stopping=True).fit(X[:200], y[:200]).reading_ is not None


def test_the_only_sample_of_a_class_is_never_held_back() -> None:
    X, y = np.random.default_rng(0).normal(size=(1000, 3)), np.repeat([0, 1, 2], [989, 10, 1])
    for seed in range(20):
        model = SquareLossClassifier(hidden=(), max_epochs=1, random_state=seed).fit(X, y)
        train, held_out = model._split(y)
        assert sorted([*train, *held_out]) == list(range(1000))
        assert np.bincount(y[held_out]).tolist() == [99, 1]  # and the others are held back in proportion
    few = np.array([0, 0, 0, 1, 2, 3])  # half are to be held back: all that are not alone
    model = SquareLossClassifier(hidden=(), max_epochs=1, early_stopping=True, validation_fraction=0.5).fit(X[:6], few)
    train, held_out = model._split(few)
    assert len(train) == len(held_out) == 3


def test_calibration_weights_samples_and_undoes_class_weights(digits: list[np.ndarray]) -> None:
    X, X_test, y, _ = digits
    weight = np.random.default_rng(0).integers(1, 4, size=len(y)).astype(float)
    model = small(max_epochs=3, class_weight={3: 5.0}).fit(X, y, sample_weight=weight)
    _, held_out = model._split(y)
    scores, test_scores = (torch.from_numpy(model.decision_function(part)) for part in (X[held_out], X_test))
    by_hand = Asinh(class_weight=torch.tensor([5.0 if k == 3 else 1.0 for k in range(10)], dtype=torch.float64))
    by_hand.fit(scores, torch.from_numpy(y[held_out]), weight=torch.from_numpy(weight[held_out]), floor=True)
    np.testing.assert_allclose(model.predict_proba(X_test), by_hand.transform(test_scores), atol=1e-6)


def test_the_losss_own_reading_stays_where_its_brier_score_is_lower() -> None:
    """The network's estimate is made to be eta itself, so that it is close: now the one is lower, now the other."""
    kept = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        eta = 0.2 * (1 + np.sin(3 * rng.uniform(-1, 1, size=(800, 1))))
        y = (rng.random(800) < eta[:, 0]).astype(int)
        model = small(hidden=(), standardize=False, max_epochs=1, calibrate=False).fit(eta, y)
        with torch.no_grad():  # eta = (1 + f) / 2
            for parameter, value in zip(model.network_.parameters(), ([[-2.0], [2.0]], [1.0, -1.0]), strict=True):
                parameter.copy_(torch.tensor(value))
        own = torch.from_numpy(model.predict_proba(eta))
        np.testing.assert_allclose(own, np.hstack([1 - eta, eta]), atol=1e-6)
        labels, scores = torch.from_numpy(y), model.loss_.link.scores(model._forward(eta))
        bent = Asinh().fit(scores, labels, floor=True).transform(scores)
        model._set_reading(eta, y, np.ones(800))
        kept.append(model.reading_ is not None)
        assert kept[-1] == (metrics.brier(bent, labels) < metrics.brier(own, labels))
    assert set(kept) == {True, False}


def test_scores_that_say_nothing_keep_the_losss_own_reading() -> None:
    X, y = np.zeros((300, 3)), np.arange(300) % 2
    model = small(hidden=(), early_stopping=True, max_epochs=1)
    model.fit(X, y)
    with torch.no_grad():
        for parameter in model.network_.parameters():
            parameter.zero_()
    model.reading_ = None
    model._set_reading(X, y, np.ones(300))
    assert model.reading_ is None
    np.testing.assert_allclose(model.predict_proba(X), 0.5)


def test_results_depend_on_the_seed_alone(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    models = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        models.append(small(early_stopping=True).fit(X, y))
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert same(*models)
    assert not same(models[0], small(early_stopping=True, random_state=1).fit(X, y))
    assert not same(small(random_state=None).fit(X, y), small(random_state=None).fit(X, y))
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    state = np.random.RandomState(0)
    assert not same(small(random_state=state).fit(X, y), small(random_state=state).fit(X, y))


def test_features_of_any_scale(digits: list[np.ndarray]) -> None:
    X, X_test, y, y_test = digits
    scale = 10.0 ** np.random.default_rng(0).uniform(-6, 6, size=64)
    model = small(max_epochs=10).fit(X * scale + 1e4 * scale, y)
    assert model.score(X_test * scale + 1e4 * scale, y_test) > 0.93
    constant = X.std(0) == 0
    assert constant.any()
    assert (model.scale_[constant] == 1).all()
    np.testing.assert_allclose(model.scale_[~constant], (X.std(0) * scale)[~constant], rtol=1e-3)
    plain = small(max_epochs=2, standardize=False).fit(X, y)
    assert (plain.mean_ == 0).all()
    assert (plain.scale_ == 1).all()


def test_copies_and_pickles(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    model = small(loss=SquareLoss(OneHot(k=2, M=3)), class_weight={0: 2.0}).fit(X, y)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    fresh = clone(model)
    assert not hasattr(fresh, "network_")
    assert same(fresh.fit(X, y), model)
    assert model.loss.reduction == "mean"  # the caller's loss is left as it was


def test_rows_do_not_depend_on_their_neighbours(digits: list[np.ndarray]) -> None:
    X, X_test, y, _ = digits
    model = small(max_epochs=2).fit(X, y)
    one_by_one = np.concatenate([model.predict_proba(row[None]) for row in X_test[:20]])
    np.testing.assert_allclose(model.predict_proba(X_test)[:20], one_by_one, atol=1e-12)


def test_in_the_tools_of_scikit_learn(digits: list[np.ndarray]) -> None:
    X, X_test, y, y_test = digits
    base = small(max_epochs=8, early_stopping=False)
    pipeline = make_pipeline(PCA(30, random_state=0), base).fit(X, y)
    assert pipeline.score(X_test, y_test) > 0.93
    grid = {"squarelossclassifier__loss": ["simplex", CrossEntropy()], "squarelossclassifier__hidden": [(16,), (64,)]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_params_["squarelossclassifier__hidden"] == (64,)
    assert search.score(X_test, y_test) > 0.94
    for method in ("isotonic", "sigmoid"):
        calibrated = CalibratedClassifierCV(base, method=method, cv=2).fit(X, y)
        assert calibrated.score(X_test, y_test) > 0.9
    p = cross_val_predict(base, X, y, cv=3, method="predict_proba")
    assert (p.argmax(1) == y).mean() > 0.93


def test_tensors_and_devices_of_torch(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    x = torch.tensor(X).bfloat16().requires_grad_()
    model = small(device=torch.device("cpu"), max_epochs=2).fit(x, torch.tensor(y))
    rounded = small(max_epochs=2).fit(x.detach().float().numpy(), y)
    np.testing.assert_array_equal(model.predict_proba(x), rounded.predict_proba(x.detach().float().numpy()))


def test_verbose_tells_the_time_left(blobs: tuple[np.ndarray, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    X, y = blobs
    small(max_epochs=3, verbose=True, early_stopping=True).fit(X, y)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epoch 1: loss ")
    assert "held out" in lines[0]
    assert "s left" in lines[0]
    small(max_epochs=3).fit(X, y)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "Unknown loss 'hinge'. Available: simplex, one_hot_15, scaled_one_hot, cross_entropy, squentropy"),
        ({"hidden": 100}, "expected hidden to be a tuple of positive integers"),
        ({"hidden": (10, 0)}, "expected hidden to be a tuple of positive integers"),
        ({"learning_rate": 0}, "expected learning_rate to be a number > 0, got 0"),
        ({"learning_rate": "0.1"}, "expected learning_rate to be a number > 0, got '0.1'"),
        ({"weight_decay": None}, "expected weight_decay to be a number >= 0, got None"),
        ({"device": None}, "expected device .auto., .cpu., .cuda. or another .*, got None"),
        ({"device": 3.5}, "expected device .auto., .cpu., .cuda. or another .*, got 3.5"),
        ({"learning_rate": 1e30}, "expected a finite training loss"),
        ({"batch_size": 1.5}, "expected batch_size to be 'auto' or an integer >= 1, got 1.5"),
        ({"max_epochs": 0}, "expected max_epochs"),
        ({"weight_decay": -1.0}, "expected weight_decay"),
        ({"early_stopping": "yes"}, "expected early_stopping"),
        ({"validation_fraction": 1.0}, "expected validation_fraction"),
        ({"patience": 0}, "expected patience"),
        ({"loss": SquareLoss(weight=torch.ones(7))}, r"expected weight of shape \(3,\), one per class, got \(7,\)"),
        ({"class_weight": "even"}, "balanced"),
        ({"device": "cuda:99"}, "expected device .auto., .cpu., .cuda. or another .*, got .cuda:99."),
        ({"device": "gpu"}, "expected device .auto., .cpu., .cuda. or another .*, got .gpu."),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], message: str, blobs: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options).fit(*blobs)


def test_bad_input(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = blobs
    holed = X.copy()
    holed[3, 1] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        small().fit(holed, y)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        small(max_epochs=1).fit(X, y).predict(holed)
    with pytest.raises(ValueError, match="features below 1e.100"):
        small().fit(X * 1e160, y)
    with pytest.raises(TypeError, match=r"(?s)Sparse data was passed.*toarray"):
        small().fit(scipy.sparse.csr_array(X), y)
    with pytest.raises(ValueError, match="expected two classes or more, got one class: 5"):
        small().fit(X, np.full(120, 5))
    with pytest.raises(ValueError, match="(?i)sample weight"):
        small().fit(X, y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="Negative values"):
        small().fit(X, y, sample_weight=-np.ones(120))
    with pytest.raises(TypeError, match="expected loss to be one of"):
        small(loss=torch.nn.MSELoss()).fit(X, y)


def test_every_class_is_trained_whatever_the_loss_ignores():
    x = np.random.default_rng(0).standard_normal((60, 2))
    y = (x[:, 0] > 0).astype(int)
    options, losses = {"hidden": (4,), "max_epochs": 3, "random_state": 0}, (CrossEntropy(), CrossEntropy(ignore_index=1))
    plain, other = (SquareLossClassifier(loss=loss, **options).fit(x, y) for loss in losses)
    np.testing.assert_array_equal(plain.predict_proba(x), other.predict_proba(x))


@pytest.mark.parametrize("kind", [lambda w: w.requires_grad_(), lambda w: w.to(torch.bfloat16)])
def test_weights_may_be_tensors_as_features_may(kind):
    x, y = load_iris(return_X_y=True)
    weight = torch.arange(150).remainder(3).float()
    found, expected = (
        SquareLossClassifier(max_epochs=2, random_state=0).fit(x, y, w) for w in (kind(weight.clone()), weight.numpy())
    )
    np.testing.assert_array_equal(found.predict_proba(x), expected.predict_proba(x))
