"""Classifier: what it computes, what it writes and reads back, and what it refuses."""

import hashlib
import json
import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from squareloss import OneHot, Simplex, Softmax, SquareLoss, models
from squareloss.classifier import Classifier, Probabilities, Standardize

LINKS = [Simplex(), Simplex(radius=3.0), Simplex(reduced=True), OneHot(k=5, M=15), Softmax()]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def inputs(n=7, seed=1):
    return 4 * torch.randn(n, 8, generator=generator(seed))


def width(link, num_classes=5):
    return num_classes - 1 if getattr(link, "reduced", False) else num_classes


def make(link, seed=0):
    g = generator(seed)
    network = models.MLP(8, (16,), width(link), generator=g)
    with torch.no_grad():
        network.layers[-1].weight.mul_(8)  # outputs large enough that eta leaves the simplex
    scale = Standardize(torch.rand(8, generator=g), torch.rand(8, generator=g) + 0.5)
    return Classifier(network, link, scale, classes=["a", "b", "c", "d", "e"])


class Stranger(nn.Module):
    """A network of somebody else's: batch statistics, an integer buffer, and a tied weight."""

    def __init__(self, hidden=8):
        super().__init__()
        self.first = nn.Linear(8, hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, hidden, bias=False)
        self.second.weight = self.first.weight if hidden == 8 else self.second.weight
        self.head = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.head(self.second(self.norm(self.first(x))))


class Halve(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.tensor(0.25))

    def forward(self, x):
        return x * self.factor


def edit(folder, **changes):
    path = folder / "classifier.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# what it computes


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_reads_the_network_through_the_link(link):
    classifier, x = make(link), inputs()
    outputs = classifier.network((x - classifier.preprocess.mean) / classifier.preprocess.std)
    torch.testing.assert_close(classifier(x), link.scores(outputs))
    torch.testing.assert_close(classifier.probabilities(x), link.probabilities(outputs))
    assert torch.equal(classifier.predict(x), link.predict(outputs))
    assert classifier(x).shape == (7, 5)
    assert torch.equal(Probabilities(classifier)(x), classifier.probabilities(x))


def test_gradients_reach_the_inputs_through_scores_and_probabilities():
    classifier = Classifier(models.MLP(8, (16,), 5, generator=generator()), Simplex())
    x = (inputs() / 8).requires_grad_()  # small outputs, so that eta stays inside
    for out in (classifier(x), classifier.probabilities(x)):
        (gradient,) = torch.autograd.grad(out[:, 0].sum(), x)
        assert gradient.abs().sum() > 0
    assert not classifier.predict(x).requires_grad


def test_standardize_is_per_channel_for_images_and_per_feature_for_tables():
    images = torch.rand(6, 3, 4, 5, generator=generator()) * torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1)
    out = Standardize.from_data(images)(images)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3), correction=0), torch.ones(3))
    table = np.random.default_rng(0).normal(size=(50, 4))
    expected = (table - table.mean(0)) / table.std(0)
    out = Standardize(table.mean(0), table.std(0))(torch.tensor(table, dtype=torch.float32))
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-5)
    gray = torch.randint(0, 256, (2, 1, 3, 3), generator=generator(), dtype=torch.uint8)
    torch.testing.assert_close(Standardize(100.0, 50.0)(gray), (gray.float() - 100) / 50)


def test_standardize_leaves_constant_features_finite():
    x = torch.tensor([[1.0, 2.0], [1.0, 4.0]])
    assert torch.equal(Standardize.from_data(x)(x), torch.tensor([[0.0, -1.0], [0.0, 1.0]]))
    assert Standardize.from_data(torch.full((777, 1), 0.1, dtype=torch.float64)).std == 1  # and not the rounding of its mean
    assert Standardize.from_data(x.to(torch.uint16)).std.tolist() == [1, 1]  # whose largest torch does not find


# saving and loading


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_round_trip_of_a_built_in_network(link, tmp_path):
    classifier, x = make(link).eval(), inputs()
    classifier.save(tmp_path / "new" / "folder")
    state = torch.get_rng_state()
    loaded = Classifier.load(tmp_path / "new" / "folder")
    assert torch.equal(torch.get_rng_state(), state), "loading drew from the global generator"
    assert loaded.link == link
    assert loaded.classes == ("a", "b", "c", "d", "e")
    assert not loaded.training
    assert torch.equal(loaded(x), classifier(x))
    assert torch.equal(loaded.probabilities(x), classifier.probabilities(x))
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["classifier.json", "weights.safetensors"]
    assert len({path.stat().st_mode for path in (tmp_path / "new" / "folder").iterdir()}) == 1  # both as the umask says


def test_round_trip_of_a_strangers_network_with_tied_weights(tmp_path):
    torch.manual_seed(0)
    classifier = Classifier(Stranger(), Simplex(), Halve(), classes=np.array([3, 5, 7]))
    classifier(inputs(32))  # batch statistics
    classifier.preprocess.factor.fill_(0.5)
    classifier.eval().save(tmp_path)
    loaded = Classifier.load(tmp_path, network=Stranger(), preprocess=Halve())
    assert torch.equal(loaded(inputs()), classifier(inputs()))
    assert loaded.network.second.weight is loaded.network.first.weight
    assert loaded.classes == (3, 5, 7)
    names = set(safetensors_names(tmp_path))
    assert ("network.first.weight" in names) != ("network.second.weight" in names), "a tied tensor is written once"


def safetensors_names(folder):
    from safetensors import safe_open

    with safe_open(folder / "weights.safetensors", "pt") as file:
        return list(file.keys())


def test_overlapping_and_transposed_tensors_are_saved(tmp_path):
    whole = torch.arange(16.0).view(4, 4)

    class Views(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[:2])  # both begin where the whole does
            self.register_buffer("turned", whole.t())

        def forward(self, x):
            return x @ self.turned + self.part.sum()

    x = torch.rand(2, 4, generator=generator())
    classifier = Classifier(Views(whole), Softmax())
    classifier.save(tmp_path)
    loaded = Classifier.load(tmp_path, network=Views(torch.zeros(4, 4)))
    assert torch.equal(loaded(x), classifier(x))
    assert torch.equal(loaded.network.whole, whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_survive(dtype, tmp_path):
    classifier, x = make(Simplex()).to(dtype).eval(), inputs().to(dtype)
    classifier.save(tmp_path)
    for loaded in (Classifier.load(tmp_path), Classifier.load(tmp_path, network=models.MLP(8, (16,), 5))):
        assert loaded(x).dtype == dtype
        assert torch.equal(loaded(x), classifier(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch.compile's imports
def test_wrappers_are_taken_off(tmp_path):
    classifier, x = make(Simplex()).eval(), inputs()
    expected = classifier(x)
    for wrap in (torch.compile, nn.DataParallel):
        Classifier(wrap(classifier.network), Simplex(), classifier.preprocess).save(tmp_path)
        assert torch.equal(Classifier.load(tmp_path)(x), expected)
        wrapped = Classifier.load(tmp_path, network=wrap(models.MLP(8, (16,), 5)))
        assert torch.equal(wrapped.network.state_dict().popitem()[1], classifier.network.state_dict().popitem()[1])


def test_a_subclass_of_a_built_in_network_is_a_strangers(tmp_path):
    class Doubled(models.MLP):
        def forward(self, x):
            return 2 * super().forward(x)

    classifier = Classifier(Doubled(8, (16,), 5, generator=generator()), Simplex())
    classifier.save(tmp_path)
    with pytest.raises(ValueError, match=r"Doubled, is not built in; pass Classifier.load\(directory, network=...\)"):
        Classifier.load(tmp_path)
    assert torch.equal(Classifier.load(tmp_path, network=Doubled(8, (16,), 5))(inputs()), classifier(inputs()))


def test_saving_is_reproducible_and_says_what_it_holds(tmp_path):
    make(Simplex(radius=2.0)).save(tmp_path / "a")
    make(Simplex(radius=2.0)).save(tmp_path / "b")
    for name in ("classifier.json", "weights.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    config = json.loads((tmp_path / "a" / "classifier.json").read_text())
    assert config["format"] == 1
    assert config["link"] == {"name": "simplex", "radius": 2.0, "reduced": False}
    assert config["network"]["spec"] == {"name": "mlp", "inputs": 8, "hidden": [16], "outputs": 5}
    assert config["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("moves", [0, 1])
def test_an_interrupted_save_is_noticed_and_never_mixes_two_classifiers(moves, tmp_path, monkeypatch):
    old, x = make(Simplex()).eval(), inputs()
    old.save(tmp_path)
    replace, done = os.replace, []

    def stop(source, target):
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        make(OneHot(), seed=9).save(tmp_path)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["classifier.json", "weights.safetensors"], "scratch files stayed"
    if moves == 0:
        assert torch.equal(Classifier.load(tmp_path)(x), old(x))
    else:
        with pytest.raises(ValueError, match="comes from another save"):
            Classifier.load(tmp_path)


# what it refuses


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no classifier\.json and no weights\.safetensors; pass a folder"):
        Classifier.load(tmp_path / "nowhere")
    make(Simplex()).save(tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"found no weights\.safetensors"):
        Classifier.load(tmp_path)


def test_an_uninitialised_network_is_run_once_before_it_is_loaded(tmp_path):
    def lazy():
        return nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3))

    classifier = Classifier(lazy(), Simplex()).eval()
    expected = classifier(inputs())
    classifier.save(tmp_path)
    network = lazy()
    with pytest.raises(ValueError, match=r"knows its shapes, got network.0.weight, .* uninitialised; run the network once"):
        Classifier.load(tmp_path, network=network)
    network(inputs())
    assert torch.equal(Classifier.load(tmp_path, network=network)(inputs()), expected)


def test_wrong_network_names_the_tensors_and_touches_nothing(tmp_path):
    Classifier(Stranger(), Simplex()).save(tmp_path)
    other = Stranger(hidden=9)
    other.extra = nn.Parameter(torch.zeros(1))
    del other.head.bias
    other.head.bias = None
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(ValueError, match="expected a network with the tensors saved in") as error:
        Classifier.load(tmp_path, network=other)
    assert "missing from the file: network.extra" in str(error.value)
    assert "in the file only: network.head.bias" in str(error.value)
    assert "network.first.weight (file (8, 8) torch.float32, network (9, 8) torch.float32)" in str(error.value)
    assert "and 2 more" in str(error.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_a_strangers_parts_must_be_given(tmp_path):
    Classifier(models.MLP(8, (), 3), Simplex(), Halve()).save(tmp_path)
    with pytest.raises(ValueError, match=r"Halve, is not built in; pass Classifier.load\(directory, preprocess=...\)"):
        Classifier.load(tmp_path)


def test_newer_format(tmp_path):
    make(Simplex()).save(tmp_path)
    edit(tmp_path, format=2, versions={"squareloss": "9.0"})
    with pytest.raises(ValueError, match=r"format 2 \(written with .*9\.0.* reads up to 1; upgrade squareloss"):
        Classifier.load(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", "3", '{"link": {}}', "[" * 100_000, "\udcff"])
def test_corrupt_json(text, tmp_path):
    make(Simplex()).save(tmp_path)
    (tmp_path / "classifier.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=r"expected (JSON|an object with a format number) in .*classifier\.json"):
        Classifier.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link": {"name": "os.system", "command": "true"}}, "Unknown link 'os.system'. Available: simplex, onehot, softmax"),
        ({"link": {"name": "simplex", "radius": -1}}, r"expected arguments of Simplex, got .*expected radius > 0"),
        ({"link": {"name": "simplex", "depth": 1}}, "expected arguments of Simplex"),
        ({"link": {"name": ["simplex"]}}, r"Unknown link \['simplex'\]"),
        ({"link": 3}, "expected 'link' to be dict in"),
        ({"network": {"spec": {"name": "subprocess.run"}}}, "Unknown network 'subprocess.run'. Available: .*mlp"),
        ({"network": {"spec": {"name": "mlp", "shell": True}}}, "expected the arguments of a built-in network"),
        ({"network": None}, "expected 'network' to be dict"),
        ({"preprocess": {"class": "os.system", "standardize": "x"}}, "os.system, is not built in"),
        ({"preprocess": {"standardize": [4]}}, r"preprocess.mean \(file \(8,\) torch.float32, network \(4,\) torch.float32\)"),
        ({"preprocess": {"standardize": [10**12]}}, r"preprocess.mean \(file \(8,\) torch.float32, network \(1000000000000,\)"),
        ({"preprocess": {"standardize": [-8]}}, r"expected the shape of a Standardize, got \[-8\]"),
        ({"classes": "abc"}, "expected 'classes' to be list or null"),
        ({"classes": [None, 1, 2, 3, 4]}, "expected class names that are strings or numbers"),
        ({"weights": None}, "expected 'weights' to be dict"),
    ],
)
def test_json_can_name_only_what_is_listed(changes, message, tmp_path):
    make(Simplex()).save(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        Classifier.load(tmp_path)


def test_a_network_larger_than_its_file_is_never_made(tmp_path):
    make(Simplex()).save(tmp_path)
    edit(tmp_path, network={"spec": {"name": "mlp", "inputs": 8, "hidden": [10**9, 10**9], "outputs": 5}})  # 4 exabytes
    with pytest.raises(ValueError, match=r"network.layers.0.weight \(file \(16, 8\) torch.float32, network \(1000000000, 8\)"):
        Classifier.load(tmp_path)


def test_a_shared_tensor_must_be_named_by_a_name(tmp_path):
    make(Simplex()).save(tmp_path)
    config = json.loads((tmp_path / "classifier.json").read_text())
    edit(tmp_path, weights=config["weights"] | {"shared": {"a": ["b"]}})
    with pytest.raises(ValueError, match=r"shares its tensor with \['b'\], which is not in"):
        Classifier.load(tmp_path)


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a saved file ran code",)


@pytest.mark.parametrize("content", [pickle.dumps(Bomb()), b"", b"\xff" * 64], ids=["pickle", "empty", "noise"])
def test_corrupt_weights(content, tmp_path):
    make(Simplex()).save(tmp_path)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it is damaged, or comes from another save"):
        Classifier.load(tmp_path)
    edit(tmp_path, weights={"sha256": hashlib.sha256(content).hexdigest(), "shared": {}})
    with pytest.raises(ValueError, match="expected safetensors in"):
        Classifier.load(tmp_path)


def test_one_flipped_bit_is_noticed(tmp_path):
    make(Simplex()).save(tmp_path)
    path = tmp_path / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="SHA-256 differs"):
        Classifier.load(tmp_path)


def test_shared_names_must_exist(tmp_path):
    make(Simplex()).save(tmp_path)
    digest = json.loads((tmp_path / "classifier.json").read_text())["weights"]["sha256"]
    edit(tmp_path, weights={"sha256": digest, "shared": {"network.extra": "network.none"}})
    with pytest.raises(ValueError, match=r"'network\.extra' shares its tensor with 'network\.none', which is not in"):
        Classifier.load(tmp_path)


def test_bad_arguments(tmp_path):
    network = models.MLP(8, (), 3)
    with pytest.raises(TypeError, match=r"expected a link, got SquareLoss.*pass criterion\.link"):
        Classifier(network, SquareLoss())
    with pytest.raises(TypeError, match=r"expected a link, .*pass one of Simplex\(\)"):
        Classifier(network, Simplex)
    with pytest.raises(TypeError, match=r"expected preprocess to be an nn\.Module, got function"):
        Classifier(network, Simplex(), inputs)
    with pytest.raises(TypeError, match="expected class names to be strings or numbers, got None"):
        Classifier(network, Simplex(), classes=[None, 1, 2])
    with pytest.raises(ValueError, match="expected 2 scores, one for each name in classes, got 3"):
        Classifier(network, Simplex(), classes=["yes", "no"])(inputs())
    with pytest.raises(TypeError, match="expected the network to return a tensor of outputs, got tuple"):
        Classifier(nn.LSTM(8, 3), Simplex())(inputs())
    with pytest.raises(ValueError, match=r"expected mean and std of one shape, \(\) or \(C,\), got \(2,\) and \(3,\)"):
        Standardize([0.0, 0.0], [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"expected std > 0, got 0\.0; set it to 1 where a feature is constant"):
        Standardize([0.0, 0.0], [1.0, 0.0])
    with pytest.raises(ValueError, match=r"expected inputs \(N, 3, \.\.\.\), got \(2, 32, 32, 3\)"):
        Standardize([0.0] * 3, [1.0] * 3)(torch.zeros(2, 32, 32, 3))
    with pytest.raises(TypeError, match=r"expected inputs as a tensor, got a NumPy array; use torch\.as_tensor"):
        Classifier(network, Simplex())(inputs().numpy())
    with pytest.raises(TypeError, match=r"expected the data as a tensor, got ndarray; use torch\.as_tensor"):
        Standardize.from_data(inputs().numpy())
    with pytest.raises(ValueError, match=r"expected data of shape \(N, C, \.\.\.\) with N >= 1, got \(0, 8\)"):
        Standardize.from_data(inputs()[:0])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_standardizes_nothing(wrong):
    x = inputs()
    x[0, 1] = wrong
    words = "expected finite mean and std, got NaN or infinity at feature {}; fill or drop such values"
    with pytest.raises(ValueError, match=words.format(1)):
        Standardize.from_data(x)
    for mean, std in ((wrong, 1.0), (0.0, wrong)):
        with pytest.raises(ValueError, match=words.format(0)):
            Standardize(mean, std)


def test_links_and_state_that_cannot_be_saved(tmp_path):
    class Own(Softmax):
        pass

    class Chatty(models.MLP):
        def get_extra_state(self):
            return {"note": "hello"}

    with pytest.raises(TypeError, match="expected a link that can be saved, one of Simplex, OneHot, Softmax"):
        Classifier(models.MLP(8, (), 3), Own()).save(tmp_path)
    with pytest.raises(TypeError, match=r"expected a network whose state is tensors, got dict at 'network\._extra_state'"):
        Classifier(Chatty(8, (), 3), Softmax()).save(tmp_path)
    assert os.listdir(tmp_path) == []
