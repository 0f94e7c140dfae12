"""The losses as functions: against a loop over samples, against torch's cross-entropy, and their identities."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from slow_losses import NAMES, SOFTMAX, SQUARE, fast, slow, width
from squareloss import OneHot, Simplex, functional, probabilities

K = 4
SHAPES = [(), (6,), (3, 2, 5)]  # of the samples; outputs get the class axis at 1, or are (K,)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def batch(name, samples, num_classes=K, seed=0, dtype=torch.float64):
    """Outputs, class indices and soft targets for samples of this shape."""
    dim = min(len(samples), 1)

    def with_classes(k):
        return (*samples[:dim], k, *samples[dim:])

    outputs = normal(*with_classes(width(name, num_classes)), seed=seed, dtype=dtype)
    labels = torch.randint(num_classes, samples, generator=torch.Generator().manual_seed(seed))
    return outputs, labels, torch.softmax(normal(*with_classes(num_classes), seed=seed + 1, dtype=dtype), dim)


OPTIONS = [
    dict(zip(("weight", "label_smoothing", "reduction"), values, strict=True))
    for values in itertools.product([None, torch.tensor([0.5, 1.0, 2.0, 0.0])], [0.0, 0.2], ["mean", "sum", "none"])
]


@pytest.mark.parametrize("samples", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_against_a_loop_over_samples(name, samples):
    outputs, labels, soft = batch(name, samples)
    cases = [(labels, -100), (soft, -100)]
    if samples:
        some_ignored = labels.clone()
        some_ignored[..., :1] = -100
        cases += [(some_ignored, -100), (labels, 2), (labels.to(torch.uint8), 255)]
    for (target, ignore_index), options in itertools.product(cases, OPTIONS):
        got = fast(name)(outputs, target, ignore_index=ignore_index, **options)
        expected = slow(name, outputs, target, ignore_index=ignore_index, **options)
        assert_close(got, expected)


@pytest.mark.parametrize("samples", [*SHAPES, (1,)], ids=str)
def test_cross_entropy_is_torchs(samples):
    outputs, labels, soft = batch("cross_entropy", samples)
    for target, options in itertools.product([labels, soft], OPTIONS):
        weight = None if options["weight"] is None else options["weight"].double()
        expected = F.cross_entropy(outputs, target, **{**options, "weight": weight})
        assert_close(functional.cross_entropy(outputs, target, **options), expected)


@given(st.sampled_from(NAMES), st.integers(2, 7), st.integers(0, 2**31), st.sampled_from([0.0, 0.3]), st.booleans())
def test_soft_targets_are_the_expectation_of_hard_ones(name, num_classes, seed, smoothing, weighted):
    outputs, _, soft = batch(name, (5,), num_classes, seed)
    options = {"label_smoothing": smoothing, "weight": torch.linspace(0.5, 2, num_classes) if weighted else None}
    hard = [fast(name)(outputs, torch.full((5,), c), reduction="none", **options) for c in range(num_classes)]
    assert_close(fast(name)(outputs, soft, reduction="none", **options), (torch.stack(hard, 1) * soft).sum(1))
    assert_close(fast(name)(outputs, soft, **options), (torch.stack(hard, 1) * soft).sum(1).mean())


@pytest.mark.parametrize("samples", [(0,), (0, 2), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("weight", [None, torch.ones(K)], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_learn_from_is_as_in_cross_entropy(name, samples, weight):
    """An empty batch, or one where all is ignored: the same value, NaN or 0, and zero gradients."""
    outputs, labels, _ = batch(name, samples, dtype=torch.float32)
    labels.fill_(-100)
    reference = batch("cross_entropy", samples, dtype=torch.float32)[0].requires_grad_()
    for reduction in ("mean", "sum", "none"):
        f = outputs.clone().requires_grad_()
        got = fast(name)(f, labels, reduction=reduction, weight=weight)
        expected = F.cross_entropy(reference, labels, reduction=reduction, weight=weight)
        assert_close(got, expected, equal_nan=True)
        got.sum().backward()
        assert_close(f.grad, torch.zeros_like(f))
        (torch_gradient,) = torch.autograd.grad(expected.sum(), reference)
        assert not torch_gradient.any()


@given(st.integers(2, 12), st.integers(0, 2**31), st.none() | st.floats(0.1, 50))
def test_brier_identity(num_classes, seed, radius):
    """|eta - e_y|^2 = (K-1)/(K r^2) (|f - v_y|^2 - (sum f)^2/K)."""
    coding, f = Simplex(radius), normal(num_classes, num_classes, seed=seed)
    r = coding.vertices(num_classes)[0].norm()
    brier = (coding.eta(f) - torch.eye(num_classes, dtype=torch.float64)).square().sum(1)
    distance = functional.square_loss(f, torch.arange(num_classes), coding, scale=num_classes, reduction="none")
    assert_close(brier, (num_classes - 1) / (num_classes * r**2) * (distance - f.sum(1) ** 2 / num_classes))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # from within torch's forward mode
@pytest.mark.parametrize("num_classes", [2, 3, 10, 100])
def test_the_default_is_cross_entropy_to_second_order(num_classes):
    """On zero-sum outputs, at 0: the same gradient, and both Hessians are I/K."""
    centre = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    zero, label = torch.zeros(num_classes, dtype=torch.float64), torch.tensor(num_classes - 1)
    for transform, expected in [(torch.func.grad, None), (torch.func.hessian, centre / num_classes)]:
        ours = transform(functional.square_loss)(zero, label)
        theirs = transform(F.cross_entropy)(zero, label)
        ours, theirs = (
            (centre @ ours, centre @ theirs) if expected is None else (centre @ ours @ centre, centre @ theirs @ centre)
        )
        assert_close(ours, theirs)
        assert expected is None or torch.allclose(ours, expected)


def test_the_papers_image_loss_is_mse_on_the_codes():
    f, labels, _ = batch("simplex", (7,), 10)
    coding = Simplex(radius=10.0)
    expected = F.mse_loss(f, coding.vertices(10)[labels])
    assert_close(functional.square_loss(f, labels, coding, scale=1.0), expected)
    reduced, coordinates = Simplex(radius=10.0, reduced=True), normal(7, 9)
    expected = F.mse_loss(coordinates, reduced.vertices(10)[labels])  # the mean is over K - 1 outputs
    assert_close(functional.square_loss(coordinates, labels, reduced, scale=1.0), expected)


def test_focal_loss_without_focus_is_cross_entropy():
    f, labels, _ = batch("focal", (7,))
    assert_close(functional.focal(f, labels, gamma=0.0), functional.cross_entropy(f, labels))
    certain = torch.tensor([[200.0, 0.0]], requires_grad=True)
    functional.focal(certain, torch.tensor([0]), gamma=0.5).backward()
    assert certain.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("coding", [Simplex(), Simplex(1.0), OneHot(), OneHot(5.0, 15.0)], ids=str)
def test_the_fast_path_is_the_plain_formula(coding, smoothing, reduction, dtype):
    f = (3 * normal(50, 12)).to(dtype)
    labels = torch.randint(12, (50,), generator=torch.Generator().manual_seed(1))
    plain = f.double().clone().requires_grad_()
    each = functional.square_loss(
        plain, labels, coding, label_smoothing=smoothing, reduction="none"
    )  # always the plain formula
    (each.mean() if reduction == "mean" else each.sum()).backward()
    for weight, target in [(None, labels), (torch.ones(12), labels)]:
        ours = f.clone().requires_grad_()
        loss = functional.square_loss(ours, target, coding, label_smoothing=smoothing, reduction=reduction, weight=weight)
        loss.backward()
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert ours.grad.dtype == dtype
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5}[dtype]
        assert_close(
            loss.double(), (each.mean() if reduction == "mean" else each.sum()).detach(), rtol=tolerance, atol=tolerance
        )
        assert_close(ours.grad, plain.grad.to(dtype), rtol=max(tolerance, torch.finfo(dtype).eps), atol=1e-5)


@pytest.mark.parametrize("num_classes", [2, 10, 1000])
@pytest.mark.parametrize("error", [0.0, 1e-5, 1e-3, 1e-1, 1.0])
def test_a_small_loss_keeps_its_digits(num_classes, error):
    """The value is expanded into large sums; near a perfect fit those would cancel."""
    labels = torch.randint(num_classes, (64,), generator=torch.Generator().manual_seed(0))
    for coding in (Simplex(), Simplex(1.0), OneHot(5.0, 15.0)):
        f = (coding.vertices(num_classes)[labels] * (1 + error * normal(64, num_classes))).float()
        exact = functional.square_loss(f.double(), labels, coding, reduction="none").mean()
        at_zero = functional.square_loss(torch.zeros_like(f), labels, coding).item()
        each = functional.square_loss(f, labels, coding, reduction="none")
        for got in (functional.square_loss(f, labels, coding), each.mean()):
            assert_close(got.double(), exact, rtol=2e-5 if error > 1e-4 else 2e-3, atol=1e-14 * at_zero)


def test_many_classes_in_float32():
    f, labels = 3 * normal(256, 21841, dtype=torch.float32), torch.arange(256)
    for coding in (Simplex(), OneHot()):
        exact = functional.square_loss(f.double(), labels, coding, reduction="none").mean()
        assert_close(functional.square_loss(f, labels, coding).double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", SQUARE)
def test_nan_and_overflow_show(name, value):
    f, labels, _ = batch(name, (5,), dtype=torch.float32)
    f[2, 1] = value
    assert not fast(name)(f, labels).isfinite()
    labels[2] = -100  # an ignored sample counts for nothing, whatever its outputs
    assert fast(name)(f, labels).isfinite()


BAD = [
    (torch.zeros(2, 3), torch.tensor([0, 3]), ValueError, r"expected labels in \[0, 3\) .* for 3 classes, got 3; relabel"),
    (torch.zeros(2, 3), torch.tensor([0, -1]), ValueError, r"expected labels in \[0, 3\) \(or ignore_index = -100\).* got -1"),
    (torch.zeros(2, 3, 2), torch.full((2, 2), 9), ValueError, r"expected labels in \[0, 3\).* got 9"),
    (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), TypeError, r"torch.float32 of shape \(2,\); .*labels.long\(\)"),
    (
        torch.zeros(2, 3),
        torch.tensor([True, False]),
        TypeError,
        r"integer class indices .* got torch.bool; use labels.long\(\)",
    ),
    (torch.zeros(2, 3), torch.zeros(2, dtype=torch.complex64), TypeError, r"got torch.complex64"),
    (
        torch.zeros(2, 3),
        torch.tensor([0, 1, 2]),
        ValueError,
        r"expected class indices of shape \(2,\) for outputs \(2, 3\), got \(3,\)",
    ),
    (torch.zeros(2, 3), torch.tensor([[0], [1]]), ValueError, r"got \(2, 1\); use labels.squeeze\(-1\)"),
    (torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.long), ValueError, r"axis 1: outputs.movedim\(-1, 1\)"),
    (torch.zeros(2, 3), torch.ones(2, 1), ValueError, r"or class indices: labels.squeeze\(-1\).long\(\)"),
    (torch.zeros(2, 3), torch.eye(3, dtype=torch.int64)[:2], ValueError, r"one-hot rows, use labels.float\(\)"),
    (
        torch.zeros(2, 3),
        torch.zeros(2, 4),
        ValueError,
        r"expected soft targets of shape \(2, 3\) .* got .* \(2, 4\); one probability",
    ),
    (torch.zeros(2, 3), torch.full((2, 3), 0.5), ValueError, r"non-negative and sum to one .* sums from 1.5 to 1.5; normalise"),
    (torch.zeros(1, 3), torch.tensor([[1.5, -0.5, 0.0]]), ValueError, r"got values from -0.5 to 1.5"),
    (torch.zeros(1, 3), torch.tensor([[math.nan, 0.5, 0.5]]), ValueError, "sum to one"),
    (torch.zeros(2, 3).long(), torch.tensor([0, 1]), TypeError, "expected floating-point outputs, got torch.int64"),
    (torch.tensor(1.0), torch.tensor(0), ValueError, "got a scalar; add a class axis"),
]


def test_what_is_no_tensor_is_named():
    f, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    for labels in (y.numpy(), y.tolist()):
        with pytest.raises(TypeError, match=rf"the target as a tensor, got {type(labels).__name__}; use torch.as_tensor"):
            functional.square_loss(f, labels)
    for read in (*(fast(name) for name in NAMES), lambda outputs, _: probabilities(outputs)):
        with pytest.raises(TypeError, match=r"outputs as a tensor, got dict; use outputs.logits of a Hugging Face model"):
            read({"logits": f}, y)


@pytest.mark.parametrize(("outputs", "target", "error", "message"), BAD)
@pytest.mark.parametrize("name", ["simplex", "scaled", *SOFTMAX])
def test_bad_input_says_what_was_expected(name, outputs, target, error, message):
    with pytest.raises(error, match=message):
        fast(name)(outputs, target)


BAD_OPTIONS = [
    ({"reduction": "average"}, r"Unknown reduction 'average'. Available: mean, sum, none"),
    ({"label_smoothing": 1.0}, r"expected label_smoothing in \[0, 1\), got 1.0"),
    ({"label_smoothing": -0.1}, r"expected label_smoothing in \[0, 1\), got -0.1"),
    ({"label_smoothing": math.nan}, r"expected label_smoothing in \[0, 1\), got nan"),
    ({"weight": torch.ones(4)}, r"expected weight of shape \(3,\), one per class, got \(4,\)"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
@pytest.mark.parametrize("name", ["simplex", "scaled", *SOFTMAX])
def test_bad_options_say_what_was_expected(name, options, message):
    with pytest.raises(ValueError, match=message):
        fast(name)(torch.zeros(2, 3), torch.tensor([0, 1]), **options)


@pytest.mark.parametrize("name", ["simplex", "scaled", *SOFTMAX])
def test_one_output_is_too_few(name):
    with pytest.raises(ValueError, match=r"two outputs or more .* \(2, 1\); .* Simplex\(reduced=True\)"):
        fast(name)(torch.zeros(2, 1), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="ignore_index with soft targets"):
        fast(name)(torch.zeros(1, 3), torch.full((1, 3), 1 / 3), ignore_index=0)


@pytest.mark.parametrize("name", ["simplex", *SOFTMAX])
def test_everything_lies_on_one_device(name):
    f, labels = torch.zeros(2, 3, device="meta"), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="expected the target on the device of the outputs, meta, got cpu"):
        fast(name)(f, labels)
    with pytest.raises(ValueError, match="expected weight on the device of the outputs, meta, got cpu; use criterion.to"):
        fast(name)(f, labels.to("meta"), weight=torch.ones(3))


def test_one_output_for_two_classes():
    f, labels = normal(6, 1), torch.tensor([0, 1, 0, 1, 1, 1])
    expected = (0.5 * (f.squeeze(1) - math.sqrt(2) * (2 * labels - 1)).square()).mean()
    assert_close(functional.square_loss(f, labels, Simplex(reduced=True)), expected)
    with pytest.raises(ValueError, match=r"for one output per sample, use outputs.unsqueeze\(1\)"):
        functional.square_loss(f.squeeze(1), labels, Simplex(reduced=True))


def test_gamma_must_be_finite_and_not_negative():
    for gamma in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="expected a finite gamma >= 0"):
            functional.focal(torch.zeros(2, 3), torch.tensor([0, 1]), gamma=gamma)
