"""Calibrators: fits against scipy and scikit-learn, invariances, degenerate data, and the way to JSON and back."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special
from sklearn.isotonic import IsotonicRegression
from torch.testing import assert_close

from squareloss import metrics
from squareloss.calibrators import Affine, Asinh, Isotonic, NotFitted, Temperature, from_state
from squareloss.calibrators.temperature import _slope_derivatives
from squareloss.codings import Simplex

KINDS = (Temperature, Affine, Asinh, Isotonic)


def draw(samples, classes, *, seed=0, scale=2.5, tilt=0.0, dtype=torch.float64):
    """Scores `scale` times too large, whose labels also follow a tilt of the classes."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, classes, generator=g, dtype=torch.float64) * 1.5
    labels = torch.multinomial((z + tilt * torch.linspace(-1, 1, classes)).softmax(1), 1, generator=g).squeeze(1)
    return (scale * z).to(dtype), labels


def mean_nll(p, y):
    return float(-p.gather(1, y[:, None]).log().mean())


# ---- temperature


@pytest.mark.parametrize("scale", [1e-6, 0.01, 1.0, 300.0, 1e7])
def test_temperature_is_scipys_minimum(scale):
    s, y = draw(400, 6, scale=scale)
    loss = lambda u: mean_nll(torch.softmax(s / np.exp(u), 1), y)
    best = optimize.minimize_scalar(loss, bounds=(np.log(scale) - 3, np.log(scale) + 3), options={"xatol": 1e-10})
    fitted = Temperature().fit(s, y)
    assert fitted.temperature_ == pytest.approx(np.exp(best.x), rel=1e-6)
    assert loss(np.log(fitted.temperature_)) <= best.fun + 1e-14


def test_derivatives_of_many_scores_are_added_up():
    """More of them than are taken at a time."""
    s, y = draw(300, 2048)
    slope = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(torch.nn.functional.cross_entropy(slope * s, y), slope, create_graph=True)
    (second,) = torch.autograd.grad(first, slope)
    assert _slope_derivatives(s, y, 0.4) == pytest.approx((first.item(), second.item()), rel=1e-9)


def test_temperature_finds_the_truth_and_keeps_predictions():
    s, y = draw(20_000, 5, scale=2.5)
    fitted = Temperature().fit(s, y)
    assert fitted.temperature_ == pytest.approx(2.5, rel=0.05)
    p = fitted.transform(s)
    assert torch.equal(p.argmax(1), s.argmax(1))
    assert metrics.ece(p, y) < 0.02 < metrics.ece(s.softmax(1), y)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 40))
def test_temperature_has_no_slope_left_or_is_at_a_bound(seed, classes, samples):
    s, y = draw(samples, classes, seed=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        temperature = Temperature().fit(s, y).temperature_
    logs = torch.tensor([-1e-5, 0.0, 1e-5], dtype=torch.float64)
    left, here, right = (mean_nll(torch.softmax(s / (temperature * float(torch.exp(u))), 1), y) for u in logs)
    if caught:
        spread = float((s - s.mean(1, keepdim=True)).square().mean().sqrt())
        assert min(abs(temperature * 1e3 / spread - 1), abs(temperature / 1e3 / spread - 1)) < 1e-9
    else:
        assert here <= min(left, right) + 1e-13


def test_temperature_where_newtons_steps_overshoot():
    """All but four scores are tiny, three quarters of these right: T is their difference over log 3."""
    s = torch.tensor([[10.0, -10.0]] * 4 + [[0.002, -0.002]] * 396, dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 0] + [0, 0, 0, 1] * 99)
    assert Temperature().fit(s, y).temperature_ == pytest.approx(0.004 / np.log(3), rel=1e-9)


def test_temperature_for_square_loss_scores_of_any_radius():
    s, y = draw(500, 7)
    outputs = {r: s * r for r in (1.0, 7.0)}
    p = {r: Temperature().fit(Simplex(radius=r).scores(f), y).transform(f) for r, f in outputs.items()}
    assert torch.allclose(p[1.0], p[7.0], atol=1e-10)


def test_separable_scores_have_the_smallest_temperature_and_a_warning():
    y = torch.arange(30) % 3
    s = torch.eye(3, dtype=torch.float64)[y]
    with pytest.warns(UserWarning, match="classified right"):
        fitted = Temperature().fit(s, y)
    spread = float((s - s.mean(1, keepdim=True)).square().mean().sqrt())
    assert fitted.temperature_ == pytest.approx(spread / 1000)
    assert torch.equal(fitted.transform(s), s)


@pytest.mark.parametrize("kind", [Temperature, Affine, Isotonic])
def test_warnings_point_at_the_line_that_fits(kind):
    y = torch.arange(30) % 3
    for s in (torch.eye(3, dtype=torch.float64)[y], -torch.eye(3, dtype=torch.float64)[y]):
        with pytest.warns(UserWarning, match="it is set to the") as told:
            kind().fit(s, y)
        assert [warning.filename for warning in told] == [__file__]


def test_useless_scores_have_the_largest_temperature_and_a_warning():
    s, y = draw(500, 3)
    with pytest.warns(UserWarning, match="say nothing"):
        fitted = Temperature().fit(-s, y)
    assert torch.allclose(fitted.transform(-s), torch.full_like(s, 1 / 3), atol=0.01)


# ---- affine


def affine_loss(theta, s, y):
    logits = theta[0] * s + theta[1:]
    likelihood = (special.logsumexp(logits, 1) - logits[np.arange(len(y)), y]).mean()
    return likelihood + (theta[1:] ** 2).sum() / (2 * len(y))


def affine_gradient(fitted, s, y):
    """In the slope and the biases, by torch."""
    theta = torch.cat([torch.tensor([fitted.slope_], dtype=torch.float64), fitted.bias_]).requires_grad_()
    loss = torch.nn.functional.cross_entropy(theta[0] * s + theta[1:], y) + theta[1:].square().sum() / (2 * len(y))
    return torch.autograd.grad(loss, theta)[0]


@pytest.mark.parametrize(("samples", "classes", "tilt"), [(300, 5, 1.0), (60, 20, 1.0), (300, 5, 8.0)])
def test_affine_is_scipys_minimum(samples, classes, tilt):
    """With the last tilt, full steps of Newton's method lead too far."""
    s, y = draw(samples, classes, tilt=tilt)
    start = np.r_[0.1, np.zeros(classes)]
    best = optimize.minimize(affine_loss, start, (s.numpy(), y.numpy()), options={"gtol": 1e-9})
    fitted = Affine().fit(s, y)
    theta = np.r_[fitted.slope_, fitted.bias_.numpy()]
    assert affine_loss(theta, s.numpy(), y.numpy()) <= best.fun + 1e-12
    assert theta == pytest.approx(best.x, abs=1e-4)
    assert affine_gradient(fitted, s, y).abs().max() < 1e-7


def test_affine_corrects_class_frequencies_and_beats_temperature():
    s, y = draw(20_000, 5, tilt=1.0)
    fitted = Affine().fit(s, y)
    assert 1 / fitted.slope_ == pytest.approx(2.5, rel=0.05)
    assert fitted.bias_.tolist() == pytest.approx(np.linspace(-1, 1, 5), abs=0.1)
    p = fitted.transform(s)
    assert p.mean(0).tolist() == pytest.approx((torch.bincount(y) / 20_000).tolist(), abs=2e-4)
    assert mean_nll(p, y) < mean_nll(Temperature().fit(s, y).transform(s), y) - 0.05


def test_affine_with_a_missing_class():
    s, y = draw(300, 5)
    fitted = Affine().fit(s, y.clamp(max=3))
    assert -10 < float(fitted.bias_[4]) < -1
    assert 0 < float(fitted.transform(s)[:, 4].max()) < 0.9


def test_affine_at_its_bounds():
    y = torch.arange(30) % 3
    s = torch.eye(3, dtype=torch.float64)[y]
    with pytest.warns(UserWarning, match="without an optimum"):
        fitted = Affine().fit(s, y)
    assert torch.allclose(fitted.transform(s), s, atol=1e-6)
    s, y = draw(300, 3)
    with pytest.warns(UserWarning, match="without an optimum"):
        fitted = Affine().fit(-s, y)
    spread = float((s - s.mean(1, keepdim=True)).square().mean().sqrt())
    assert fitted.slope_ == pytest.approx(1 / (1000 * spread))
    pull = affine_gradient(fitted, -s, y)
    assert pull[0] > 0 and pull[1:].abs().max() < 1e-7  # the biases are the best there are at this slope


# ---- isotonic


@pytest.mark.parametrize("levels", [None, 5])
def test_isotonic_is_scikit_learns_per_class(levels):
    s, y = draw(500, 4)
    if levels:
        s = (s * levels / 10).round()  # tied scores
    fitted = Isotonic().fit(s, y)
    new, _ = draw(300, 4, seed=1)
    base = Temperature().fit(s, y)
    x, x_new = base.transform(s), base.transform(new)
    columns = [
        IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(x[:, k], (y == k).double()).predict(x_new[:, k])
        for k in range(4)
    ]
    expected = np.stack(columns, 1)
    total = expected.sum(1, keepdims=True)
    assert (total > 0).all()
    assert fitted.transform(new).numpy() == pytest.approx(expected / total, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=40))
def test_isotonic_of_two_classes_on_any_data(pairs):
    margin, label = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    s, y = torch.stack([-margin, margin - 6], 1), label.long()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data this small are often separable
        fitted = Isotonic().fit(s, y)
        x = Temperature().fit(s, y).transform(s)
    expected = IsotonicRegression(out_of_bounds="clip").fit(x[:, 1], label).predict(x[:, 1])
    assert fitted.transform(s)[:, 1].numpy() == pytest.approx(expected, abs=1e-9)


def test_isotonic_does_not_depend_on_scale_or_shift():
    s, y = draw(500, 4)
    shift = torch.linspace(-3, 3, 500, dtype=torch.float64)[:, None]
    p = Isotonic().fit(s, y).transform(s)
    assert torch.allclose(Isotonic().fit(20 * s + shift, y).transform(20 * s + shift), p, atol=1e-6)


def test_isotonic_where_all_classes_say_zero():
    s, y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [3.0, 0.0]], dtype=torch.float64), torch.tensor([0, 1, 1])
    fitted = Isotonic(1.0, torch.tensor([[0.0, 0.5], [0.0, 0.5]]).double(), torch.zeros(2, 2).double())
    assert torch.equal(fitted.transform(s), s.softmax(1))
    assert Isotonic().fit(s, y).transform(s).sum(1).tolist() == pytest.approx([1, 1, 1])


def test_isotonic_repairs_what_temperature_cannot():
    s, y = draw(20_000, 3, scale=1.0)
    bent = s.sign() * s.abs() ** 3
    held, fresh = slice(0, 10_000), slice(10_000, None)
    errors = [metrics.ece(kind().fit(bent[held], y[held]).transform(bent[fresh]), y[fresh]) for kind in (Temperature, Isotonic)]
    assert errors[1] < 0.5 * errors[0]


# ---- all


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_to_json_and_back(kind):
    s, y = draw(300, 4, tilt=1.0)
    fitted = kind().fit(s, y)
    again = from_state(json.loads(json.dumps(fitted.state())))
    assert isinstance(again, kind)
    assert torch.equal(again.transform(s), fitted.transform(s))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_in_the_dtype_of_the_scores(kind, dtype):
    s, y = draw(300, 4, dtype=dtype)
    fitted = kind().fit(s, y)
    assert kind().fit(s.double(), y).state() == fitted.state()  # fits are done in float64
    p = fitted.transform(s)
    assert p.dtype == dtype
    assert_close(p, fitted.transform(s.double()).to(dtype))  # a score in float32 stays on its side of a step of `Isotonic`
    assert torch.allclose(p.float().sum(1), torch.ones(300), atol=1e-6 if dtype != torch.bfloat16 else 1e-2)
    assert float(p.min()) >= 0


@pytest.mark.parametrize("scale", [1e-250, 1e-160, 1e160, 1e250])  # whose squares are beyond float64
@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_of_the_scores_is_no_matter(kind, scale):
    s, y = draw(300, 4, tilt=1.0)
    plain, scaled = kind().fit(s, y), kind().fit(s * scale, y)
    assert_close(scaled.transform(s * scale), plain.transform(s), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [Temperature, Affine, Asinh])
def test_transform_is_differentiable(kind):
    s, y = draw(100, 4)
    fitted = kind().fit(s, y)
    assert torch.autograd.gradcheck(fitted.transform, (s[:5].clone().requires_grad_(),))


@pytest.mark.parametrize("kind", KINDS)
def test_use_before_fit_and_bad_input(kind):
    s, y = draw(20, 3)
    with pytest.raises(NotFitted, match="call fit"):
        kind().transform(s)
    with pytest.raises(NotFitted, match="call fit"):
        kind().state()
    broken = s.clone()
    broken[0, 0] = float("nan")
    for scores, labels, error, words in [
        (broken, y, ValueError, "finite scores"),
        (s[:, 0], y, ValueError, r"shape \(N, K\)"),
        (s[:, :1], torch.zeros_like(y), ValueError, r"shape \(N, K\)"),
        (s[:0], y[:0], ValueError, r"shape \(N, K\)"),
        (s, y[:3], ValueError, "labels of shape"),
        (s, y + 3, ValueError, r"\[0, 3\)"),
        (s, y.double(), TypeError, "integer labels"),
        (s.numpy(), y, TypeError, "torch.as_tensor"),
        (torch.ones_like(s), y, ValueError, "nothing to calibrate"),
    ]:
        with pytest.raises(error, match=words):
            kind().fit(scores, labels)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_pixels_are_flattened_as_the_error_says(kind):
    s, y = draw(120, 4)
    images, labels = s.reshape(6, 4, 5, 4).movedim(-1, 1), y.reshape(6, 4, 5)
    advice = r"for \(N, K, d1, \.\.\.\) pass (.*)"
    with pytest.raises(ValueError, match=advice) as error:
        kind().fit(images, labels)
    fitted = kind().fit(*eval(re.search(advice, str(error.value))[1], {"scores": images, "labels": labels}))
    assert torch.equal(fitted.transform(s), kind().fit(s, y).transform(s))
    if kind in (Temperature, Asinh):
        assert_close(fitted.transform(images), fitted.transform(s).reshape(6, 4, 5, 4).movedim(-1, 1))
    else:
        with pytest.raises(ValueError, match=advice) as error:
            fitted.transform(images)
        assert torch.equal(eval(re.search(advice, str(error.value))[1], {"scores": images}), s)


@pytest.mark.parametrize("kind", [Affine, Isotonic])
def test_other_number_of_classes(kind):
    s, y = draw(100, 4)
    with pytest.raises(ValueError, match=r"\(N, 4\), as fitted"):
        kind().fit(s, y).transform(s[:, :3])


def test_unknown_state_and_bad_temperature():
    with pytest.raises(ValueError, match="Available: temperature, affine, asinh, isotonic"):
        from_state({"kind": "platt"})
    with pytest.raises(ValueError, match="temperature > 0"):
        Temperature(-1.0)
    with pytest.raises(ValueError, match="slope > 0"):
        Asinh(-1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="floor in"):
        Asinh(1.0, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="width > 0"):
        Asinh(1.0, 0.0, 0.0)
    assert torch.equal(Temperature(2.0).transform(torch.ones(1, 2)), torch.full((1, 2), 0.5))


def test_they_show_what_they_are():
    for shown, expected in (
        (Temperature(), "Temperature(not fitted)"),
        (Temperature(1.3842), "Temperature(temperature=1.38)"),
        (Affine(0.5, torch.zeros(7)), "Affine(slope=0.5, bias=(7,))"),
        (Asinh(), "Asinh(not fitted)"),
        (Asinh(class_weight=torch.ones(7)), "Asinh(not fitted, class_weight=(7,))"),
        (Asinh(2.0, 0.0, 1234.5), "Asinh(slope=2, centre=0, width=1.23e+03)"),
        (Asinh(2.0, -0.1, 3.0, 0.05), "Asinh(slope=2, centre=-0.1, width=3, floor=0.05)"),
        (Isotonic(), "Isotonic(not fitted)"),
        (Isotonic(1.5, torch.zeros(3, 9), torch.zeros(3, 9)), "Isotonic(temperature=1.5, x=(3, 9), y=(3, 9))"),
    ):
        assert repr(shown) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_is_shown_by_what_it_found(kind):
    s, y = draw(200, 3)
    fitted = kind().fit(s, y)
    numbers = {name: value for name, value in fitted.state().items() if isinstance(value, float) and value}
    assert numbers
    assert all(f"{name}={value:.3g}" in repr(fitted) for name, value in numbers.items())


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_are_no_scores(kind):
    s, y = draw(200, 3)
    with pytest.raises(TypeError, match="floating-point"):
        kind().fit(s, y).transform(s.long())


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_named_and_a_single_sample_is_read_or_named(kind):
    s, y = draw(200, 3)
    fitted = kind().fit(s, y)
    with pytest.raises(TypeError, match=r"as a tensor, got ndarray; .*torch.as_tensor"):
        fitted.transform(s.numpy())
    if kind in (Temperature, Asinh):
        assert torch.equal(fitted.transform(s[0]), fitted.transform(s[:1])[0])
    else:
        with pytest.raises(ValueError, match=r"expected scores of shape \(N, 3\), as fitted, got \(3,\)"):
            fitted.transform(s[0])
