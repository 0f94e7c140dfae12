"""Square loss on a GPU: its kernels against the same loss on the CPU."""

import pytest
import torch
from torch.testing import assert_close

from squareloss import OneHot, Simplex, SquareLoss, _hard_square, functional

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

SIZES = [(1, 2), (3, 5), (1024, 10), (1025, 16), (1300, 100), (257, 1000), (5000, 2), (64, 21841)]
OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "weighted": {"weight": True},
    "smoothed": {"label_smoothing": 0.1},
    "ignored": {"ignored": "some"},
    "a class ignored": {"ignore_index": 1, "reduction": "sum"},
    "all ignored": {"ignored": "all"},
    "all at once": {"weight": True, "ignored": "some", "reduction": "sum"},
}


def batch(n, k, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n + k)
    return (3 * torch.randn(n, k, generator=generator)).to(dtype), torch.randint(k, (n,), generator=generator)


def prepare(labels, k, options):
    """Labels and keyword arguments from an entry of OPTIONS."""
    options = dict(options)
    labels = labels.clone()
    match options.pop("ignored", None):
        case "some":
            labels[::3] = -100
        case "all":
            labels.fill_(-100)
    if options.pop("weight", False):
        options["weight"] = torch.linspace(0.0, 2, k)  # one class weighs nothing
    return labels, options


def both(f, labels, coding, **options):
    """Loss and gradient on the CPU, from the float32 image of the outputs, and on the GPU."""
    exact, ours = f.float().clone().requires_grad_(), f.cuda().requires_grad_()
    reference = functional.square_loss(exact, labels, coding, **options)
    moved = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    loss = functional.square_loss(ours, labels.cuda(), coding, **moved)
    reference.backward()
    loss.backward()
    return reference.detach(), exact.grad.to(f.dtype), loss.detach().cpu(), ours.grad.cpu()


def test_the_kernels_are_there():
    """CUDA without Triton would work, but slowly; it should not go unnoticed."""
    assert _hard_square._kernels(torch.zeros(2, 3, device="cuda")) is not None
    assert _hard_square._kernels(torch.zeros(2, 3, device="cuda", dtype=torch.float64)) is None


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(dtype, size) for dtype in (torch.float32, torch.bfloat16) for size in SIZES] + [(torch.float16, (1024, 10))],
    ids=str,
)
@pytest.mark.parametrize("coding", [Simplex(), OneHot(5.0, 15.0)], ids=["simplex", "one-hot"])
def test_against_the_cpu(coding, dtype, size, options):
    f, labels = batch(*size, dtype)
    labels, keywords = prepare(labels, size[1], options)
    loss, gradient, our_loss, our_gradient = both(f, labels, coding, **keywords)
    assert our_loss.dtype == torch.float32
    assert our_gradient.dtype == dtype
    assert_close(our_loss, loss, rtol=1e-5, atol=1e-6, equal_nan=True)
    step = gradient.abs().max().item()
    assert_close(our_gradient, gradient, rtol=max(1e-5, 2 * torch.finfo(dtype).eps), atol=1e-6 * max(step, 1.0))


def test_a_kernel_found_again_serves_other_batches():
    """Other lengths, smoothing and addresses do not confuse a kernel that was compiled before."""
    f, labels = batch(1025, 10)
    for n, smoothing, weighted in [(1024, 0.0, False), (1024, 0.2, True), (1000, 0.0, False), (1, 0.1, False), (16, 0.0, True)]:
        weight = torch.linspace(0.5, 2, 10) if weighted else None
        smoothing = 0.0 if weighted else smoothing
        for first in (0, 1, 0):  # rows from 1 on lie at an address that is no multiple of 16
            x, y = f.cuda()[first : first + n].detach().requires_grad_(), f[first : first + n].clone().requires_grad_()
            target = labels[first : first + n]
            options = {"label_smoothing": smoothing, "reduction": "sum"}
            loss = functional.square_loss(x, target.cuda(), weight=None if weight is None else weight.cuda(), **options)
            expected = functional.square_loss(y, target, weight=weight, **options)
            assert_close(loss.cpu(), expected, rtol=1e-5, atol=1e-5)
            loss.backward()
            expected.backward()
            assert_close(x.grad.cpu(), y.grad, rtol=1e-5, atol=1e-5)


def test_labels_on_the_cpu_are_refused():
    f, labels = batch(8, 10)
    for _ in range(2):
        functional.square_loss(f.cuda(), labels.cuda())
    with pytest.raises(ValueError, match="expected the target on the device of the outputs, cuda:0, got cpu"):
        functional.square_loss(f.cuda(), labels)
    with pytest.raises(ValueError, match="expected weight on the device"):
        functional.square_loss(f.cuda(), labels.cuda(), weight=torch.ones(10))


def test_other_paths_agree_with_the_cpu():
    """Float64, images, soft targets, one value per sample and smoothed weights take plain torch operations."""
    f, labels = batch(40, 7, torch.float64)
    soft = torch.softmax(f.flip(0), 1)
    weight = torch.linspace(0.5, 2, 7, dtype=torch.float64)
    cases = [
        (f, labels, {}),
        (f.float(), soft.float(), {}),
        (f.float(), labels, {"weight": weight.float(), "label_smoothing": 0.1}),
        (f.float().reshape(8, 5, 7).movedim(2, 1), labels.reshape(8, 5), {"label_smoothing": 0.1}),
        (f.float()[0], labels[0], {}),
    ]
    for outputs, target, options in cases:
        loss, gradient, our_loss, our_gradient = both_as_they_are(outputs, target, options)
        assert_close(our_loss, loss, rtol=1e-5, atol=1e-6)
        assert_close(our_gradient, gradient, rtol=1e-5, atol=1e-6)


def both_as_they_are(outputs, target, options):
    values = []
    for device in ("cpu", "cuda"):
        f = outputs.detach().to(device).requires_grad_()
        moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        loss = functional.square_loss(f, target.to(device), **moved)
        loss.backward()
        values += [loss.detach().cpu(), f.grad.cpu()]
    return values


@pytest.mark.parametrize("size", [(300, 10), (257, 1000)], ids=str)
def test_layouts(size):
    """Transposed, strided and expanded outputs, and strided labels."""
    n, k = size
    f, labels = (t.cuda() for t in batch(n, k))
    big = torch.zeros(n, 2 * k, device="cuda")
    big[:, :k] = f
    spread = torch.zeros(n, 2 * k, device="cuda")
    spread[:, ::2] = f
    doubled = labels.repeat_interleave(2)[::2]
    expected = f.clone().requires_grad_()
    functional.square_loss(expected, labels).backward()
    for outputs in (f.T.contiguous().T, big[:, :k], spread[:, ::2]):
        ours = outputs.detach().requires_grad_()
        functional.square_loss(ours, doubled).backward()
        assert_close(ours.grad, expected.grad)
    one = f[:1].expand(n, k)
    assert_close(functional.square_loss(one, labels), functional.square_loss(one.contiguous(), labels))


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"ignore_index": 2}])
def test_second_derivatives(options):
    f, labels = batch(6, 4)
    gradients = []
    for device in ("cpu", "cuda"):
        x = f.detach().to(device).requires_grad_()
        loss = functional.square_loss(x, labels.to(device), OneHot(3.0, 2.0), **options)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        first.pow(3).sum().backward()
        gradients.append((first.detach().cpu(), x.grad.cpu()))
    for ours, reference in zip(*reversed(gradients), strict=True):
        assert_close(ours, reference)


@pytest.mark.parametrize("size", [(8, 3), (3000, 10)], ids=str)  # one program, and many
def test_a_label_out_of_range_shows_as_nan(size):
    """No error can be raised without waiting for the GPU; `validate=True` waits and says which."""
    f, labels = (t.cuda() for t in batch(*size))
    for wrong in (-1, size[1]):
        bad = labels.clone()
        bad[3] = wrong
        x = f.clone().requires_grad_()
        loss = functional.square_loss(x, bad)
        assert loss.isnan()
        loss.backward()
        assert x.grad[3].isnan().all()
        with pytest.raises(ValueError, match=f"got {wrong}"):
            functional.square_loss(f, bad, validate=True)


@pytest.mark.parametrize("size", [(8, 3), (3000, 10)], ids=str)
def test_repeatable_and_changed_in_place(size):
    f, labels = (t.cuda() for t in batch(*size))
    values = {functional.square_loss(f, labels).item() for _ in range(20)}
    assert len(values) == 1  # no atomics: the same bits every time
    for reduction in ("mean", "sum"):
        x = f.clone().requires_grad_()
        loss = functional.square_loss(x, labels, reduction=reduction)
        loss += 1.0
        (2 * loss).backward()
        assert x.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_synchronisation():
    f, labels = (t.cuda().detach() for t in batch(1024, 10))
    f.requires_grad_()
    criterion = SquareLoss(weight=torch.ones(10, device="cuda"))
    criterion(f, labels).backward()  # compiled before the clock, so to speak
    torch.cuda.set_sync_debug_mode("error")
    try:
        for loss in (criterion, SquareLoss(), SquareLoss(label_smoothing=0.1, reduction="sum")):
            loss(f, labels).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("size", [(128, 10), (3000, 10)], ids=str)
def test_in_a_cuda_graph(size):
    f, labels = (t.cuda() for t in batch(*size))
    x = f.clone().requires_grad_()
    criterion = SquareLoss()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        criterion(x, labels).backward()
    torch.cuda.current_stream().wait_stream(stream)
    x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = criterion(x, labels)
        loss.backward()
    with torch.no_grad():
        x.copy_(2 * f)
    graph.replay()
    y = (2 * f).requires_grad_()
    expected = criterion(y, labels)
    expected.backward()
    assert_close(loss, expected)
    assert_close(x.grad, y.grad)


def test_autocast_and_deterministic_mode():
    f, labels = (t.cuda() for t in batch(64, 10))
    expected = functional.square_loss(f, labels)
    with torch.autocast("cuda", torch.bfloat16):
        assert_close(functional.square_loss(f, labels), expected)
        assert functional.square_loss(f.bfloat16(), labels).dtype == torch.float32
    torch.use_deterministic_algorithms(True)
    try:
        x = f.clone().requires_grad_()
        functional.square_loss(x, labels).backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert x.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled():
    f, labels = (t.cuda() for t in batch(257, 100))
    x, y = f.clone().requires_grad_(), f.clone().requires_grad_()
    torch.compile(functional.square_loss, fullgraph=True)(x, labels).backward()
    functional.square_loss(y, labels).backward()
    assert_close(x.grad, y.grad)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_a_device_that_is_not_the_current_one():
    f, labels = batch(300, 10)
    x = f.to("cuda:1").requires_grad_()
    functional.square_loss(x, labels.to("cuda:1")).backward()
    y = f.clone().requires_grad_()
    functional.square_loss(y, labels).backward()
    assert_close(x.grad.cpu(), y.grad)
