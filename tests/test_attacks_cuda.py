"""Attacks on a GPU: captured steps, lower precision and shared preparation change no verdict. Skipped without one."""

import sys

import pytest
import torch
from torch.nn.functional import interpolate

from squareloss import Classifier, Simplex, Standardize, attacks
from squareloss._precision import strict_float32
from squareloss.attacks import _network
from squareloss.attacks._fuse import ConvReLU
from squareloss.models import build

RUN = sys.modules["squareloss.attacks._run"]
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # torch's own, on TF32
]
EPS = 0.5 / 255


@pytest.fixture(scope="module")
def points():
    """A small ResNet with random weights, and points labelled as it sees them, some of which break at EPS."""
    torch.manual_seed(0)
    network = build({"name": "resnet8", "outputs": 10, "width": 16})
    model = Classifier(network, Simplex(radius=10.0), Standardize([0.5] * 3, [0.25] * 3)).cuda().eval()
    coarse = torch.rand(700, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x = interpolate(coarse, size=(32, 32), mode="bilinear").cuda()
    with torch.no_grad():
        network.linear.bias.sub_(model(x).mean(0))  # so that no class is always the largest
        return model, x, model(x).argmax(1)


SUITES = {
    "pgd": lambda *a, **k: attacks.pgd(*a, steps=20, loss="softmax_probability", coding=Simplex(radius=10.0), **k),
    "autoattack": lambda *a, **k: attacks.autoattack(*a, attacks=["apgd-ce", "apgd-dlr"], **k),
    "fab": lambda *a, **k: attacks.fab_targeted(*a, steps=10, targets=2, **k),
    "square": lambda *a, **k: attacks.square_attack(*a, queries=300, **k),
    "worst_case": lambda *a, **k: attacks.worst_case(*a, report=False, **k).result,
}


@pytest.mark.parametrize("name", SUITES)
def test_captured_steps_give_the_verdicts_of_eager_ones(points, monkeypatch, name):
    captured = SUITES[name](*points, EPS, precision="float32")
    made = _network.Network.__init__

    def eager(self, *args, **options):
        made(self, *args, **options)
        assert self.captured
        self.captured = False

    monkeypatch.setattr(_network.Network, "__init__", eager)
    plain = SUITES[name](*points, EPS, precision="float32")
    assert 0 < plain.robust_accuracy < 1
    assert float((captured.broken == plain.broken).float().mean()) > 0.98  # rounding may differ with the batch


@pytest.mark.parametrize("name", SUITES)
def test_a_search_in_bfloat16_finds_about_as_many(points, name):
    low, full = (SUITES[name](*points, EPS, precision=p) for p in ("bfloat16", "float32"))
    assert abs(low.robust_accuracy - full.robust_accuracy) < 0.1


def test_nothing_had_to_go_without_capture(points, recwarn):
    with attacks.Prepared():
        for loss in attacks.losses.UNTARGETED:
            attacks.pgd(*points, EPS, loss=loss, steps=3, coding=Simplex(radius=10.0))
        (network,) = _network._kept.get().values()
    assert network.captured and len(network._steps) == len(attacks.losses.UNTARGETED)
    assert not [w for w in recwarn if "captured" in str(w.message)]


def test_prepared_models_give_the_same_results(points):
    apart = [SUITES[name](*points, EPS) for name in ("pgd", "square", "pgd")]
    with attacks.Prepared():
        together = [SUITES[name](*points, EPS) for name in ("pgd", "square", "pgd")]
    for a, b in zip(apart, together, strict=True):
        assert float((a.broken == b.broken).float().mean()) > 0.98


def test_an_evaluation_on_the_gpu_resumes(points, tmp_path, monkeypatch):
    monkeypatch.setattr(RUN, "SAVE_SECONDS", 0.0)
    file, write, count = tmp_path / "a.safetensors", RUN._save.write, []

    def stopping(*arguments):
        write(*arguments)
        count.append(1)
        if len(count) == 30:
            raise KeyboardInterrupt

    monkeypatch.setattr(RUN._save, "write", stopping)
    with pytest.raises(KeyboardInterrupt):
        SUITES["autoattack"](*points, EPS, save=file)
    resumed, whole = SUITES["autoattack"](*points, EPS, save=file), SUITES["autoattack"](*points, EPS)
    assert float((resumed.broken == whole.broken).float().mean()) > 0.98


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_joined_convolutions_give_the_gradient_of_the_plain_network(points, precision):
    model, x, y = points
    loss = lambda scores, labels, _: torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    fast = _network.Network(model, x, y, precision=precision)
    plain = _network.Network(model, x, y, plain=True)
    assert sum(isinstance(m, ConvReLU) for m in fast._search.modules()) == 9
    ours, expected = (n.gradient(x[:64], loss, y[:64], y[:64])[2].flatten(1) for n in (fast, plain))
    assert torch.cosine_similarity(ours, expected).median() > (0.999 if precision == "float32" else 0.97)


def test_norms_that_stay_do_not_keep_others_from_being_joined(points):
    torch.manual_seed(0)
    _, x, _ = points
    model = build({"name": "wide_resnet", "outputs": 10, "depth": 16, "widen": 2}).cuda()
    with torch.no_grad():
        for _ in range(20):
            model(x)  # statistics of its own
    model.eval()
    y = model(x).argmax(1)
    loss = lambda scores, labels, _: torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    with strict_float32():  # in TF32 the gradients of this network, which is not trained, agree to .998 only
        fast, plain = (_network.Network(model, x, y, precision="float32", plain=plain) for plain in (False, True))
        ours, expected = (n.gradient(x[:64], loss, y[:64], y[:64])[2].flatten(1) for n in (fast, plain))
    assert sum(isinstance(m, ConvReLU) for m in fast._search.modules()) == 7
    assert torch.cosine_similarity(ours, expected).median() > 0.999


def test_batch_norm_is_folded_where_tf32_rounds_much(monkeypatch, recwarn):
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.Flatten()).cuda()
    x = 0.5 + 0.003 * torch.randn(32, 3, 8, 8, device="cuda")  # the norm takes nearly all of the convolution's output away
    for _ in range(100):
        model(x)
    folded = attacks.fold_batch_norm(model.eval(), x)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in folded.modules())
    assert not [w for w in recwarn if "folded" in str(w.message)]


@pytest.mark.parametrize("size", [(8, 8), (1, 1)])
def test_a_joined_convolution_takes_a_shortcut_of_any_size(size):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(4, 4, 3, padding=1).cuda().requires_grad_(False)
    inputs = [torch.randn(2, 4, *s, device="cuda", requires_grad=True) for s in ((8, 8), size)]
    ours, expected = ConvReLU(layer)(*inputs), torch.relu(layer(inputs[0]) + inputs[1])
    torch.testing.assert_close(ours, expected, rtol=0, atol=0.02)  # of TF32
    gradients = [torch.autograd.grad(out.sum(), inputs) for out in (ours, expected)]
    assert all(torch.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.99 for a, b in zip(*gradients, strict=True))
