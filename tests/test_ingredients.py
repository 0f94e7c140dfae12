"""What a comparison is made of: names, data, networks, recipes, losses."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from squareloss import SquareLoss, _checks, _estimator_options, metrics
from squareloss.lab.data import load
from squareloss.lab.data.dataset import Dataset, Split
from squareloss.lab.studies.compare import ingredients, measure
from squareloss.lab.studies.compare.ingredients import LOSSES, Source
from squareloss.lab.training.loop import Run, outputs_of, train
from squareloss.lab.training.recipes import Recipe
from squareloss.models import MLP
from test_compare import csv_file

pytestmark = pytest.mark.usefixtures("one_thread")


def test_unknown_names_come_with_the_list_and_the_nearest():
    with pytest.raises(ValueError, match="Unknown loss 'simplx'. Available: ce, simplex, .*did you mean 'simplex'?"):
        ingredients.split_losses("ce,simplx")
    with pytest.raises(ValueError, match="did you mean '.temperature'"):
        ingredients.split_losses("ce+temprature")
    with pytest.raises(ValueError, match="did you mean 'resnet18'"):
        ingredients.network_spec("resnet_18", load("digits"))
    assert _checks.choose("x", "a", ["a"]) == "a"
    with pytest.raises(ValueError, match="Available: none$"):
        _checks.choose("study", "zzz", [])
    with pytest.raises(ValueError, match=r"Unknown study 3\. Available: a"):
        _checks.choose("study", 3, ["a"])


def test_splits_depend_on_the_seed_alone_and_cover_the_data(tmp_path):
    source = Source(str(csv_file(tmp_path)), "label")
    first, again, other = source.read(0), source.read(0), source.read(1)
    assert torch.equal(first.train.x, again.train.x) and not torch.equal(first.test.x, other.test.x)
    assert [getattr(first, part).n for part in ("train", "validation", "test")] == [72, 24, 24]
    assert source.draws_test()
    digits, others = (Source("digits").read(seed) for seed in (3, 4))
    assert all(not torch.equal(getattr(digits, part).x, getattr(others, part).x) for part in ("validation", "test"))
    rows = torch.cat([part.x.flatten(1) for part in (digits.train, digits.validation, digits.test)])
    assert torch.equal(rows.sum(0), load("digits", validation=0.0, test=0.0).train.x.flatten(1).sum(0))


def test_a_test_set_of_the_data_is_kept(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.normal(size=(60, 3)),
        "y_train": np.arange(60) % 2,
        "x_test": rng.normal(size=(20, 3)),
        "y_test": np.arange(20) % 2,
    }
    np.savez(tmp_path / "a.npz", **arrays)
    source = Source(str(tmp_path / "a.npz"))
    assert not source.draws_test()
    a, b = source.read(0), source.read(1)
    assert torch.equal(a.test.x, b.test.x) and a.test.n == 20
    assert not torch.equal(a.validation.x, b.validation.x)


@pytest.mark.parametrize(("rows", "held"), [(9_999, 2_000), (10_000, 1_000)])
def test_many_samples_need_a_smaller_share_for_validation(tmp_path, rows, held):
    np.savez(tmp_path / "a.npz", x=np.arange(rows)[:, None] % 100, y=np.arange(rows) % 2)
    assert Source(str(tmp_path / "a.npz")).read(0).validation.n == held


def test_fingerprint_follows_the_content(tmp_path):
    path = csv_file(tmp_path)
    before = Source(str(path), "label").fingerprint()
    assert Source(str(path), "label").fingerprint() == before
    path.write_text(path.read_text().replace("red", "green", 1))
    assert Source(str(path), "label").fingerprint() != before
    assert Source("digits").fingerprint() == "digits"


def test_fingerprint_of_a_folder_follows_its_images(tmp_path):
    image = tmp_path / "photos" / "cat" / "0.bmp"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"one picture")
    before = Source(str(tmp_path / "photos")).fingerprint()
    (image.parent / ".DS_Store").write_bytes(b"of a file manager")
    assert Source(str(tmp_path / "photos")).fingerprint() == before
    image.write_bytes(b"the second!")  # of the same size
    assert Source(str(tmp_path / "photos")).fingerprint() != before
    image.write_bytes(b"one picture")
    image.rename(image.with_name("1.bmp"))
    assert Source(str(tmp_path / "photos")).fingerprint() != before


def test_fingerprint_of_a_folder_is_of_what_is_read(tmp_path):
    """Links to folders are, whatever else lies beside the images is not."""
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"one picture")
        (tmp_path / "photos" / "train").mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "train" / name).symlink_to(tmp_path / name)
    before = Source(str(tmp_path / "photos")).fingerprint()
    (tmp_path / "photos" / "photos.zip").write_bytes(b"where they came from")
    assert Source(str(tmp_path / "photos")).fingerprint() == before
    (tmp_path / "dogs" / "0.png").write_bytes(b"the second!")
    assert Source(str(tmp_path / "photos")).fingerprint() != before


def test_networks_start_from_the_same_weights_for_a_seed():
    spec = ingredients.network_spec("resnet8", load("digits"), quick=True)
    state = torch.random.get_rng_state()
    a, b, c = (ingredients.build(spec, (1, 8, 8), 10, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = list(zip(a.parameters(), b.parameters(), c.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q, _ in pairs)
    assert not all(torch.equal(p, r) for p, _, r in pairs)


def test_a_network_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def build(shape, outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], outputs))\n"
        "def wrong(shape, outputs):\n    return nn.Flatten()\n"
        "def nothing(shape, outputs):\n    nn.Flatten()\n"
        "def narrow(shape, outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(63, outputs))\n"
        "def alone(shape):\n    return nn.Flatten()\n"
        "def frozen(shape, outputs):\n    return build(shape, outputs).requires_grad_(False)\n"
        "def lazy(shape, outputs):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))\n"
    )
    data = load("digits")
    spec = ingredients.network_spec("own_net:build", data)
    assert ingredients.check_network(spec, data) == 650
    with pytest.raises(ValueError, match=r"expected own_net:wrong to give outputs \(2, 10\)"):
        ingredients.check_network(ingredients.network_spec("own_net:wrong", data), data)
    for name, message in {
        "nothing": r"expected own_net:nothing to return an nn.Module, got NoneType; .*function\(shape, outputs\)",
        "narrow": r"own_net:narrow failed on inputs of shape \(2, 1, 8, 8\): RuntimeError: mat1 and mat2",
        "frozen": r"expected own_net:frozen to have parameters to train, got none",
        "lazy": r"expected own_net:lazy to return .* got '1.weight' uninitialised; run network\(torch.zeros\(2, \*shape\)\)",
        "alone": r"own_net:alone\(\(1, 8, 8\), 10\) failed: TypeError: .* takes 1 positional argument but 2 were given",
    }.items():
        with pytest.raises(ValueError, match=message):
            ingredients.check_network(ingredients.network_spec(f"own_net:{name}", data), data)
    with pytest.raises(ValueError, match="Unknown function of own_net 'biuld'.*did you mean 'build'"):
        ingredients.network_spec("own_net:biuld", data)
    with pytest.raises(ValueError, match="could not import 'no_such_net'"):
        ingredients.network_spec("no_such_net:build", data)
    (tmp_path / "broken_net.py").write_text("from torch import nn\ndef build(shape, outputs) return nn.Flatten()\n")
    with pytest.raises(ValueError, match=r"could not import 'broken_net' .* SyntaxError: .*line 2"):
        ingredients.network_spec("broken_net:build", data)
    assert str(tmp_path) not in sys.path


def test_another_source_file_is_another_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "from torch import nn\ndef build(shape, outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    specs = []
    for name, extra in (("net_a", ""), ("net_b", "# another\n")):
        (tmp_path / f"{name}.py").write_text(text + extra)
        specs.append(ingredients.network_spec(f"{name}:build", load("digits"))["source"])
    assert specs[0] != specs[1]


def test_recipes_fit_the_data(tmp_path):
    data = Source(str(csv_file(tmp_path, rows=100)), "label").read(0)
    recipe = ingredients.fit_recipe(None, data)
    assert recipe.epochs == ingredients.SMALL.epochs and data.train.n >= 7 * recipe.batch_size and not recipe.augment
    assert ingredients.fit_recipe("paper", data, epochs=4).epochs == 4
    assert ingredients.fit_recipe(None, data, quick=True).epochs < recipe.epochs
    with pytest.raises(ValueError, match="expected a batch size of at most 60"):
        ingredients.fit_recipe(None, data, batch_size=61)
    few = replace(data, train=Split(data.train.x[:7], data.train.y[:7]))
    with pytest.raises(ValueError, match="expected 8 training samples or more, got 7"):
        ingredients.fit_recipe(None, few)
    assert ingredients.learning_rates(Recipe(1, 1, lr=0.3), quick=False) == [0.1, 0.3, 0.9]


def pictures(height, width, n=400, name="photos"):
    train = Split(torch.zeros(1, 3, height, width, dtype=torch.uint8).expand(n, -1, -1, -1), torch.arange(n) % 2)
    none = Split(train.x[:0], train.y[:0])
    return Dataset(name, "image", train, none, none, ("a", "b"), torch.zeros(3), torch.ones(3))


def test_networks_fit_the_data(tmp_path):
    photos, small = pictures(32, 24), pictures(32, 23)
    spec = {"name": "resnet8", "outputs": 2, "width": 16, "channels": 3}
    for data, quick, cuda, expected in (
        (photos, False, True, {"name": "resnet18", "width": 64}),
        (photos, True, True, {"width": 8}),
        (photos, False, False, {}),
        (small, False, True, {}),
    ):
        assert ingredients.network_spec("auto", data, quick=quick, cuda=cuda) == spec | expected
    assert ingredients.network_spec("resnet18", small, quick=True) == spec | {"name": "resnet18", "width": 64}
    wide = {"name": "wide_resnet", "outputs": 2, "depth": 16, "widen": 10, "channels": 3}
    assert ingredients.network_spec("wrn16_10", small) == wide
    table = Source(str(csv_file(tmp_path)), "label").read(0)
    for data, inputs in ((table, 4), (pictures(32, 7), 3 * 32 * 7)):
        for quick, hidden in ((False, [256, 256]), (True, [64, 64])):
            mlp = {"name": "mlp", "inputs": inputs, "hidden": hidden, "outputs": 2}
            assert ingredients.network_spec("auto", data, quick=quick, cuda=True) == mlp


def test_recipes_noise_and_radii_fit_photographs(tmp_path):
    few, many, small = pictures(24, 32, 19_999), pictures(24, 32, 20_000), pictures(16, 16, 20_000)
    table = Source(str(csv_file(tmp_path)), "label").read(0)
    fast = ingredients.RECIPES["fast"]
    assert ingredients.fit_recipe(None, many, cuda=True) == replace(fast, augment=False, precision="bfloat16")
    for data in (few, small):
        assert ingredients.fit_recipe(None, data) == ingredients.SMALL
    short = ingredients.fit_recipe(None, few, epochs=5)
    assert (short.epochs, short.warmup, ingredients.fit_recipe("fast", few).epochs) == (5, 1.0, fast.epochs)
    assert [ingredients.fit_recipe(None, data, cuda=True).precision for data in (small, table)] == ["bfloat16", "float32"]
    assert [ingredients.fit_recipe(None, data).lr for data in (small, table)] == [0.1, 0.03], "no batch norm there"
    assert [ingredients.fit_recipe(None, pictures(16, 16, n)).batch_size for n in (640, 639, 79)] == [64, 32, 8]
    cifar = pictures(32, 32, name="cifar10")
    assert [ingredients.fit_recipe(None, data).augment for data in (cifar, few)] == [True, False]
    assert [ingredients.fit_recipe(None, cifar, augment=asked).augment for asked in (True, False)] == [True, False]
    assert ingredients.fit_recipe(None, few, augment=True).augment
    assert [ingredients.noise_levels(data)[0] for data in (few, small, table)] == [0.1, 0.25, 0.25]
    assert [ingredients.radii(data, quick=False) for data in (few, table)] == [[0.5 / 255, 1 / 255, 2 / 255], []]
    assert [ingredients.radii(small, quick=quick) for quick in (True, False)] == [[0.05, 0.1], [0.025, 0.05, 0.1]]


def test_losses_are_what_their_names_say():
    f, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(20) % 4
    p, hot = f.softmax(1), torch.eye(4, dtype=torch.float64)[y]
    ce = torch.nn.functional.cross_entropy(f, y, reduction="none")
    expected = {
        "ce": ce,
        "simplex": SquareLoss(reduction="none")(f, y),
        "one_hot": (f - hot).square().sum(1) / 2,
        "one_hot_15": (f - 3 * hot).square().mean(1),
        "scaled_one_hot": (f - 4 * hot).square().mean(1) / 2,
        "squentropy": ce + ((1 - hot) * f.square()).sum(1) / 3,
        "ce_smoothed": torch.nn.functional.cross_entropy(f, y, reduction="none", label_smoothing=0.1),
        "focal": (1 - p.gather(1, y[:, None])[:, 0]) ** 2 * ce,
        "brier": (p - hot).square().sum(1),
    }
    for name, make in LOSSES.items():
        torch.testing.assert_close(make(4)(f, y), expected[name].mean())


def test_a_loss_that_was_chosen_is_trained_by_that_name():
    mine = _estimator_options.LOSSES
    for name in mine:
        for k in (3, 40):
            assert repr(mine[name](k)) == repr(LOSSES["ce" if name == "cross_entropy" else name](k))


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_learns_and_gives_probabilities(name):
    data = load("digits", validation=0.2)
    loss = LOSSES[name](10)
    network = MLP(64, (64,), 10, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(epochs=10, batch_size=64, lr=0.1, schedule="linear", augment=False, precision="float32")
    preprocess = measure.Standardize(data.mean, data.std)
    train(Run(network, loss, recipe, 0, data.train.x, data.train.y, preprocess))
    outputs = outputs_of(network, data.test.x, preprocess=preprocess)
    p = loss.probabilities(outputs)
    assert float(metrics.accuracy(p, data.test.y)) > 0.9
    assert torch.allclose(p.sum(1), torch.ones(len(p)), atol=1e-5) and bool((p >= 0).all())
