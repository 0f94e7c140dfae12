"""The last layer without its outputs, against the same loss with them."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from squareloss import OneHot, Simplex, functional
from squareloss.linear import SquareLinear, _product, linear_square_loss

CODINGS = [Simplex(), Simplex(radius=3.0), Simplex(reduced=True), OneHot(), OneHot(k=5, M=15)]


def layer(n=13, d=5, k=7, coding=CODINGS[0], dtype=torch.float64, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    width = k - 1 if coding == Simplex(reduced=True) else k
    h, weight, b = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((n, d), (width, d), (width,)))
    tensors = [t.to(dtype).requires_grad_() for t in (h, weight, b)]
    target = torch.randint(k, (n,), generator=generator)
    return tensors[0], tensors[1], tensors[2] if bias else None, target


def naive(h, weight, bias, target, *args, class_weight=None, **options):
    return functional.square_loss(F.linear(h, weight, bias), target, *args, weight=class_weight, **options)


def gradients(loss, *tensors):
    seed = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype).view_as(loss)
    return torch.autograd.grad(loss, [t for t in tensors if t is not None], seed)


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", list(itertools.product([False, True], [0.0, 0.2], [False, True], [True, False])), ids=str)
def test_value_and_gradients_are_those_of_the_naive_loss(coding, reduction, options):
    weighted, smoothing, ignoring, with_bias = options
    h, weight, bias, target = layer(coding=coding, bias=with_bias)
    if ignoring:
        target[::4] = -100
    class_weight = torch.linspace(0.2, 3, 7, dtype=torch.float64) if weighted else None
    keywords = {"scale": 0.7, "class_weight": class_weight, "label_smoothing": smoothing, "reduction": reduction}
    expected = naive(h, weight, bias, target, coding, **keywords)
    actual = linear_square_loss(h, weight, bias, target, coding, **keywords)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    pairs = zip(gradients(actual, h, weight, bias), gradients(expected, h, weight, bias), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    h, weight, bias, target = layer(6, 3, 4)
    assert torch.autograd.gradcheck(lambda *t: linear_square_loss(*t, target), (h, weight, bias))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.bfloat16, 5e-3)])
def test_many_classes_go_through_in_chunks(monkeypatch, dtype, tolerance):
    h, weight, bias, target = layer(5000, 10, 3000, dtype=dtype)  # 2^20 / 10 classes at a time would be one chunk
    parts = [slice(i, min(i + 700, 3000)) for i in range(0, 3000, 700)]
    monkeypatch.setattr("squareloss.linear._chunks", lambda weight: parts)
    exact = [t.detach().double().requires_grad_() for t in (h, weight, bias)]
    expected, actual = naive(*exact, target), linear_square_loss(h, weight, bias, target)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-10)
    for ours, theirs in zip(gradients(actual, h, weight, bias), gradients(expected, *exact), strict=True):
        assert (ours - theirs).abs().max() < tolerance * theirs.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 5e-3), (torch.float16, 1e-3)])
def test_low_precision_is_accumulated_in_float32(dtype, tolerance):
    """Against float64 on the same rounded inputs; the gradients are rounded once more to the dtype."""
    h, weight, bias, target = layer(300, 48, 500, dtype=dtype)
    loss = linear_square_loss(h, weight, bias, target)
    assert loss.dtype == torch.float32
    exact = [t.detach().double().requires_grad_() for t in (h, weight, bias)]
    expected = naive(*exact, target)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for ours, theirs in zip(gradients(loss, h, weight, bias), gradients(expected, *exact), strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() < tolerance * theirs.abs().max()


def test_rounding_is_relative_to_the_loss_at_zero():
    """A perfect fit of codes as large as K - 1: the value is off by 1e-7 of the loss at f = 0, which is (K - 1) / 2."""
    k = 512
    h = torch.eye(k)
    weight = Simplex().vertices(k).float()
    loss = linear_square_loss(h, weight, None, torch.arange(k))
    at_zero = linear_square_loss(h, 0 * weight, None, torch.arange(k))
    assert float(at_zero) == pytest.approx((k - 1) / 2, rel=1e-6)
    assert abs(float(loss)) < 1e-5 * float(at_zero)


def test_split_products_keep_sixteen_bits():
    """What runs on a GPU: a float32 factor as two bfloat16 parts."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(30, 40, generator=generator).bfloat16(), torch.randn(40, 20, generator=generator)
    from squareloss.linear import _parts

    high, low = _parts(b)
    split = a.float() @ high.float() + a.float() @ low.float()
    assert (split - a.float() @ b).abs().max() < 2**-16 * 40
    assert (a.float() @ high.float() - a.float() @ b).abs().max() > 2**-10
    torch.testing.assert_close(_product(a, b), a.float() @ b)
    assert _parts(a)[0] is a


def test_sequences_and_integer_dtypes():
    h, weight, bias, target = layer(12, 5, 7)
    flat = linear_square_loss(h, weight, bias, target, reduction="none")
    shaped = linear_square_loss(h.view(3, 4, 5), weight, bias, target.view(3, 4).int(), reduction="none")
    assert shaped.shape == (3, 4)
    torch.testing.assert_close(shaped.view(-1), flat)


def test_only_the_gradients_that_are_asked_for():
    h, weight, bias, target = layer()
    loss = linear_square_loss(h.detach(), weight.detach(), bias, target)
    (db,) = torch.autograd.grad(loss, bias)
    (expected,) = torch.autograd.grad(naive(h.detach(), weight.detach(), bias, target), bias)
    torch.testing.assert_close(db, expected)


def test_no_second_derivative():
    h, weight, bias, target = layer()
    with pytest.raises(RuntimeError, match=r"no second derivative: .* create_graph=True"):
        torch.autograd.grad(linear_square_loss(h, weight, bias, target), h, create_graph=True)


def test_autocast_takes_bfloat16_and_sums_in_float32():
    h, weight, bias, target = layer(64, 16, 300, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_square_loss(h, weight, bias, target)
        loss.backward()
    rounded = [t.detach().bfloat16().double() for t in (h, weight)]
    assert float(loss.detach()) == pytest.approx(float(naive(*rounded, bias.detach().double(), target)), rel=1e-5)
    assert weight.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_compiled():
    h, weight, bias, target = layer()
    compiled = torch.compile(linear_square_loss, backend="aot_eager")
    torch.testing.assert_close(compiled(h, weight, bias, target), linear_square_loss(h, weight, bias, target))
    for ours, theirs in zip(
        gradients(compiled(h, weight, bias, target), h, weight, bias),
        gradients(naive(h, weight, bias, target), h, weight, bias),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_the_layer_is_linear_and_its_loss_is_the_criterion(coding):
    torch_layer = SquareLinear(5, 7, coding=coding, scale=2.0, label_smoothing=0.1, weight=torch.linspace(1, 2, 7)).double()
    h, _, _, target = layer(coding=coding)
    torch.testing.assert_close(torch_layer.loss(h, target), torch_layer.criterion(torch_layer(h), target))
    assert torch_layer.criterion.coding.num_classes(torch_layer(h).shape[1]) == 7
    assert [name for name, _ in torch_layer.named_parameters()] == ["weight", "bias"]
    assert repr(coding) in repr(torch_layer)
    plain, other = SquareLinear(5, 7, coding=coding), SquareLinear(5, 7, coding=coding, ignore_index=3, reduction="sum")
    for head in (plain.double(), other.double()):
        torch.testing.assert_close(head.loss(h, target), head.criterion(head(h), target))


def test_the_layer_checks_labels_where_asked_and_takes_two_classes():
    careful = SquareLinear(3, 2, validate=True)
    with pytest.raises(ValueError, match="expected labels in"):
        torch.func.vmap(lambda h: careful.loss(h, torch.tensor([2])))(torch.zeros(1, 1, 3))
    head, h = SquareLinear(3, 2, coding=Simplex(reduced=True)), torch.randn(4, 3)
    assert head(h).shape == (4, 1)
    torch.testing.assert_close(head.loss(h, torch.arange(4) % 2), head.criterion(head(h), torch.arange(4) % 2))


@pytest.mark.parametrize("coding", [Simplex(), Simplex(reduced=True)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_top_k_is_topk_of_the_scores(coding, bias):
    head = SquareLinear(6, 50, bias, coding=coding)
    h = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    for k, chunk in ((1, 50), (5, 7), (50, 3), (4, 1)):
        expected = coding.scores(head(h)).topk(k)
        best = head.top_k(h, k, chunk=chunk)
        torch.testing.assert_close(best.scores, expected.values)
        assert (best.classes == expected.indices).all()
    assert head.top_k(h.view(3, 3, 6), 2).classes.shape == (3, 3, 2)
    for k in (0, 51):
        with pytest.raises(ValueError, match=f"1 <= k <= 50 classes, got k = {k}"):
            head.top_k(h, k)
    for chunk in (0, -1):
        with pytest.raises(ValueError, match=f"chunk of 1 class or more, got {chunk}"):
            head.top_k(h, 2, chunk=chunk)


def test_training_by_the_layer_is_training_by_the_naive_loss():
    a, b = SquareLinear(5, 20).double(), SquareLinear(5, 20).double()
    b.load_state_dict(a.state_dict())
    h, _, _, target = layer(40, 5, 20)
    steps = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (a, b)]
    for _ in range(10):
        for step, loss in zip(steps, (a.loss(h.detach(), target), b.criterion(b(h.detach()), target)), strict=True):
            step.zero_grad()
            loss.backward()
            step.step()
    torch.testing.assert_close(a.weight, b.weight)


def test_bad_input_is_refused():
    h, weight, bias, target = layer()
    with pytest.raises(ValueError, match="same d"):
        linear_square_loss(h, weight.T, bias, target)
    with pytest.raises(ValueError, match="bias of shape \\(7,\\)"):
        linear_square_loss(h, weight, bias[:-1], target)
    with pytest.raises(TypeError, match="one floating-point dtype"):
        linear_square_loss(h.float(), weight, bias, target)
    for wrong in (torch.full((13, 7), 1 / 7), target > 3):
        with pytest.raises(TypeError, match="soft targets are as large as the outputs"):
            linear_square_loss(h, weight, bias, wrong)
    with pytest.raises(ValueError, match="class indices of shape \\(13,\\)"):
        linear_square_loss(h, weight, bias, target[:-1])
    with pytest.raises(ValueError, match="got 7"):
        linear_square_loss(h, weight, bias, target.clamp_min(7))
    with pytest.raises(ValueError, match="weight of shape \\(7,\\)"):
        linear_square_loss(h, weight, bias, target, class_weight=torch.ones(6))
    with pytest.raises(ValueError, match="Unknown reduction"):
        linear_square_loss(h, weight, bias, target, reduction="median")
    with pytest.raises(ValueError, match="two outputs or more"):
        linear_square_loss(h, weight[:1], bias[:1], target * 0)
    with pytest.raises(ValueError, match="two classes or more"):
        SquareLinear(5, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 3e-6), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("coding", [Simplex(), OneHot(k=5, M=15)], ids=str)
def test_on_a_gpu(dtype, tolerance, coding):
    h, weight, bias, target = layer(700, 64, 3000, dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in (h, weight, bias)]
    there = [t.detach().cuda().requires_grad_() for t in (h, weight, bias)]
    weights = torch.linspace(0.5, 2, 3000, dtype=torch.float64)
    for options in ({}, {"label_smoothing": 0.1, "class_weight": weights}):
        expected = naive(*exact, target, coding, **options)
        options = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in options.items()}
        actual = linear_square_loss(*there, target.cuda(), coding, **options)
        assert float(actual.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        for ours, theirs in zip(torch.autograd.grad(actual, there), torch.autograd.grad(expected, exact), strict=True):
            assert (ours.cpu().double() - theirs).abs().max() < tolerance * theirs.abs().max()


def test_labels_of_any_whole_type():
    head, h, target = SquareLinear(4, 6), torch.randn(12, 4), torch.arange(12) % 6
    for dtype in (torch.uint8, torch.int16, torch.uint16):
        assert torch.equal(head.loss(h, target.to(dtype)), head.loss(h, target))


def test_samples_whose_classes_weigh_nothing_have_no_gradient():
    h, weight, labels = (
        torch.randn(4, 5, requires_grad=True),
        torch.randn(3, 5, requires_grad=True),
        torch.zeros(4, dtype=torch.long),
    )
    for loss in (linear_square_loss, naive):
        value = loss(h, weight, None, labels, class_weight=torch.tensor([0.0, 1.0, 2.0]))
        assert value.isnan(), "0 / 0, as torch's losses have it"
        for gradient in torch.autograd.grad(value, (h, weight)):
            assert not gradient.any()
