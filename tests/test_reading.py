"""The reading that the estimator fits to held-out samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.special import expit, softmax

from squareloss import _reading
from squareloss._reading import Reading


def draw(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (p.cumsum(1) > rng.random(len(p))[:, None]).argmax(1)


@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("class_weight", [np.ones(3), np.array([0.2, 1.0, 4.0])], ids=["even", "weighted"])
def test_it_finds_the_reading_the_labels_were_drawn_from(floor: float, class_weight: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    scores = 3 * rng.normal(size=(20_000, 3))
    truth = Reading(0.7, floor, class_weight)
    p = truth.probabilities(scores)
    labels = draw(p, rng)
    found = _reading.fit(scores, labels, np.ones(len(scores)), class_weight, own=np.full(p.shape, 1 / 3))
    assert found is not None
    assert found.slope == pytest.approx(0.7, rel=0.06)
    assert found.floor == pytest.approx(floor, abs=0.03)
    assert floor > 0 or found.floor == 0
    np.testing.assert_allclose(found.probabilities(scores), p, atol=0.03)


def test_the_losss_own_reading_stays_where_it_is_better() -> None:
    rng = np.random.default_rng(0)
    eta = rng.dirichlet(np.ones(3), size=5000)
    assert _reading.fit(3 * eta - 1, draw(eta, rng), np.ones(5000), np.ones(3), own=eta) is None


def test_weights_count_samples() -> None:
    rng = np.random.default_rng(0)
    scores, labels, counts = rng.normal(size=(100, 4)), rng.integers(4, size=100), rng.integers(1, 4, size=100)
    own = np.eye(4)[(labels + 1) % 4]
    weighted = _reading.fit(scores, labels, 5.0 * counts, np.ones(4), own)
    again = [np.repeat(a, counts, axis=0) for a in (scores, labels, own)]
    repeated = _reading.fit(again[0], again[1], np.ones(counts.sum()), np.ones(4), again[2])
    assert weighted is not None
    assert repeated is not None
    assert weighted.slope == pytest.approx(repeated.slope, rel=0.1)  # the smoothing counts rows


def test_labels_that_were_all_right_leave_doubt() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=100)
    scores = np.eye(5)[labels] + 0.1 * rng.normal(size=(100, 5))
    reading = _reading.fit(scores, labels, np.ones(100), np.ones(5), own=np.full((100, 5), 0.2))
    assert reading is not None
    confidence = reading.probabilities(scores).max(1).mean()
    assert 1 - 1 / 100 < confidence < 1 - 1 / 10_000


def test_too_little_is_left_alone() -> None:
    own = np.full((60, 2), 0.5)
    assert _reading.fit(np.eye(2)[[0, 1] * 20], np.array([0, 1] * 20), np.ones(40), np.ones(2), own[:40]) is None
    assert _reading.fit(np.zeros((60, 2)), np.array([0, 1] * 30), np.ones(60), np.ones(2), own) is None


def test_the_gradient() -> None:
    rng = np.random.default_rng(0)
    targets = softmax(rng.normal(size=(30, 4)), axis=1)
    problem = _reading._Problem(rng.normal(size=(30, 4)), targets, rng.random(30), rng.normal(size=4))
    for point in ([0.3, -1.0], [1.5, 0.5]):
        value, gradient = (lambda x: problem.loss(x, expit(x[1]))[0], lambda x: problem.loss(x, expit(x[1]))[1])
        assert check_grad(value, gradient, np.array(point)) < 1e-4
