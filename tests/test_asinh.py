"""`Asinh`: its loss and gradient, its minimum, what it reads better than a temperature, floors, and weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import optimize, special

from squareloss import metrics, simplex
from squareloss.calibrators import Asinh, Temperature, from_state
from squareloss.calibrators._held_out import read_weight
from squareloss.calibrators.asinh import HeldOut, Prior, _asinh_loss
from test_calibrators import draw, mean_nll

# the priors without and with a floor, as the documentation of `Asinh` has them
WEAK = Prior(np.zeros(3), np.array([3.0, 1.0, 3.0]))
FIRM = Prior(np.array([1.0, 0.0, 0.5, -4.0]), np.array([1.0, 0.5, 1.0, 2.0]))


def estimates(samples, classes=5, *, noise=0.02, power=1.5, seed=0):
    """Noisy estimates of probabilities, as square loss gives them, and labels from a power of the probabilities."""
    g = torch.Generator().manual_seed(seed)
    q = (2 * torch.randn(samples, classes, generator=g, dtype=torch.float64)).softmax(1)
    sharp = q**power
    labels = torch.multinomial(sharp / sharp.sum(1, keepdim=True), 1, generator=g).squeeze(1)
    return q + noise * torch.randn(samples, classes, generator=g, dtype=torch.float64), labels


def asinh_loss(theta, s, y, prior=WEAK, weight=None, class_weight=None):
    """The loss in (log a, c / spread, log(w / spread), logit e), by autograd and in another way of writing."""
    s = s - s.mean(1, keepdim=True)
    spread = s.square().mean().sqrt()
    p = (theta[0].exp() * torch.arcsinh((s / spread - theta[1]) / theta[2].exp())).softmax(1)
    p = p if class_weight is None else (p / class_weight) / (p / class_weight).sum(1, keepdim=True)
    floor = theta[3].sigmoid() if len(theta) == 4 else 0.0
    likelihood = ((1 - floor) * p + floor / s.shape[1]).gather(1, y[:, None])[:, 0].log()
    normal = torch.distributions.Normal(torch.tensor(prior.mean), torch.tensor(prior.std))
    at_mean = normal.log_prob(normal.mean).sum()
    weight = torch.ones(len(y), dtype=torch.float64) if weight is None else weight
    worth = weight.sum() ** 2 / weight.square().sum()  # that many samples of equal weight
    return -(weight * likelihood).sum() / weight.sum() + (at_mean - normal.log_prob(theta).sum()) / worth


def held_out(s, y, weight=None, class_weight=None):
    centred = s - s.mean(1, keepdim=True)
    weight = read_weight(weight, s)
    offset = s.new_zeros(s.shape[1]) if class_weight is None else class_weight.log()
    return HeldOut(centred / centred.square().mean().sqrt(), y, weight, offset)


def test_the_loss_of_many_scores_is_added_up():
    """More of them than are taken at a time."""
    g = torch.Generator().manual_seed(0)
    s, y = torch.randn(300, 2048, generator=g, dtype=torch.float64), torch.randint(2048, (300,), generator=g)
    theta = torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64, requires_grad=True)
    expected = asinh_loss(theta, s, y)
    (slope,) = torch.autograd.grad(expected, theta)
    value, gradient = _asinh_loss(theta.detach().numpy(), held_out(s, y), WEAK)
    assert value == pytest.approx(float(expected.detach()), rel=1e-9)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "at", [(0.0, 0.0, 0.0), (1.0, -0.4, -3.0), (-1.0, 0.7, 2.0), (1.0, 0.2, 0.5, -4.0), (0.1, 0.0, -2.0, 1.0)]
)
def test_the_loss_of_asinh_and_its_gradient(at, weighted):
    s, y = estimates(50)
    g = torch.Generator().manual_seed(1)
    weights = [torch.rand(size, generator=g, dtype=torch.float64) + 0.1 for size in s.shape] if weighted else [None, None]
    prior = WEAK if len(at) == 3 else FIRM
    theta = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    expected = asinh_loss(theta, s, y, prior, *weights)
    (slope,) = torch.autograd.grad(expected, theta)
    value, gradient = _asinh_loss(np.array(at), held_out(s, y, *weights), prior)
    assert value == pytest.approx(float(expected.detach()), rel=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-9)


FEW = [(0.7, 2, 60), (1.0, 3, 60), (2.0, 5, 400)]
SIZES = [(2, 60), (2, 400), (3, 60), (5, 400)]
MORE = [(power, *sizes) for power in (0.7, 1.0, 2.0) for sizes in SIZES if (power, *sizes) not in FEW]


@pytest.mark.parametrize(
    ("power", "classes", "samples"), [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_asinh_is_the_least_that_other_searches_find(power, classes, samples):
    s, y = estimates(samples, classes, power=power)
    fitted = Asinh().fit(s, y)
    spread = float((s - s.mean(1, keepdim=True)).square().mean().sqrt())
    found = [np.log(fitted.slope_), fitted.centre_ / spread, np.log(fitted.width_ / spread)]
    loss = lambda theta: float(asinh_loss(torch.tensor(theta, dtype=torch.float64), s, y))
    starts = [(0.0, c, w) for c in (-1.0, 0.0, 1.0) for w in (-5.0, -2.0, 1.0)]
    options = {"xatol": 1e-7, "fatol": 1e-12, "maxiter": 4000}
    others = [optimize.minimize(loss, start, method="Nelder-Mead", options=options).fun for start in starts]
    assert loss(found) <= min(others) + 1e-9


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_asinh_reads_estimates_of_probabilities_better_than_temperature(classes):
    s, y = estimates(20_000, classes)
    held, fresh = slice(0, 10_000), slice(10_000, None)
    reads = [kind().fit(s[held], y[held]).transform(s[fresh]) for kind in (Temperature, Asinh)]
    assert metrics.ece(reads[1], y[fresh]) < 0.7 * metrics.ece(reads[0], y[fresh])
    assert metrics.nll(reads[1], y[fresh]) < metrics.nll(reads[0], y[fresh]) - 0.003
    assert metrics.brier(reads[1], y[fresh]) < metrics.brier(reads[0], y[fresh])
    assert torch.equal(reads[1].argmax(1), s[fresh].argmax(1))


def test_asinh_loses_nothing_where_temperature_is_right():
    s, y = draw(4000, 5)
    nll = [mean_nll(kind().fit(s, y).transform(s), y) for kind in (Temperature, Asinh)]
    assert nll[1] < nll[0] + 2e-4
    wide = Asinh(slope=1e7, centre=0.0, width=2.5e7)
    assert torch.allclose(wide.transform(s), Temperature(2.5).transform(s), atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 40, 1e160])
def test_asinh_does_not_depend_on_scale_or_shift(scale):
    s, y = estimates(300)
    moved = scale * (s + torch.randn(300, 1, dtype=torch.float64))
    assert torch.allclose(Asinh().fit(s, y).transform(s), Asinh().fit(moved, y).transform(moved), atol=1e-6)


def test_asinh_where_every_sample_is_right_or_the_scores_say_nothing():
    y = torch.arange(30) % 3
    right = torch.eye(3, dtype=torch.float64)[y]
    p = Asinh().fit(right, y).transform(right)
    assert 0.99 < float(p.max(1).values.min()) <= 1
    s, y = draw(500, 3)
    assert torch.allclose(Asinh().fit(-s, y).transform(-s), torch.full_like(s, 1 / 3), atol=0.1)


# ---- asinh with a floor


def noisy(samples, classes=5, *, wrong=0.2, seed=0):
    """Noisy estimates of sharp probabilities, as of a network that is mostly right, and labels of which some are redrawn."""
    g = torch.Generator().manual_seed(seed)
    q = (6 * torch.randn(samples, classes, generator=g, dtype=torch.float64)).softmax(1)
    labels = torch.multinomial(q, 1, generator=g).squeeze(1)
    redrawn = torch.rand(samples, generator=g) < wrong
    labels = labels.where(~redrawn, torch.randint(classes, (samples,), generator=g))
    return q + 0.02 * torch.randn(samples, classes, generator=g, dtype=torch.float64), labels


@pytest.mark.parametrize(
    ("classes", "samples"), [(2, 30), (3, 60), *(pytest.param(k, 400, marks=pytest.mark.slow) for k in (2, 5))]
)
@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_a_floor_is_the_least_that_other_searches_find(wrong, classes, samples):
    s, y = noisy(samples, classes, wrong=wrong)
    fitted = Asinh().fit(s, y, floor=True)
    spread = float((s - s.mean(1, keepdim=True)).square().mean().sqrt())
    found = [np.log(fitted.slope_), fitted.centre_ / spread, np.log(fitted.width_ / spread), special.logit(fitted.floor_)]
    loss = lambda theta: float(asinh_loss(torch.tensor(theta, dtype=torch.float64), s, y, FIRM))
    starts = [(1.0, c, w, e) for c in (-0.5, 0.5) for w in (-2.0, 1.0) for e in (-6.0, -1.0)]
    options = {"xatol": 1e-6, "fatol": 1e-10, "maxiter": 4000}
    others = [optimize.minimize(loss, start, method="Nelder-Mead", options=options).fun for start in starts]
    assert loss(found) <= min(others) + 1e-6


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.2, 1.0, 4.0]], ids=["even", "weighted"])
def test_it_finds_the_floor_that_labels_were_drawn_with(weights, wrong):
    truth = Asinh(4.0, 0.2, 1.5, wrong, torch.tensor(weights, dtype=torch.float64))
    g = torch.Generator().manual_seed(0)
    s = torch.randn(20_000, 3, generator=g, dtype=torch.float64)
    p = truth.transform(s)
    y = torch.multinomial(p, 1, generator=g).squeeze(1)
    found = Asinh(class_weight=truth.class_weight).fit(s, y, floor=True)
    assert found.floor_ == pytest.approx(wrong, abs=0.03)
    assert float((found.transform(s) - p).square().mean().sqrt()) < 0.01


def test_a_floor_reads_noisy_labels_better():
    """Logits, whose probabilities fall off too fast for a floor of their own."""
    s, y = draw(20_000, 20, scale=1.0)
    g = torch.Generator().manual_seed(1)
    s, y = 4 * s, (4 * s).argmax(1).where(torch.rand(20_000, generator=g) > 0.2, torch.randint(20, (20_000,), generator=g))
    held, fresh = slice(0, 2000), slice(2000, None)
    plain, floored = (Asinh().fit(s[held], y[held], floor=floor).transform(s[fresh]) for floor in (False, True))
    for metric in (metrics.ece, metrics.nll, metrics.brier):
        assert metric(floored, y[fresh]) < metric(plain, y[fresh]) - 0.003
    assert torch.equal(floored.argmax(1), s[fresh].argmax(1))


def test_labels_that_were_all_right_leave_doubt():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(5, (100,), generator=g)
    s = torch.eye(5, dtype=torch.float64)[y] + 0.1 * torch.randn(100, 5, generator=g, dtype=torch.float64)
    confidence = float(Asinh().fit(s, y, floor=True).transform(s).max(1).values.mean())
    assert 1 - 1 / 50 < confidence < 1 - 1 / 10_000


@pytest.mark.parametrize("floor", [False, True])
def test_weights_count_samples(floor):
    s, y = estimates(2000)
    counts = torch.randint(0, 4, (2000,), generator=torch.Generator().manual_seed(1))
    weighted = Asinh().fit(s, y, weight=5.0 * counts, floor=floor).transform(s)
    repeated = Asinh().fit(s.repeat_interleave(counts, 0), y.repeat_interleave(counts), floor=floor).transform(s)
    assert torch.allclose(weighted, repeated, atol=0.01)  # the spread is that of the rows, and so many are worth less
    assert not torch.allclose(weighted, Asinh().fit(s, y, floor=floor).transform(s), atol=0.001)
    for bad in (-torch.ones(2000), torch.zeros(2000), torch.full((2000,), float("nan"))):
        with pytest.raises(ValueError, match="expected finite sample weights"):
            Asinh().fit(s, y, weight=bad)
    with pytest.raises(ValueError, match=r"weight of shape \(2000,\)"):
        Asinh().fit(s, y, weight=torch.ones(3))


@pytest.mark.parametrize("floor", [False, True])
def test_a_weight_of_zero_is_absence_and_equal_weights_are_none(floor):
    s, y = estimates(40)
    wild, labels = estimates(360, noise=100.0, seed=1)
    weight = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    for given in (torch.full((40,), 0.7), weight):
        few = Asinh().fit(s, y, weight=given, floor=floor)
        rows = torch.cat([wild[:100], s, wild[100:]]), torch.cat([labels[:100], y, labels[100:]])
        padded = torch.cat([given.new_zeros(100), given, given.new_zeros(260)])
        many = Asinh().fit(*rows, weight=padded, floor=floor)
        torch.testing.assert_close(many.transform(s), few.transform(s), rtol=0, atol=1e-9)
        large = Asinh().fit(s, y, weight=1e308 * given.double(), floor=floor)
        torch.testing.assert_close(large.transform(s), few.transform(s), rtol=0, atol=1e-9)
    even = Asinh().fit(s, y, weight=torch.full((40,), 0.7), floor=floor)
    assert even.state() == Asinh().fit(s, y, floor=floor).state()


def test_the_prior_weighs_as_by_the_samples_that_weights_are_worth():
    """One of weight 9 and 18 of weight 1 are worth 27^2 / 99 samples, as their fit is the least of the loss with that."""
    s, y = estimates(19, 3)
    weight = torch.ones(19, dtype=torch.float64)
    weight[0] = 9.0
    fitted = Asinh().fit(s, y, weight=weight)
    spread = float((s - s.mean(1, keepdim=True)).square().mean().sqrt())
    found = torch.tensor([np.log(fitted.slope_), fitted.centre_ / spread, np.log(fitted.width_ / spread)], requires_grad=True)
    (slope,) = torch.autograd.grad(asinh_loss(found, s, y, weight=weight), found)
    assert float(slope.abs().max()) < 1e-5
    (slope,) = torch.autograd.grad(
        asinh_loss(found, s, y, Prior(np.zeros(3), WEAK.std * (19 * 99 / 27**2) ** 0.5), weight), found
    )
    assert float(slope.abs().max()) > 1e-3  # as if all 19 counted
    assert float(read_weight(weight, s).sum()) == pytest.approx(27**2 / 99)


def test_class_weights_are_divided_out():
    s, y = estimates(500, 3)
    weights = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    fitted = Asinh(class_weight=weights).fit(s, y)
    plain = Asinh(fitted.slope_, fitted.centre_, fitted.width_).transform(s)
    assert torch.allclose(fitted.transform(s), simplex.undo_weight(plain, weights))
    again = from_state(json.loads(json.dumps(fitted.state())))
    assert torch.equal(again.transform(s), fitted.transform(s))
    assert torch.equal(fitted.transform(s[0]), fitted.transform(s[:1])[0])
    images = s[:24].reshape(4, 2, 3, 3).permute(0, 3, 1, 2)  # (N, K, d1, d2)
    torch.testing.assert_close(fitted.transform(images).permute(0, 2, 3, 1).reshape(24, 3), fitted.transform(s[:24]))
    for wrong in (s[:, :2], s[0, :2]):
        with pytest.raises(ValueError, match=r"\(N, 3\), one per class weight, got"):
            fitted.transform(wrong)
    with pytest.raises(ValueError, match="positive class weights to undo, got 0"):
        Asinh(class_weight=torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("kind", [list, np.asarray])
def test_weights_that_are_no_tensors_are_refused_with_advice_that_helps(kind):
    s, y = estimates(30, 3)
    advice = "as a torch.Tensor, got (list|ndarray); use torch.as_tensor"
    with pytest.raises(TypeError, match=f"expected weight {advice}"):
        Asinh().fit(s, y, weight=kind([1.0] * 30))
    with pytest.raises(TypeError, match=f"expected class_weight {advice}"):
        Asinh(class_weight=kind([1, 2, 3]))
    Asinh(class_weight=torch.as_tensor(kind([1, 2, 3]))).fit(s, y, weight=torch.as_tensor(kind([1.0] * 30)))


def test_a_state_knows_its_floor():
    s, _ = estimates(10)
    state = Asinh(2.0, 0.1, 0.5, 0.25).state()
    assert torch.equal(from_state(state).transform(s), 0.75 * Asinh(2.0, 0.1, 0.5).transform(s) + 0.25 / 5)
