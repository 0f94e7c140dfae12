"""The image networks and the one-hidden-layer network: sizes, shapes, and that their spec makes them again."""

import pytest
import torch
from torch import nn

from squareloss.models import BUILDERS, OneHidden, WideResNet, build
from squareloss.models.resnet import BLOCKS
from squareloss.models.wide_resnet import WideBlock


def count(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ({"name": "resnet8", "outputs": 10, "width": 16}, 308_826),
        ({"name": "resnet18", "outputs": 10}, 11_173_962),
        ({"name": "resnet50", "outputs": 100}, 23_705_252),
        ({"name": "wrn16_10", "outputs": 10}, 17_116_634),
        ({"name": "wide_resnet", "outputs": 10, "depth": 28, "widen": 10}, 36_479_194),  # 36.5M in its paper
    ],
)
def test_parameter_counts(spec, parameters):
    assert count(build(spec)) == parameters


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50"])
def test_resnets_map_images_to_outputs_and_know_their_spec(name):
    net = build({"name": name, "outputs": 7, "width": 4})
    again = build(net.spec)
    again.load_state_dict(net.state_dict())
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert net.eval()(x).shape == (3, 7)
    assert torch.equal(net(x), again.eval()(x))
    torch.testing.assert_close(net.linear(net.features(x)), net(x))


def test_a_plain_dict_of_tensors_loads_without_counters():
    net = build({"name": "resnet8", "outputs": 2, "width": 4})
    state = dict(net.state_dict())
    assert not any("num_batches_tracked" in name for name in state)
    build(net.spec).load_state_dict(state)


def test_the_network_downsamples_three_times():
    net = build({"name": "resnet18", "outputs": 10, "width": 4})
    assert net.blocks(torch.randn(1, 4, 32, 32)).shape == (1, 32, 4, 4)
    wide = WideResNet(10, depth=10, widen=1)
    assert wide.blocks(torch.randn(1, 16, 32, 32)).shape == (1, 64, 8, 8)
    assert wide(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def tensors(*modules):
    return [t for m in modules for name, t in m.state_dict().items() if not name.endswith("num_batches_tracked")]


@torch.no_grad()
@pytest.mark.parametrize(("name", "kind"), [("resnet18", "basic"), ("resnet50", "bottleneck")])
def test_the_stages_are_those_of_hugging_face(name, kind):
    transformers = pytest.importorskip("transformers")
    from transformers.models.resnet.modeling_resnet import ResNetEncoder

    g = torch.Generator().manual_seed(0)
    net = build({"name": name, "outputs": 5, "width": 8}).eval()
    for tensor in tensors(net):
        tensor.normal_(0, 0.1, generator=g) if tensor.ndim > 1 else tensor.uniform_(0.1, 0.2, generator=g)
    widths = [8 * 2**stage * (4 if kind == "bottleneck" else 1) for stage in range(4)]
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=widths, depths=list(BLOCKS[name][1]), layer_type=kind)
    theirs = ResNetEncoder(config).eval()
    blocks = [block for stage in theirs.stages for block in stage.layers]
    for block, other in zip(net.blocks, blocks, strict=True):
        for mine, copied in zip(tensors(block), tensors(other.layer, other.shortcut), strict=True):
            copied.copy_(mine)
    x = torch.randn(2, 3, 16, 16, generator=g)
    stem = torch.relu(net.bn1(net.conv1(x)))
    torch.testing.assert_close(net.features(x), theirs(stem).last_hidden_state.mean((2, 3)))


def test_wide_blocks_normalise_first_and_leave_the_shortcut_alone():
    x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    for norm in ("bn1", "bn2"):
        block = WideBlock(8, 8, 1).eval()
        assert not torch.equal(block(x), x)
        nn.init.constant_(getattr(block, norm).bias, -10.0)  # the ReLU behind it lets nothing through
        assert torch.equal(block(x), x)
    wider = WideBlock(8, 16, 2).eval()
    nn.init.zeros_(wider.conv2.weight)
    torch.testing.assert_close(wider(x), wider.shortcut(torch.relu(wider.bn1(x))))
    net = WideResNet(10, depth=10, widen=1).eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net.features(images), torch.relu(net.bn(net.blocks(net.conv1(images)))).mean((2, 3)))


def test_one_hidden_is_its_formula():
    g = torch.Generator().manual_seed(0)
    net = OneHidden(4, 50, xi=0.5, generator=g)
    x = torch.randn(6, 4, generator=g)
    want = sum(a * torch.relu(x @ w) for a, w in zip(net.signs, net.weight, strict=True)) / 50**0.5
    torch.testing.assert_close(net(x).squeeze(1), want)
    assert [name for name, p in net.named_parameters()] == ["weight"]
    assert set(net.signs.tolist()) == {-1.0, 1.0}
    wide = OneHidden(4, 20_000, xi=0.5, generator=g)
    assert wide.weight.std().item() == pytest.approx(0.5, rel=0.02)


def test_a_generator_decides_the_one_hidden_network_and_leaves_the_global_one_alone():
    before = torch.random.get_rng_state()
    a, b = (OneHidden(4, 51, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a.weight, b.weight) and torch.equal(a.signs, b.signs)


def test_an_antisymmetric_start_is_zero():
    net = OneHidden(4, 50, antisymmetric=True, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(torch.randn(6, 4)), torch.zeros(6, 1), atol=1e-6, rtol=0)
    assert net.weight.shape == (50, 4) and torch.equal(build(net.spec).signs.sum(), torch.tensor(0.0))
    with pytest.raises(ValueError, match="even width.*got 3"):
        OneHidden(4, 3, antisymmetric=True)


def test_bad_specs():
    with pytest.raises(ValueError, match="Unknown network 'vgg'. Available: .*resnet18"):
        build({"name": "vgg"})
    with pytest.raises(ValueError, match="6 n \\+ 4.*got 17"):
        WideResNet(10, depth=17)
    assert set(BUILDERS) >= {"mlp", "one_hidden", "resnet18", "resnet50", "wrn16_10", "wide_resnet"}
