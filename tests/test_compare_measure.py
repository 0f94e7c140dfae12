"""What compare measures on a trained network: readings, noise, attacks, distances, and their replicates."""

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from squareloss import metrics
from squareloss.calibrators import Asinh
from squareloss.lab.data import load
from squareloss.lab.data.dataset import drawn
from squareloss.lab.studies.common import fit_temperature
from squareloss.lab.studies.compare import ingredients, measure
from squareloss.lab.studies.compare.ingredients import LOSSES, Source
from squareloss.lab.training.loop import Run, outputs_of, train
from squareloss.lab.training.recipes import Recipe
from test_compare import csv_file

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained():
    data = load("digits", validation=0.2)
    found = {}
    for name in ("ce", "simplex"):
        network = ingredients.build({"name": "mlp", "inputs": 64, "hidden": [32], "outputs": 10}, (1, 8, 8), 10, 0)
        loss = LOSSES[name](10)
        recipe = Recipe(epochs=6, batch_size=64, lr=0.1, schedule="linear", augment=False, precision="float32")
        train(Run(network, loss, recipe, 0, data.train.x, data.train.y, measure.Standardize(data.mean, data.std)))
        result = measure.measure(network, loss, data, noise=(1e-6, 0.5), eps=(0.1, 0.02), attacked=60, steps=5, seed=0)
        found[name] = (network, loss, result)
    return data, found


@pytest.mark.parametrize("name", ["ce", "simplex"])
def test_what_is_measured_agrees_with_itself(trained, name):
    data, found = trained
    network, loss, result = found[name]
    outputs = outputs_of(network, data.test.x, preprocess=measure.Standardize(data.mean, data.std))
    accuracy = float((loss.link.predict(outputs) == data.test.y).double().mean())
    assert result["accuracy"] == pytest.approx(accuracy)
    rows = drawn(data.test.n, 60)
    assert result["attacks"]["clean"] == float((loss.link.predict(outputs) == data.test.y)[rows].double().mean())
    assert result["noise"]["accuracy"][0] == pytest.approx(accuracy)  # noise of 1e-6 changes nothing
    softened = torch.softmax(loss.link.scores(outputs).double() / result["temperature"], 1)
    assert result["nll_temperature"] == pytest.approx(float(metrics.nll(softened, data.test.y)), rel=1e-5)
    held = outputs_of(network, data.validation.x, preprocess=measure.Standardize(data.mean, data.std))
    assert result["temperature"] == float(fit_temperature(loss, held, data.validation.y)[0].state()["temperature"])
    bent = Asinh().fit(loss.link.scores(held), data.validation.y).transform(loss.link.scores(outputs))
    for suffix, p in (("", loss.probabilities(outputs)), ("+temperature", softened), ("+asinh", bent)):
        reading = result["readings"][suffix]
        bins = {key: np.array(values) for key, values in reading["reliability"].items()}
        assert bins["count"].sum() == data.test.n
        ece = (bins["count"] * np.abs(bins["accuracy"] - bins["confidence"])).sum() / data.test.n
        assert reading["ece"] == pytest.approx(ece, abs=1e-5) == pytest.approx(float(metrics.ece(p, data.test.y)), abs=1e-5)
        assert reading["brier"] == pytest.approx(float(metrics.brier(p, data.test.y)), rel=1e-5)


def test_only_square_losses_have_a_share_outside(trained):
    _, found = trained
    assert "outside" not in found["ce"][2]["readings"][""]
    assert 0 < found["simplex"][2]["readings"][""]["outside"] < 1


@pytest.mark.parametrize("name", ["ce", "simplex"])
def test_the_worst_case_is_the_worst(trained, name):
    attacks = trained[1][name][2]["attacks"]
    assert attacks["points"] == 60 and attacks["eps"] == [0.02, 0.1]
    assert attacks["robust"]["worst case"][0] > attacks["robust"]["worst case"][1], "the smaller radius first, as asked or not"
    for standing in attacks["robust"].values():
        assert attacks["clean"] >= standing[0] >= standing[1]
        assert all(low <= high for low, high in zip(attacks["robust"]["worst case"], standing, strict=True))
    assert ("residual" in attacks["robust"]) == (name == "simplex")
    assert trained[1][name][2]["robust_0.1"] == attacks["robust"]["worst case"][1]


def test_replicates_scatter_about_the_value_and_are_of_the_same_draws(trained):
    ce, simplex = (trained[1][name][2] for name in ("ce", "simplex"))
    for key in ("accuracy", "nll_temperature", "robust_0.02", "noise_0.5"):
        means = np.array(ce["replicates"][key])
        assert len(means) == measure.BOOTSTRAP
        assert abs(means.mean() - ce[key]) < 4 * means.std() / math.sqrt(len(means)) + 1e-6
    together = np.corrcoef(ce["replicates"]["accuracy"], simplex["replicates"]["accuracy"])[0, 1]
    assert together > 0.3  # the points that are hard for one are hard for the other


@pytest.mark.parametrize("scale", [0.2, 5.0])
def test_a_learning_rate_is_judged_at_the_best_temperature(scale):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(300, 4, generator=generator)
    labels = torch.where(torch.rand(300, generator=generator) < 0.5, outputs.argmax(1), torch.arange(300) % 4)
    nll = min(float(torch.nn.functional.cross_entropy(outputs / t, labels)) for t in torch.logspace(-1, 1, 200))
    judged = measure.validation_score(LOSSES["ce"](4), scale * outputs, labels)
    assert judged == pytest.approx((float((outputs.argmax(1) == labels).double().mean()), nll), abs=1e-3)


def test_replicates_are_of_the_seed_and_spread_as_the_mean_does():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, same, other = (measure._replicates({"a": values}, seed)["a"] for seed in (0, 0, 1))
    assert one == same and abs(np.corrcoef(one, other)[0, 1]) < 0.25
    assert np.std(one) == pytest.approx(float(values.std()) / 20, rel=0.2)


def test_where_no_temperature_is_best_a_weak_prior_decides_at_any_scale_of_the_scores():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    right = torch.eye(4)[labels] + 0.1 * torch.randn(200, 4, generator=g)
    size = (right - right.mean(1, keepdim=True)).square().mean().sqrt().item()
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (1.0, 100.0):
            temperature, fitted = fit_temperature(LOSSES["ce"](4), scale * right, labels)
            found.append(temperature.state()["temperature"] / scale)
            p = temperature.transform(scale * right)
            assert not fitted and 0.99 < p.gather(1, labels[:, None]).mean() < 0.9999, "sure, within reason"
        turned, fitted = fit_temperature(LOSSES["ce"](4), right, (labels + 1) % 4)
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    cost = lambda T: torch.nn.functional.cross_entropy(right / T, labels) + math.log(size / T) ** 2 / (18 * 200)
    assert cost(found[0]) < min(cost(0.98 * found[0]), cost(1.02 * found[0]))
    assert not fitted and turned.transform(right).max() < 0.3, "scores that point away say next to nothing"
    _, fitted = fit_temperature(LOSSES["ce"](4), right, torch.where(torch.arange(200) < 20, (labels + 1) % 4, labels))
    assert fitted


def test_noise_and_moves_leave_constant_columns_alone(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,same,none,y\n" + "".join(f"{i},3.3,0,{i % 2}\n" for i in range(40)))
    assert measure.varying(load(path, "y")).tolist() == [1, 0, 0]
    path.write_text("same,y\n" + "".join(f"3.3,{i % 2}\n" for i in range(40)))
    assert measure.varying(load(path, "y")).tolist() == [1]


def classifier(network, loss, data):
    return measure.Classifier(network, loss.link, measure.Standardize(data.mean, data.std)).eval()


def test_noise_and_moves_leave_categories_alone(tmp_path):
    data = Source(str(csv_file(tmp_path)), "label").read(0)
    assert dict(zip(data.features, measure.varying(data).tolist(), strict=True)) == {
        "a": 1,
        "b": 1,
        "colour=blue": 0,
        "colour=red": 0,
    }
    assert measure.varying(load("digits")).shape == ()
    reader = torch.nn.Linear(4, 2)  # sees the colour alone
    reader.weight.data = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    model = classifier(reader, LOSSES["ce"](2), data)
    right = measure._noise(model, data, [0.0, 50.0], seed=0)
    assert 0 < right[0].mean() < 1 and torch.equal(right[0], right[1])
    found = measure._distances(model, data, torch.arange(data.test.n), seed=0)
    assert set(found["distances"]["radius"]) == {0.0, math.inf}, "no move changes the colour"


def test_the_margin_of_a_linear_network_is_the_median_of_its_distances(tmp_path):
    data = Source(str(csv_file(tmp_path)), "label").read(0)
    network, scale, rows = torch.nn.Linear(4, 2), measure.Standardize(data.mean, data.std), torch.arange(1, 23)
    network.weight.data, network.bias.data = torch.tensor([[-1.0, 2.0, 0.5, 0.0], [0.0] * 4]), torch.tensor([0.1, 0.0])
    found = measure._distances(classifier(network, LOSSES["ce"](2), data), data, rows, seed=0)
    lead = network(scale(data.test.x[rows])).detach().diff().squeeze(1) * (2 * data.test.y[rows] - 1)  # of the right class
    exact = (lead.clamp_min(0) / math.sqrt(5)).sort().values.tolist()  # no move changes the colour
    assert found["margin"] == pytest.approx(exact[10], rel=2e-3)  # what half of the 22 points do not reach
    radius = found["distances"]["radius"]
    assert [radius[0], radius[20], radius[40]] == pytest.approx([exact[0], exact[10], exact[21]], rel=2e-3)
    assert exact[9] < exact[10] < 0.99 * exact[11]
    assert len(set(found["replicates"]["margin"])) <= 22, "of medians, each the distance of a point"


def test_noise_is_gaussian_of_the_seed_and_only_its_size_differs():
    data, seen = load("digits"), []

    class Recorder(torch.nn.Linear):
        def forward(self, x):
            seen.append(x)
            return super().forward(x.flatten(1))

    model = classifier(Recorder(64, 10), LOSSES["ce"](10), data)
    for seed in (0, 1):
        measure._noise(model, data, [0.5, 1.0], seed)
    small, large, *others = (x - model.preprocess(data.test.x.float() / 255) for x in seen)
    torch.testing.assert_close(large, 2 * small, rtol=0, atol=1e-5)
    assert float(small.mean()) == pytest.approx(0, abs=0.02) and float(small.std()) == pytest.approx(0.5, rel=0.02)
    assert not torch.allclose(others[0], small, atol=0.1)


def test_a_network_with_dropout_is_measured_as_it_predicts(tmp_path):
    data = Source(str(csv_file(tmp_path)), "label").read(0)
    network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    network[1].weight.data, network[1].bias.data = torch.tensor([[-1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0]]), torch.zeros(2)
    options = {"noise": (0.5,), "eps": (), "attacked": 20, "steps": 5, "seed": 0}
    first, again = (measure.measure(network.train(), LOSSES["ce"](2), data, **options) for _ in range(2))
    assert first == again and 0 < first["margin"] < math.inf


def test_the_worst_case_counts_what_any_attack_breaks(monkeypatch):
    """Each attack breaks another point, the adaptive suite none that is left: all of these are lost."""
    data = load("digits", validation=0.2)
    network = ingredients.build({"name": "mlp", "inputs": 64, "hidden": [8], "outputs": 10}, (1, 8, 8), 10, 0)
    broken = {"ce": 0, "margin": 1, "angle": 2}

    def one(model, x, y, radius, *, loss, **options):
        told.append((options["steps"], options["seed"]))
        return SimpleNamespace(broken=torch.arange(len(x)) == broken[loss])

    def none(model, x, y, radius, **options):
        told.append(options)
        return SimpleNamespace(result=SimpleNamespace(broken=torch.zeros(len(x), dtype=torch.bool)))

    monkeypatch.setattr(measure, "pgd", one)
    monkeypatch.setattr(measure, "worst_case", none)
    model, heard, told = classifier(network, LOSSES["ce"](10), data), [], []
    found = measure._attacks(model, data, torch.arange(10), [0.1], 5, 7, heard.append)
    assert told == [(5, 7), (5, 7), (5, 7), {"report": False, "seed": 7}]
    assert found["attacks"]["robust"] == {"ce": [0.9], "margin": [0.9], "angle": [0.9], measure.WORST: [0.7]}
    assert found["robust_0.1"] == 0.7 and heard == [1.0]


def test_two_classes_are_not_attacked_by_the_angle():
    """It has no gradient there, and a curve of it would look robust."""
    data = load("digits", validation=0.2)
    halved = {part: getattr(data, part)._replace(y=getattr(data, part).y % 2) for part in ("train", "validation", "test")}
    data = replace(data, classes=("even", "odd"), **halved)
    network = ingredients.build({"name": "mlp", "inputs": 64, "hidden": [8], "outputs": 2}, (1, 8, 8), 2, 0)
    model = classifier(network, LOSSES["simplex"](2), data)
    found = measure._attacks(model, data, torch.arange(10), [0.1], 5, 7, lambda share: None)
    assert list(found["attacks"]["robust"]) == ["ce", "margin", "residual", measure.WORST]
