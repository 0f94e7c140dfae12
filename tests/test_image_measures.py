"""What is measured of image networks, against closed forms and other people's software."""

import json
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from squareloss import Classifier, metrics, models
from squareloss.attacks import EtaScores, gaussian_noise
from squareloss.calibrators import Asinh, Temperature
from squareloss.lab.data.dataset import Split
from squareloss.lab.studies.images import beyond, measures, networks, plan
from squareloss.simplex import vertices


def test_notes_are_kept_and_find_only_once(tmp_path):
    notes = measures.Notes(tmp_path)
    assert notes.once("a", lambda: {"value": 1})["value"] == 1
    again = measures.Notes(tmp_path)
    assert again.once("a", lambda: pytest.fail("found before"))["value"] == 1
    assert "seconds" in json.loads((tmp_path / "notes.json").read_text())["a"]


def test_the_share_that_is_done_grows_within_the_outputs_and_from_noise_to_noise(tmp_path):
    network, told = models.build({"name": "resnet8", "outputs": 3, "width": 4}).eval(), []
    x, y = torch.zeros(2500, 3, 4, 4, dtype=torch.uint8), torch.arange(2500) % 3
    loss = plan.make_loss({"name": "simplex", "radius": 3})
    model, facts = Classifier(network, loss.link).eval(), dict.fromkeys(("seconds", "wall", "side_by_side"), 1)
    data = SimpleNamespace(test=Split(x, y), std=torch.ones(3))
    net = networks.Trained(
        network, model, loss, data, {**facts, "curve": [{"epoch": 0, "loss": 1.0, "train_accuracy": 1.0}]}, ""
    )
    found = measures.clean(net, {"noise": [0.1, 0.4, 0.7]}, 0, measures.Notes(tmp_path, told.append))
    assert told == pytest.approx([0.1, 0.2, 0.25, 0.25, 0.5, 0.75, 1])
    alone = gaussian_noise(model, x.float(), y, [0.1, 0.4, 0.7], channel_std=data.std, seed=0)
    assert [found["noise_0.1"], found["noise_0.4"], found["noise_0.7"]] == found["noise"]["accuracy"] == alone.accuracy


def test_broken_images_survive_being_written():
    mask = torch.rand(1003, generator=torch.Generator().manual_seed(0)) < 0.3
    assert torch.equal(measures._unpacked(measures._packed(mask), 1003), mask)


def test_autoattack_on_eta_in_two_parts_is_autoattack_on_eta(tmp_path):
    """A linear model, whose scores have another scale than its eta: the same images stand, also if it is begun again."""
    generator = torch.Generator().manual_seed(0)
    loss = plan.make_loss({"name": "simplex", "radius": 40})
    x, y = torch.rand(40, 3, 4, 4, generator=generator), torch.randint(0, 5, (40,), generator=generator)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 5)).eval()
    for p in model.parameters():
        p.data = 0.8 * torch.randn(p.shape, generator=generator)
    y = torch.where(torch.rand(40, generator=generator) < 0.9, model(x).argmax(1), y)
    net = networks.Trained(model, model, loss, None, {}, "")
    names = ["apgd-ce", "apgd-t"]
    for eps in (0.02, 0.05):
        scores = measures._record(lambda eps=eps: measures.autoattack(model, x, y, eps, attacks=names))
        paths = [tmp_path / f"{eps}{part}.safetensors" for part in "ab"]
        found = measures._on_eta(net, x, y, eps, names, 0, scores, paths)
        assert paths[0].exists() and measures._on_eta(net, x, y, eps, names, 0, scores, paths) == found
        whole = measures.autoattack(EtaScores(model, loss.link).eval(), x, y, eps, attacks=names)
        assert torch.equal(measures._unpacked(found["broken"], 40), whole.broken) and 0 < found["robust"] < 1


def test_on_eta_only_that_is_attacked_again_which_scores_leave_open(monkeypatch):
    """Attacks by a table: cross-entropy breaks other images on eta than on scores, what knows no scale breaks the same ones."""
    on_scores, on_eta, other = torch.rand(3, 200, generator=torch.Generator().manual_seed(0)) < 0.5
    net = networks.Trained(nn.Identity(), nn.Identity(), plan.make_loss({"name": "simplex", "radius": 5}), None, {}, "")
    x, y, asked = torch.arange(200.0).unsqueeze(1), torch.zeros(200, dtype=torch.long), []

    def fake(model, x, y, eps, *, attacks, **options):
        rows = x[:, 0].long()
        asked.append((attacks, rows.tolist()))
        ce = (on_eta if model is net.eta else on_scores)[rows] & ("apgd-ce" in attacks)
        broken = ce | other[rows] & ("square" in attacks)
        by = ["apgd-ce" if first else "square" if any_ else "" for first, any_ in zip(ce, broken, strict=True)]
        return SimpleNamespace(broken=broken, attack=by, robust_accuracy=1 - float(broken.float().mean()), passes=0)

    monkeypatch.setattr(measures, "autoattack", fake)
    scores = measures._record(lambda: measures.autoattack(net.model, x, y, 0.1, attacks=["apgd-ce", "square"]))
    assert torch.equal(measures._unpacked(scores["broken"], 200), on_scores | other)
    found = measures._on_eta(net, x, y, 0.1, ["apgd-ce", "square"], 0, scores)
    assert torch.equal(measures._unpacked(found["broken"], 200), on_eta | other)
    left = (on_scores & ~on_eta).nonzero().flatten().tolist()
    assert asked[1:] == [(["apgd-ce"], list(range(200))), (["square"], left)]


@pytest.mark.parametrize("loss", [{"name": "ce"}, {"name": "simplex", "radius": 4}], ids=lambda loss: loss["name"])
def test_robust_shares_of_a_linear_model_are_the_exact_ones(tmp_path, loss):
    """A point breaks beyond the least of its margins, each over the sum of the slopes' sizes; the box is far."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(100, 156, (30, 3, 2, 2), generator=generator, dtype=torch.uint8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    model[1].weight.data = torch.randn(4, 12, generator=generator)
    model[1].bias.data = -model[1].weight.sum(1) / 2
    rows = torch.arange(30)
    with torch.no_grad():
        scores = model(x.float() / 255)
        y = torch.where(rows % 10 > 0, scores.argmax(1), scores.argmin(1))
        slopes = (model[1].weight[y].unsqueeze(1) - model[1].weight).abs().sum(2)
        radius = (scores[rows, y].unsqueeze(1) - scores) / slopes.clamp_min(1e-9)
    radius = 255 * radius.index_put((rows, y), torch.tensor(torch.inf)).amin(1)
    level = 4
    assert (radius / level - 1).abs().min() > 0.01
    net = networks.Trained(model, model, plan.make_loss(loss), SimpleNamespace(test=Split(x, y)), {}, "")
    settings = {"levels": [level, 8], "steps": 20, "points": None, "attacks": ["apgd-ce", "apgd-t"]}
    found = {}
    for name in ("under_pgd", "under_worst_case", "under_autoattack"):
        (tmp_path / name).mkdir()
        found |= getattr(measures, name)(net, settings, 0, notes := measures.Notes(tmp_path / name))
        assert notes.total == len(notes.found), "so the share that is done grows evenly, to all of it"
    exact = float((radius > level).double().mean())
    assert 0.1 < exact < 0.9
    for key in ("pgd_least", "worst", "autoattack", "least", *(["autoattack_eta"] if loss["name"] == "simplex" else [])):
        assert found[f"{key}_{level}"] == pytest.approx(exact), key


def test_each_half_is_read_by_the_temperature_of_the_other(tmp_path, monkeypatch):
    """Scores of one half are multiplied by five: the other half's temperature is then five times too small for them."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2000, 5, generator=generator) * 2
    labels = torch.distributions.Categorical(logits=outputs).sample()
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    outputs[order[:1000]] *= 5
    probabilities, fitted = measures.crossed(outputs, labels, lambda rows: Temperature().fit(outputs[rows], labels[rows]))
    first, second = (one.state()["temperature"] for one in fitted)
    assert second / first == pytest.approx(5, rel=0.3)
    assert torch.allclose(probabilities[order[:1000]], torch.softmax(outputs[order[:1000]] / first, 1), atol=1e-5)
    monkeypatch.setattr(measures, "_outputs", lambda net, notes: outputs)
    data = SimpleNamespace(test=SimpleNamespace(y=labels))
    net = networks.Trained(nn.Identity(), None, plan.make_loss({"name": "ce"}), data, {}, "")
    found = measures._readings(net, measures.Notes(tmp_path))
    assert found["temperature"] == pytest.approx(float(first + second) / 2, rel=1e-3)
    for reading, read in {"": torch.softmax(outputs, 1), "+temperature": probabilities}.items():
        assert found["readings"][reading]["ece"] == pytest.approx(float(metrics.ece(read, labels)), abs=1e-4)
    assert found["accuracy"] == float((outputs.argmax(1) == labels).double().mean())


def test_readings_of_eta_and_of_calibrators(tmp_path, monkeypatch):
    """Outputs 0.1 beyond the code: projected they are sure, renormalised not; calibrators know how often they err."""
    labels = torch.arange(400) % 4
    seen = torch.where(torch.arange(400) % 20 < 1, (labels + 1) % 4, labels)  # one in twenty is wrong
    loss = plan.make_loss({"name": "simplex", "radius": 4})
    eta = torch.full((400, 4), -0.075).scatter(1, seen[:, None], 1.1).scatter(1, ((seen + 1) % 4)[:, None], 0.05)
    eta += 1e-3 * torch.randn(eta.shape, generator=torch.Generator().manual_seed(0))
    outputs = (eta - 0.25) * 4 / 0.75**0.5
    monkeypatch.setattr(measures, "_outputs", lambda net, notes: outputs)
    data = SimpleNamespace(test=SimpleNamespace(y=labels))
    net = networks.Trained(nn.Identity(), None, loss, data, {}, "")
    found = measures.more_readings(net, {}, 0, measures.Notes(tmp_path))["readings"]
    assert metrics.ece(loss.probabilities(outputs), labels) == pytest.approx(0.05, abs=2e-3)
    assert found["+renormalised"]["ece"] == pytest.approx(1 / 1.05 - 0.95, abs=1e-3)
    assert found["+isotonic"]["ece"] < 0.02
    bent, _ = measures.crossed(outputs, labels, lambda rows: Asinh().fit(outputs[rows], labels[rows]))
    assert found["+asinh"]["ece"] == pytest.approx(float(metrics.ece(bent, labels)), abs=1e-6)
    assert found["+asinh"]["ece"] < 0.02
    soft = networks.Trained(nn.Identity(), None, plan.make_loss({"name": "ce"}), data, {}, "")
    assert list(measures.more_readings(soft, {}, 0, measures.Notes(tmp_path))["readings"]) == ["+asinh", "+isotonic"]


def test_looking_at_features_leaves_a_network_in_eval_mode():
    network = models.build({"name": "resnet8", "outputs": 3, "width": 4}).eval()
    beyond.outputs_of(beyond._Features(network), torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    assert not any(module.training for module in network.modules())


def test_auroc_is_that_of_scikit_learn_with_ties():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randint(2, 9, (300,), generator=generator), torch.randint(0, 7, (200,), generator=generator)
    expected = roc_auc_score([1] * 300 + [0] * 200, torch.cat([a, b]).numpy())
    assert beyond.auroc(a, b) == pytest.approx(expected)
    assert beyond.auroc(torch.ones(3), torch.zeros(4)) == 1 and beyond.auroc(torch.ones(3), torch.ones(4)) == 0.5


def test_other_images_are_told_by_a_lower_probability_or_score(monkeypatch):
    """The highest score of test images is farther above the mean; two of three are no surer by softmax; shifts tell nothing."""
    scores = {
        "test": torch.tensor([[4.0, 0, 0, 0], [9, 9, 0, 0], [8, 8, 0, 0]]),
        "other": torch.tensor([[31.0, 31, 30, 30]] * 2),
    }
    monkeypatch.setattr(beyond, "outputs_of", lambda network, x, preprocess: scores[x])
    monkeypatch.setattr(beyond, "read", lambda spec: SimpleNamespace(test=SimpleNamespace(x=spec["name"])))
    data, model = SimpleNamespace(test=SimpleNamespace(x="test")), SimpleNamespace(preprocess=None)
    net = networks.Trained(nn.Identity(), model, plan.make_loss({"name": "ce"}), data, {}, "")
    found = beyond._outside(net, {"name": "other"})
    probability = {name: torch.softmax(values, 1).amax(1) for name, values in scores.items()}
    assert found["auroc_probability"] == beyond.auroc(probability["test"], probability["other"])
    assert found["auroc_score"] == 1 and found["outside_images"] == 2


def test_collapsed_features_have_zero_collapse_measures_and_spread_gives_nc1_in_closed_form():
    """Means on a simplex of radius a, spread s along every axis: NC1 = s^2 (K-1)^2 / (K a^2)."""
    classes, dim, radius, spread = 5, 8, 3.0, 0.2
    means = torch.zeros(classes, dim, dtype=torch.float64)
    means[:, :classes] = vertices(classes, radius)
    labels = torch.arange(classes).repeat_interleave(2 * dim)
    moves = spread * dim**0.5 * torch.cat([torch.eye(dim), -torch.eye(dim)]).double()  # covariance spread^2 I
    shift = torch.full((dim,), 7.0, dtype=torch.float64)
    features = means[labels] + moves.repeat(classes, 1) + shift
    found = beyond.neural_collapse(features, labels, 0.3 * means + 2.0, labels)
    assert found["nc1"] == pytest.approx(spread**2 * (classes - 1) ** 2 / (classes * radius**2))
    assert found["nc2_norms"] == pytest.approx(0, abs=1e-12) and found["nc2_angles"] == pytest.approx(0, abs=1e-12)
    assert found["nc3"] == pytest.approx(0, abs=1e-12) and found["nc4"] == 0
    turned = beyond.neural_collapse(features, labels, -means, (labels + 1) % classes)
    assert turned["nc3"] == pytest.approx(2) and turned["nc4"] == 1  # the opposite direction, and every class wrong
    uneven = beyond.neural_collapse(means[labels] * (1 + labels[:, None]), labels, means, labels)
    assert uneven["nc2_norms"] > 0.1


def test_no_example_carries_over_where_no_image_is_right(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval()
    nn.init.zeros_(model[1].weight)
    model[1].bias.data = torch.tensor([1.0, 0.0])
    test = Split(torch.zeros(5, 3, 2, 2, dtype=torch.uint8), torch.ones(5, dtype=torch.int64))
    net = networks.Trained(model, model, None, SimpleNamespace(test=test), {}, "")
    settings = {"levels": [2, 8], "steps": 3, "points": None}
    assert beyond.transfer(net, net, settings, 0, measures.Notes(tmp_path)) == {"points": 0, "timings": {}}


def test_examples_are_made_on_the_source_and_tried_on_the_other(tmp_path):
    """Each of two models looks at a channel of its own: what misleads one says nothing to the other; a third looks at both."""
    x = torch.randint(120, 136, (40, 2, 1, 1), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    first, second, both = (nn.Sequential(nn.Flatten(), nn.Linear(2, 2)).eval() for _ in range(3))
    for model, weight in ((first, (1.0, 0.0)), (second, (0.0, 1.0)), (both, (1.0, 0.5))):
        model[1].weight.data, model[1].bias.data = torch.tensor([(0.0, 0.0), weight]), torch.tensor([0.5 * sum(weight), 0.0])
    y = first(x.float() / 255).argmax(1)
    data = SimpleNamespace(test=Split(x, y))
    nets = {name: networks.Trained(m, m, None, data, {}, "") for name, m in (("1", first), ("2", second), ("3", both))}
    settings = {"levels": [1, 16], "steps": 10, "points": 40}

    def found(net, source):
        folder = tmp_path / f"{net}{source}"
        folder.mkdir()
        return beyond.transfer(nets[net], nets[source], settings, 0, measures.Notes(folder))

    same, other, wider = found("1", "1"), found("1", "2"), found("1", "3")
    assert same["points"] == 40 and same["transfer_16"] == same["source_16"] == 0 < same["transfer_1"] < 1
    assert other["points"] == int((second(x.float() / 255).argmax(1) == y).sum()) < 40, "of the images that both have right"
    assert (other["transfer_16"], other["source_16"]) == (1, 0)
    assert wider["transfer_16"] == 0, "it moves the first channel too"


def test_the_strongest_example_of_a_linear_model_is_a_corner_of_the_ball():
    weight = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 1.0, 1.0]])
    model = nn.Linear(3, 2, bias=False)
    model.weight.data = weight
    x, y = torch.full((2, 3), 0.5), torch.tensor([0, 1])
    moved = beyond.strongest(model, x, y, 0.1, 10)
    assert torch.allclose(moved - x, 0.1 * torch.stack([weight[1] - weight[0], weight[0] - weight[1]]).sign())
    edge = beyond.strongest(model, torch.ones(1, 3), y[:1], 0.1, 10)
    assert edge.max() <= 1 and edge.min() >= 0.9 - 1e-6
