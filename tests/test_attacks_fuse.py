"""Convolutions joined with what follows them: the same function, and only where it is safe."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from squareloss.attacks._fold import Float32, fold_batch_norm, frozen_copy, keep_ends
from squareloss.attacks._fuse import ConvReLU, Thinned, fuse
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
    ],
    ids=["relu", "functional", "module", "method", "after a sum", "after a sum in place"],
)
def test_every_way_to_write_it_is_seen(join):
    check(Functional(join), ConvReLU=1)


@pytest.mark.parametrize(
    "join",
    [
        lambda m, h: (lambda out: torch.relu(out) + out)(m.second(h)),  # its output is needed as it was
        lambda m, h: torch.relu(m.second(m.second(h))),  # the layer is called twice
        lambda m, h: torch.relu(m.second(h) + 1.0),  # no shortcut
        lambda m, h: torch.relu(torch.add(m.second(h), h, alpha=2.0)),
        lambda m, h: torch.tanh(m.second(h)),
    ],
    ids=["used twice", "called twice", "plus a number", "a weighted sum", "no ReLU"],
)
def test_what_can_not_be_joined_is_left_alone(join):
    model = Functional(join)
    assert check(model) is not None


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
