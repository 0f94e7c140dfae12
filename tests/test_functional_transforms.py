"""The losses under autograd, torch.func, torch.compile, autocast and half precision; and what they keep for backward."""

import shutil
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from slow_losses import NAMES, SQUARE, fast, width
from squareloss import OneHot, Simplex, _checks, functional

K = 4
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 1.5])
LABELS = torch.tensor([0, 3, 1, 2, 2])
OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "weighted": {"weight": WEIGHT.double()},
    "smoothed": {"label_smoothing": 0.1},
    "both": {"weight": WEIGHT.double(), "label_smoothing": 0.1},
    "ignored": {"ignore_index": 2},
}
in_forward_mode = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # from within torch


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def outputs(name, dtype=torch.float64):
    return normal(len(LABELS), width(name, K), dtype=dtype)


@in_forward_mode
@pytest.mark.filterwarnings("ignore:Please use `torch.vmap`:FutureWarning")  # gradcheck of torch 2.5 against torch itself
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("name", NAMES)
def test_derivatives(name, options):
    f = outputs(name).requires_grad_()

    def loss(f):
        return fast(name)(f, LABELS, **options)

    assert gradcheck(loss, f, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(loss, f)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_soft_targets_and_images(name):
    f = normal(2, width(name, K), 3).requires_grad_()
    soft = torch.softmax(normal(2, K, 3, seed=1), 1)
    labels = torch.tensor([[0, 3, -100], [1, 1, 2]])
    for target in (soft, labels, labels.clamp_min(0)):
        assert gradcheck(lambda f, t=target: fast(name)(f, t), f)
        assert gradgradcheck(lambda f, t=target: fast(name)(f, t), f)


@in_forward_mode
@pytest.mark.parametrize("name", NAMES)
def test_torch_func(name):
    f, loss = outputs(name), fast(name)
    plain = f.clone().requires_grad_()
    losses = loss(plain, LABELS, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), plain)
    assert_close(torch.func.vmap(loss)(f, LABELS), losses.detach())
    assert_close(torch.func.vmap(torch.func.grad(loss))(f, LABELS), gradient)  # per-sample gradients
    assert_close(torch.func.grad(loss)(f, LABELS), gradient / len(f))
    tangent = normal(*f.shape, seed=5)
    value, slope = torch.func.jvp(lambda f: loss(f, LABELS), (f,), (tangent,))
    assert_close(value, loss(f, LABELS))
    assert_close(slope, (gradient / len(f) * tangent).sum())
    hessian = torch.func.hessian(loss)(f[0], LABELS[0])
    assert_close(hessian, torch.autograd.functional.hessian(lambda f: loss(f, LABELS[0]), f[0]))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("name", ["simplex", "reduced", "scaled", "cross_entropy", "squentropy"])
def test_compiled_into_one_graph(name, options):
    loss = fast(name)
    torch.compiler.reset()
    compiled = torch.compile(lambda f, y: loss(f, y, **options), fullgraph=True, backend="aot_eager")
    ours, theirs = (outputs(name).requires_grad_() for _ in range(2))
    assert_close(compiled(ours, LABELS), loss(theirs, LABELS, **options))
    compiled(ours, LABELS).sum().backward()
    loss(theirs, LABELS, **options).sum().backward()
    assert_close(ours.grad, theirs.grad)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_to_machine_code():
    f, labels = normal(64, 30, dtype=torch.float32).requires_grad_(), torch.arange(64) % 30
    labels[5] = -100
    torch.compile(functional.square_loss, fullgraph=True)(f, labels).backward()
    g = f.detach().clone().requires_grad_()
    functional.square_loss(g, labels).backward()
    assert_close(f.grad, g.grad)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_computed_in_float32(name):
    for dtype in (torch.bfloat16, torch.float16):
        half = outputs(name, torch.float32).to(dtype).requires_grad_()
        exact = half.detach().float().requires_grad_()
        loss = fast(name)(half, LABELS)
        assert loss.dtype == torch.float32
        assert_close(loss, fast(name)(exact, LABELS), rtol=1e-6, atol=1e-6)
        loss.backward()
        fast(name)(exact, LABELS).backward()
        assert half.grad.dtype == dtype
        assert_close(half.grad, exact.grad.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_computes_in_float32(name):
    for dtype in (torch.float32, torch.bfloat16):
        f = outputs(name, torch.float32).to(dtype)
        expected = fast(name)(f, LABELS, weight=WEIGHT)
        with torch.autocast("cpu", torch.bfloat16):
            inside = fast(name)(f, LABELS, weight=WEIGHT)
        assert inside.dtype == torch.float32
        assert_close(inside, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"weight": torch.ones(50)}, {"ignore_index": 7}])
@pytest.mark.parametrize("coding", [Simplex(), OneHot(5.0, 15.0)], ids=str)
def test_nothing_is_kept_but_the_outputs(coding, options):
    """For the backward pass: the outputs themselves, the labels, and at most one number per sample or class."""
    f, labels = normal(200, 50, dtype=torch.float32).requires_grad_(), torch.arange(200) % 50
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = functional.square_loss(f, labels, coding, **options)
    loss.backward()
    others = [t for t in kept if t.data_ptr() != f.data_ptr()]
    assert len(kept) > len(others)
    assert all(t.numel() <= 200 for t in others)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"weight": WEIGHT}, {"ignore_index": 2, "reduction": "sum"}])
def test_a_loss_may_be_changed_in_place_and_walked_twice(options):
    f = outputs("simplex", torch.float32).requires_grad_()
    (expected,) = torch.autograd.grad(functional.square_loss(f, LABELS, **options), f)
    loss = functional.square_loss(f, LABELS, **options)
    loss += 1.0
    loss.backward(retain_graph=True)
    assert_close(f.grad, expected)
    (2 * loss).backward()
    assert_close(f.grad, 3 * expected)


def test_changing_the_outputs_before_the_backward_pass_is_refused():
    f = outputs("simplex").requires_grad_()
    g = f * 1
    loss = functional.square_loss(g, LABELS)
    with torch.no_grad():
        g.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_layouts_agree():
    """Transposed, sliced and channels-last outputs, and expanded labels, are read as they are meant."""
    wide = normal(7, 2 * K, dtype=torch.float32)
    images = normal(3, K, 5, 6, dtype=torch.float32)
    labels = torch.randint(K, (3, 5, 6), generator=torch.Generator().manual_seed(0))
    cases = [
        (wide.T[:K].T, torch.arange(7) % K),
        (wide[:, ::2], torch.arange(7) % K),
        (wide[:, :K], torch.tensor(1).expand(7)),
        (images.contiguous(memory_format=torch.channels_last), labels),
        (images.permute(0, 1, 3, 2), labels.permute(0, 2, 1)),
    ]
    for f, y in cases:
        for name in ("simplex", "scaled", "cross_entropy"):
            a, b = f.detach().requires_grad_(), f.detach().contiguous().requires_grad_()
            assert_close(fast(name)(a, y), fast(name)(b, y.contiguous()))
            fast(name)(a, y).backward()
            fast(name)(b, y.contiguous()).backward()
            assert_close(a.grad, b.grad)


def test_tensors_without_values():
    """On the meta device, as used to count memory, shapes go through and no label is read."""
    f, labels = torch.empty(6, K, device="meta", requires_grad=True), torch.empty(6, dtype=torch.int64, device="meta")
    loss = functional.square_loss(f, labels)
    loss.backward()
    assert loss.shape == ()
    assert f.grad.shape == f.shape


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors_and_tracing(name):
    """Under FakeTensorMode, by which torch's own tools plan memory, and into a graph by make_fx: as cross-entropy goes."""
    loss, f = fast(name), outputs(name)
    with FakeTensorMode():
        fake = torch.randn(f.shape, requires_grad=True)
        loss(fake, torch.zeros(len(f), dtype=torch.int64)).backward()
        assert fake.grad.shape == f.shape
    graph = make_fx(lambda f, labels: loss(f, labels))(f, LABELS)
    assert_close(graph(2 * f, LABELS), loss(2 * f, LABELS))


def test_what_counts_operations_sees_those_that_run():
    """A mode of the dispatcher that computes real values changes nothing: labels are checked, and the path is the same."""
    with FlopCounterMode(display=False):
        assert _checks.eager()
        with pytest.raises(ValueError, match=r"expected labels in \[0, 4\)"):
            functional.square_loss(torch.zeros(3, 4), torch.tensor([0, 1, 9]))


@pytest.mark.parametrize("name", SQUARE)
def test_gradient_descent_at_cross_entropys_rate_is_stable(name):
    """The default's curvature is 1/K, so a step of size 1 contracts; so it does for every coding with its usual scale."""
    f, losses = torch.zeros(len(LABELS), width(name, K), requires_grad=True), []
    for _ in range(50):
        loss = fast(name)(f, LABELS, reduction="sum")
        losses.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, f)
        with torch.no_grad():
            f -= 0.5 * gradient
    assert all(b <= a + 1e-6 for a, b in pairwise(losses))
    assert losses[-1] < 0.1 * losses[0]


def test_targets_get_gradients_as_in_cross_entropy():
    """Distillation: soft targets that need a gradient get one."""
    p = torch.softmax(normal(5, K), 1).requires_grad_()
    f = outputs("simplex")
    (ours,) = torch.autograd.grad(functional.square_loss(f, p), p)
    each = torch.stack([functional.square_loss(f, torch.full((5,), c), reduction="none") for c in range(K)], 1)
    assert_close(ours, each / 5)
    (theirs,) = torch.autograd.grad(functional.cross_entropy(f, p), p)
    assert_close(theirs, -F.log_softmax(f, 1) / 5)
