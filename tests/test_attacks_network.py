"""A network as attacks run it: batch norm folded, weights rounded, steps recorded and shared, and float32 to decide."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from attack_nets import Limited, cnn
from squareloss import Simplex, attacks
from squareloss._precision import strict_float32
from squareloss.attacks import _fold, _network
from squareloss.models import build

RUN = sys.modules["squareloss.attacks._run"]


def shaken(model: nn.Module) -> nn.Module:
    """Batch norms with statistics of their own, so that folding them matters."""
    g = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            with torch.no_grad():
                module.running_mean.normal_(0, 0.3, generator=g)
                module.running_var.uniform_(0.5, 2, generator=g)
                module.weight.uniform_(0.5, 2, generator=g)
                module.bias.normal_(0, 0.3, generator=g)
    return model.eval()


def count(model: nn.Module) -> int:
    return sum(isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)) for m in model.modules())


@pytest.mark.parametrize("name", ["resnet8", "resnet50"])
def test_batch_norm_is_folded_into_residual_networks(name):
    model = shaken(build({"name": name, "outputs": 10, "width": 4}))
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = count(model)
    folded = attacks.fold_batch_norm(model, x[:2])
    assert count(folded) == 0 < before == count(model)
    with torch.no_grad():
        torch.testing.assert_close(folded(x), model(x), rtol=1e-3, atol=1e-3)
    assert not any(p.requires_grad for p in folded.parameters())


@pytest.mark.parametrize(("widen", "left"), [(2, 6), (1, 7)])  # with 1, the first block adds what its norm is fed with
def test_norms_that_can_be_folded_are_where_others_can_not(widen, left):
    model = shaken(build({"name": "wide_resnet", "outputs": 10, "depth": 16, "widen": widen}))
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    folded = attacks.fold_batch_norm(model, x[:2])
    assert (count(folded), count(model)) == (left, 13)
    with torch.no_grad():
        torch.testing.assert_close(folded(x), model(x), rtol=1e-3, atol=1e-3)


def test_norms_after_linear_layers_are_folded_where_they_are_of_its_outputs(points):
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))
    rows = [nn.Flatten(1, 2), nn.Linear(8, 12), nn.BatchNorm1d(8)]  # of axis 1, which are rows of pixels
    for model, left in ((flat, 0), (nn.Sequential(*rows, nn.ReLU(), nn.Flatten(), nn.Linear(96, 10)), 1)):
        shaken(model)
        folded = attacks.fold_batch_norm(model, points[0][:4])
        assert (count(folded), count(model)) == (left, 1)
        with torch.no_grad():
            torch.testing.assert_close(folded(points[0]), model(points[0]), rtol=1e-4, atol=1e-4)


class Cast(nn.Module):
    """Weights of another precision, scores in float32."""

    def __init__(self, dtype):
        super().__init__()
        self.model, self.dtype = cnn().to(dtype), dtype
        self.eval()

    def forward(self, x):
        return self.model(x.to(self.dtype)).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_that_are_not_float32_are_not_rounded(points, monkeypatch, dtype):
    x, y = points
    assert attacks.pgd(Cast(dtype), x, y, 0.5, steps=2).robust_accuracy < 0.5
    if dtype != torch.float32:
        with pytest.raises(ValueError, match=rf"expected float32 weights .* got {dtype}; use precision='float32'"):
            attacks.pgd(Cast(dtype), x, y, 0.5, steps=2, precision="bfloat16")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    network = _network.Network(Cast(dtype), x, y)
    network.cuda = True
    assert network._fastest(x, plain=False) == ("bfloat16" if dtype == torch.float32 else "float32")


class Branching(nn.Module):
    """The convolution's output goes to the norm and around it: folding would be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 10)

    def forward(self, x):
        a = self.conv(x)
        return self.linear((self.norm(a) + a).flatten(1))


def test_a_fold_that_changes_the_scores_is_not_used(points):
    model = shaken(Branching())
    with pytest.warns(UserWarning, match="could not be folded"):
        copy = attacks.fold_batch_norm(model, points[0][:4])
    assert count(copy) == 1
    with torch.no_grad():
        torch.testing.assert_close(copy(points[0]), model(points[0]))


class NormAndReLU(nn.BatchNorm2d):
    def forward(self, x):
        return torch.relu(super().forward(x))


class Reading(nn.Module):
    """Uses a weight of its batch norm itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.linear(self.norm(self.conv(x)).flatten(1)) * self.norm.weight.mean()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), NormAndReLU(4), nn.Flatten(), nn.Linear(4 * 36, 10)),
        nn.Sequential(weight_norm(nn.Conv2d(1, 4, 3)), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10)),
        Reading(),
    ],
    ids=["a norm of one's own", "parametrised", "read elsewhere"],
)
@pytest.mark.filterwarnings("ignore:batch norm could not be folded")
def test_layers_that_are_not_what_they_seem_are_not_folded(points, model):
    model = shaken(model)
    for module in model.modules():
        if isinstance(module, NormAndReLU):
            nn.init.constant_(module.bias, 50.0)  # its ReLU is not at work on these inputs, and could be taken for none
    copy = attacks.fold_batch_norm(model, points[0][:4])
    assert count(copy) == 1
    with torch.no_grad():
        torch.testing.assert_close(copy(points[0]), model(points[0]))


def test_ends_stay_in_float32(net, points):
    copy = _fold.keep_ends(_fold.frozen_copy(net), points[0][:2])
    assert isinstance(copy[0], _fold.Float32)
    assert isinstance(copy[-1], _fold.Float32)
    with torch.autocast("cpu", torch.bfloat16):
        scores = copy(points[0])
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, net(points[0]))  # the middle is rounded
    with torch.autocast("cpu", torch.bfloat16):
        assert copy[0](points[0]).dtype == torch.bfloat16  # computed in float32, rounded once
    assert torch.equal(copy[0](points[0]), net[0](points[0]))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100, 450, 1000, 1001])
def test_padded_sizes_are_close_and_few(n):
    for binary, waste, most in ((1, 3 / 2, 13), (3, 9 / 8, 40)):
        assert n <= _network._round_up(n, binary) <= max(n + 15, n * waste)
        assert len({_network._round_up(k, binary) for k in range(1, 1025)}) <= most


@pytest.mark.parametrize(("shape", "size"), [((64,), 1024), ((3, 32, 32), 1024), ((3, 64, 64), 341), ((3, 224, 224), 32)])
def test_batches_on_a_gpu_are_smaller_for_larger_images(shape, size):
    assert _network._fitting(torch.Size(shape).numel()) == size


def test_coarse_sizes_are_captured_soon_and_fine_ones_where_it_pays(net, points, recorded, monkeypatch):
    x, y = (t.repeat_interleave(2, 0)[:100] for t in points)
    network = _network.Network(net, x, y, batch_size=100)
    network.scores(x)
    assert recorded == [100]  # no larger than a batch
    for _ in range(_network._PATIENCE[1]):
        network.scores(x[:60])
    assert recorded == [100, 64]
    for _ in range(_network._PATIENCE[3]):
        network.scores(x[:70])
    assert recorded == [100, 64, 96, 80]
    torch.testing.assert_close(network.scores(x[:70]), network.scores(x)[:70])


@pytest.fixture
def recorded(monkeypatch):
    """Networks that record their steps, as on CUDA: replaying runs the step again on the same buffers. Gives the sizes."""
    sizes = []

    def record(step, inputs, pool):
        outputs = step(*inputs)
        sizes.append(len(inputs[0]))

        def replay():
            for kept, new in zip(outputs, step(*inputs), strict=True):
                kept.copy_(new)

        return replay, outputs

    made = _network.Network.__init__

    def captured(self, *args, **options):
        made(self, *args, **options)
        self.captured = True

    monkeypatch.setattr(_network, "_record", record)
    monkeypatch.setattr(_network.Network, "__init__", captured)
    return sizes


def test_recorded_steps_with_padding_change_nothing(net, points, request):
    x, y = points
    plain = attacks.autoattack(net, x, y, 0.15, attacks=["apgd-ce", "apgd-dlr"], batch_size=40)
    sizes = request.getfixturevalue("recorded")
    padded = attacks.autoattack(net, x, y, 0.15, attacks=["apgd-ce", "apgd-dlr"], batch_size=40)
    assert torch.equal(plain.broken, padded.broken)
    torch.testing.assert_close(plain.x_adv, padded.x_adv, atol=1e-3, rtol=0)
    assert set(sizes) <= {16, 32, 40}
    assert len(sizes) <= 6


def test_prepared_models_share_their_steps_and_give_the_same_results(net, points, recorded):
    x, y = points
    losses, radii = ("ce", "residual"), (0.05, 0.15)

    def run():
        made = [attacks.pgd(net, x, y, e, loss=loss, steps=5, coding=Simplex(radius=2.0)) for e in radii for loss in losses]
        return [*made, *(attacks.worst_case(net, x, y, e, report=False).result for e in radii)]

    apart = run()
    each = len(recorded)
    recorded.clear()
    with attacks.Prepared():
        together = run()
    assert len(recorded) < 0.75 * each
    for a, b in zip(apart, together, strict=True):
        assert torch.equal(a.broken, b.broken)
        torch.testing.assert_close(a.x_adv, b.x_adv, atol=1e-3, rtol=0)
    assert _network._kept.get() is None


def test_a_prepared_model_whose_weights_change_is_prepared_anew(points):
    x, y = points
    model = shaken(cnn())
    with attacks.Prepared() as outer, attacks.Prepared():
        first = _network.prepare(model, x, y)
        assert _network.prepare(model, x, y) is first
        with torch.no_grad():
            model[0].weight.mul_(2)
        second = _network.prepare(model, x, y)
        assert second is not first
        assert not torch.equal(second.scores(x), first.scores(x))
        with pytest.raises(ValueError, match=r"expected labels in \[0, 10\)"):
            attacks.pgd(model, x, y + 9, 0.1, steps=1)
    with outer:
        assert _network.prepare(model, x, y) is second


def test_clean_scores_are_kept_for_the_same_points_alone(net, points):
    x, y = points[0].clone(), points[1]
    model = Limited(net, None)
    with attacks.Prepared():
        network = _network.prepare(model, x, y)
        first = network.clean(x, 20)
        calls = model.counter.calls
        assert torch.equal(network.clean(x.detach(), 20), first)
        assert model.counter.calls == calls
        assert torch.equal(network.clean(x[10:], 20), network.exact(x[10:]))
        x.mul_(0.5)
        assert torch.equal(network.clean(x, 20), torch.cat([network.exact(part) for part in x.split(20)]))


def test_weights_are_rounded_once_to_what_autocast_would_round_them_to(net, points):
    model = shaken(build({"name": "resnet8", "outputs": 10, "width": 4}))
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    cast, lowered = (_fold.keep_ends(attacks.fold_batch_norm(model, x), x) for _ in range(2))
    _fold.lower(lowered)
    assert {p.dtype for p in lowered.parameters()} == {torch.float32, torch.bfloat16}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cast(x), lowered(x))


def precisions() -> tuple[str, ...]:
    cudnn = torch.backends.cudnn
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch 2.9 has names to read it by")
@pytest.mark.parametrize("names", ["old", "new"])
def test_strict_float32_leaves_the_settings_as_they_were(names, monkeypatch):
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        torch.set_float32_matmul_precision("medium")
        if names == "new":
            cudnn.conv.fp32_precision, matmul.fp32_precision = "tf32", "ieee"  # mixed: the old names can't be read any more
        before = precisions()
        with strict_float32():
            assert "tf32" not in precisions()
        assert precisions() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = True
