"""The multilayer perceptron, and building networks from their specs."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from squareloss import models
from squareloss.models import MLP


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_it_is_linear_relu_linear():
    network, x = MLP(3, (4, 5), 2, generator=generator()), torch.randn(6, 3, generator=generator())
    first, second, last = network.layers
    hidden = torch.relu(first(x))
    hidden = torch.relu(hidden @ second.weight.T + second.bias)
    assert_close(network(x), hidden @ last.weight.T + last.bias)
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(4, 3), (5, 4), (2, 5)]


def test_no_hidden_layer_is_a_linear_model():
    network, x = MLP(3, (), 2, generator=generator()), torch.randn(6, 3, generator=generator())
    assert_close(network(2 * x) - network(x), x @ network.layers[0].weight.T)


def test_hidden_is_a_width_for_each_layer():
    with pytest.raises(TypeError, match=r"expected hidden to be a width for each hidden layer, such as \(100,\), got 10"):
        MLP(3, 10, 2)


def test_images_are_flattened():
    network, x = MLP(12, (4,), 2, generator=generator()), torch.randn(5, 3, 2, 2, generator=generator())
    assert_close(network(x), network(x.reshape(5, 12)))


def test_a_generator_decides_the_weights_and_leaves_the_global_one_alone():
    before = torch.random.get_rng_state()
    a, b, c = (MLP(8, (16,), 3, generator=generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    for p, q, r in zip(a.parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(p, q)
        assert not torch.equal(p, r)


def test_weights_are_drawn_as_torch_draws_them():
    network = MLP(400, (300,), 10, generator=generator())
    for layer in network.layers:
        bound = 1 / math.sqrt(layer.in_features)
        for values in (layer.weight, layer.bias):
            assert values.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        reference = nn.Linear(layer.in_features, layer.out_features).weight
        assert layer.weight.std().item() == pytest.approx(reference.std().item(), rel=0.05)


def test_a_spec_builds_the_same_network():
    network = MLP(8, (16, 4), 3, generator=generator())
    twin = models.build(network.spec)
    assert twin.spec == network.spec == {"name": "mlp", "inputs": 8, "hidden": [16, 4], "outputs": 3}
    twin.load_state_dict(network.state_dict())
    x = torch.randn(5, 8, generator=generator())
    assert_close(twin(x), network(x))


@pytest.mark.parametrize("spec", [{"name": "alexnet"}, {}])
def test_unknown_networks_list_the_choices(spec):
    with pytest.raises(ValueError, match=r"Unknown network .* Available: .*mlp"):
        models.build(spec)
