"""Convolutions joined with what follows them: the same function, and only where it is safe."""

import operator
from collections import Counter

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.testing import assert_close

from squareloss.attacks import _network
from squareloss.attacks._fold import Float32, fold_batch_norm, frozen_copy, keep_ends
from squareloss.attacks._fuse import ConvReLU, Thinned, fuse, output_shape
from squareloss.classifier import Classifier, Standardize
from squareloss.codings import Simplex
from squareloss.models import build

X = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def conv(inputs=4, outputs=4, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def scores_and_gradient(model):
    x = X.clone().requires_grad_()
    scores = model(x)
    return scores, torch.autograd.grad(scores.square().sum(), x)[0]


def check(model, **counts):
    """Fused, the model gives the same scores and gradients, and holds so many joined layers of each kind."""
    torch.manual_seed(0)
    fused = fuse(frozen_copy(model))
    found = Counter(type(m).__name__ for m in fused.modules())
    assert {name: found[name] for name in ("ConvReLU", "Thinned")} == {"ConvReLU": 0, "Thinned": 0, **counts}
    for part in fused.modules():
        if isinstance(part, fx.GraphModule):  # what was replaced is not computed for nothing
            assert all(node.users or node.op in ("placeholder", "output") for node in part.graph.nodes)
    for ours, expected in zip(scores_and_gradient(fused), scores_and_gradient(model.eval()), strict=True):
        assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    return fused


def trained_like(network):
    """Statistics and scales of batch norm that are not the identity."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.bias.data):
                tensor.normal_(0, 0.1, generator=generator)
            for tensor in (module.running_var, module.weight.data):
                tensor.uniform_(0.5, 1.5, generator=generator)
    return network.eval()


@pytest.mark.parametrize(("name", "joined"), [("resnet8", 9), ("resnet18", 17), ("resnet50", 49)])
@pytest.mark.parametrize("ends", [False, True])
def test_residual_networks_are_joined_throughout(name, joined, ends):
    torch.manual_seed(0)
    network = trained_like(build({"name": name, "outputs": 5, "width": 4}))
    model = fold_batch_norm(Classifier(network, Simplex(), Standardize([0.5] * 3, [0.25] * 3)).eval(), X)
    fused = check(keep_ends(model, X) if ends else model, ConvReLU=joined, Thinned=3)
    if ends:
        assert [type(m.layer) for m in fused.modules() if isinstance(m, Float32)] == [ConvReLU, nn.Linear]


def test_norms_that_stay_do_not_hide_the_rest():
    torch.manual_seed(0)
    network = trained_like(build({"name": "wide_resnet", "outputs": 5, "depth": 16, "widen": 2}))
    check(fold_batch_norm(network, X), ConvReLU=7, Thinned=2)


class Functional(nn.Module):
    """One convolution after another; `join` says what follows the second one."""

    def __init__(self, join):
        super().__init__()
        self.first, self.second, self.third = conv(3), conv(), conv()
        self.relu, self.join = nn.ReLU(inplace=True), join

    def forward(self, x):
        return self.join(self, self.first(x))


@pytest.mark.parametrize(
    "join",
    [
        lambda m, h: torch.relu(m.second(h)),
        lambda m, h: F.relu(m.second(h), inplace=True),
        lambda m, h: m.relu(m.second(h)),
        lambda m, h: m.second(h).relu_(),
        lambda m, h: torch.relu(h + m.second(h)),
        lambda m, h: torch.relu(m.second(h).add_(h)),
        lambda m, h: m.relu(operator.iadd(m.second(h), h)),
        lambda m, h: torch.relu(m.second(h) + h.mean((2, 3), keepdim=True)),
    ],
    ids=["relu", "functional", "module", "method", "after a sum", "in place", "by +=", "after a smaller shortcut"],
)
def test_every_way_to_write_it_is_seen(join):
    check(Functional(join), ConvReLU=1)


def without_gradient(m, h):
    with torch.no_grad():
        gate = torch.relu(m.second(h))
    return h * gate


@pytest.mark.parametrize(
    "join",
    [
        lambda m, h: (lambda out: torch.relu(out) + out)(m.second(h)),  # its output is needed as it was
        lambda m, h: torch.relu(m.second(m.second(h))),  # the layer is called twice
        lambda m, h: torch.relu(m.second(h) + 1.0),  # no shortcut
        lambda m, h: torch.relu(torch.add(m.second(h), h, alpha=2.0)),
        lambda m, h: torch.relu((lambda out: out + out)(m.second(h))),
        lambda m, h: torch.tanh(m.second(h)),
        without_gradient,
    ],
    ids=["used twice", "called twice", "plus a number", "a weighted sum", "twice itself", "no ReLU", "no gradient"],
)
def test_what_can_not_be_joined_is_left_alone(join):
    model = Functional(join)
    assert check(model) is not None


def shortcut_written_to(m, h):
    same = h
    h += m.second(h)
    return torch.relu(h) + same


def input_written_to(m, h):
    out = m.second(h)
    h.mul_(2)
    return torch.relu(out) + h


def shortcut_written_to_after_the_sum(m, h):
    out = m.second(h) + h
    F.relu(h, inplace=True)
    return torch.relu(out) + h


def result_not_looked_at(m, h):
    m.relu(h)
    return m.third(torch.relu(m.second(h)))


def written_to_by_another_name(m, h):
    same = h
    h *= 2
    return torch.relu(m.second(same))


def something_else_written_to(m, h):
    aside = m.third(h)
    return torch.relu(aside + m.second(m.relu(torch.tanh(h))))


@pytest.mark.parametrize(
    ("join", "joined"),
    [(something_else_written_to, 1), (shortcut_written_to, 0), (input_written_to, 0), (shortcut_written_to_after_the_sum, 0),
     (result_not_looked_at, 1), (written_to_by_another_name, 1)],
)  # fmt: skip
def test_what_is_written_in_place_stays_written(join, joined):
    torch.manual_seed(0)
    model = frozen_copy(Functional(join))
    fused = fuse(frozen_copy(model))
    assert sum(isinstance(m, ConvReLU) for m in fused.modules()) == joined
    with torch.no_grad():  # with some of these, nobody can
        assert_close(fused(X), model(X))


@pytest.mark.parametrize("where", ["", "first", "second", "relu"])
def test_hooks_are_kept(where):
    model = Functional(lambda m, h: m.relu(m.second(torch.relu(h))))
    model.get_submodule(where).register_forward_hook(lambda module, inputs, output: 2 * output - 1)
    check(model, ConvReLU=int(where != ""))


def test_arguments_that_may_be_left_out_stay_out():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Sequential(conv(3), nn.ReLU())

        def forward(self, x, mask=None):
            return self.part(x if mask is None else 0.9 * x)

    check(Optional(), ConvReLU=1)


@pytest.mark.parametrize(
    "options",
    [{"bias": False}, {"groups": 4}, {"dilation": 2}, {"stride": 2}, {"kernel_size": 1, "stride": 2, "groups": 2},
     {"kernel_size": (1, 3), "stride": (2, 3), "padding": (2, 0), "dilation": (1, 2)}, {"padding": "same"}],
)  # fmt: skip
@pytest.mark.parametrize("after", [nn.ReLU, nn.Tanh])
def test_convolutions_of_every_kind(options, after):
    options = {"kernel_size": 3, "padding": 0, **options}
    layer = nn.Conv2d(4, 8, **options)
    joined = after is nn.ReLU and not isinstance(layer.padding, str)
    thinned = not joined and options["kernel_size"] == 1
    check(nn.Sequential(conv(3), layer, after()), ConvReLU=int(joined), Thinned=int(thinned))
    x = torch.rand(2, 4, 11, 12)
    if not isinstance(layer.padding, str):
        assert output_shape(layer, x) == layer(x).shape


class Dense(nn.Module):
    """Every layer sees what all before it made."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([conv(3 + 4 * i) for i in range(3)])

    def forward(self, x):
        made = [x]
        for layer in self.layers:
            made += [torch.relu(layer(torch.cat(made, 1)))]
        return torch.cat(made, 1)


class Block(nn.Module):
    """As torchvision writes it."""

    def __init__(self, inputs):
        super().__init__()
        self.conv1, self.conv2, self.relu = conv(inputs, bias=False), conv(bias=False), nn.ReLU(inplace=True)
        self.downsample = None if inputs == 4 else nn.Sequential(nn.Conv2d(inputs, 4, 1, stride=1), nn.Identity())

    def forward(self, x):
        identity = x
        out = self.relu(self.conv1(x))
        out = self.conv2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


def test_the_ways_networks_are_built():
    check(Dense(), ConvReLU=3)
    check(nn.Sequential(Block(3), Block(4), nn.Flatten(), nn.Linear(1024, 5)), ConvReLU=4)
    shared = nn.Sequential(conv(), nn.ReLU())
    check(nn.Sequential(conv(3), shared, shared, nn.ReLU()))


def test_padding_that_cudnn_does_not_know_is_left_alone():
    model = Functional(lambda m, h: torch.relu(m.second(h)))
    model.second = conv(padding_mode="reflect")
    check(model)


def test_parts_of_a_network_that_can_not_be_traced_are_joined():
    class Dynamic(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Sequential(conv(3), nn.ReLU(), nn.Conv2d(4, 4, 1, stride=2))

        def forward(self, x):
            return self.part(x) if x.sum() > 0 else self.part(-x)

    fused = check(Dynamic(), ConvReLU=1, Thinned=1)
    assert type(fused) is Dynamic


@pytest.mark.parametrize("stride", [2, (2, 1), (3, 2)])
def test_thinned_equals_a_stride(stride):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, 1, stride=stride)
    assert_close(Thinned(layer)(X), layer(X))
    assert layer.stride == nn.Conv2d(3, 5, 1, stride=stride).stride


def test_gradients_of_a_thinned_convolution_lie_as_its_input_does():
    x = X.contiguous(memory_format=torch.channels_last).requires_grad_()
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, 1, stride=2)
    (gradient,) = torch.autograd.grad(Thinned(layer)(x).square().sum(), x)
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    assert_close(gradient, expected)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


def test_the_bias_of_a_shortcut_is_added_once():
    fused = check(Functional(lambda m, h: torch.relu(m.second(h) + m.third(h))), ConvReLU=1)
    assert fused.third.bias is None


def test_the_bias_of_a_broadcast_shortcut_stays_there():
    model = Functional(lambda m, h: torch.relu(m.second(h) + m.third(h)))
    model.second = conv(4, 1)
    check(model, ConvReLU=1)


@pytest.mark.parametrize(
    "wrong",
    [lambda scores: 1.1 * scores, lambda scores: scores[:1], lambda scores: scores / 0, lambda scores: scores.nonsense],
    ids=["other scores", "another shape", "not finite", "fails"],
)
def test_a_network_fused_wrongly_is_not_used(monkeypatch, wrong):
    torch.manual_seed(0)
    model = nn.Sequential(conv(3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 5)).eval()
    network = _network.Network(model, X, torch.zeros(3, dtype=torch.int64))

    class Wrong(nn.Sequential):
        def forward(self, x):
            return wrong(super().forward(x))

    assert any(isinstance(m, ConvReLU) for m in network._fused(model, X).modules())
    monkeypatch.setattr(_network, "fuse", Wrong)
    assert network._fused(model, X) is model


def test_contexts_are_seen_by_whoever_attacks_without_gradients():
    class Gated(Functional):
        def forward(self, x):
            return super().forward(x).flatten(1)[:, :5]

    torch.manual_seed(0)
    model = Gated(without_gradient).eval()
    with torch.no_grad():
        network = _network.Network(model, X, torch.zeros(3, dtype=torch.int64))
        fused = network._fused(model, X)
    for ours, expected in zip(scores_and_gradient(fused), scores_and_gradient(model), strict=True):
        assert_close(ours, expected)
