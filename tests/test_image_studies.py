"""The image studies: which cells there are, networks trained once, results that grow, and measures with closed forms."""

import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from squareloss import models
from squareloss.attacks import EtaScores
from squareloss.lab import studies
from squareloss.lab.report import write
from squareloss.lab.report.header import Header
from squareloss.lab.report.views import image_rows, images, paper_images
from squareloss.lab.runs import Cell, Context, Job, Result, Store, execute, expand
from squareloss.lab.studies import run
from squareloss.lab.studies.images import beyond, measures, networks, plan, study
from squareloss.lab.studies.images.data import read, stand_in
from squareloss.lab.training import captured
from squareloss.lab.training.loop import Diverged
from squareloss.simplex import vertices

FIGURES = Path(__file__).parents[1] / "docs" / "figures" / "images.py"
NAMES = ("table1", "gaussian_noise", "reliability", "adversarial_training", "codings", "beyond_paper")


def smoke(name, folder, cells="", **options):
    """Run some cells of a study and give their metrics by cell."""
    chosen = studies.get(name)
    kept = run.chosen(chosen, "smoke", cells or None)
    outcome = execute(kept, "smoke", [0], Store(folder), **options)
    assert not outcome.failures, outcome.message()
    run.header_of(chosen, "smoke", [0]).write(Store(folder))
    return {record.cell: record.metrics for record in outcome.records}


@pytest.fixture
def trained(monkeypatch):
    """How many networks each call trains."""
    calls, train = [], captured.train
    monkeypatch.setattr(captured, "train", lambda runs, device: calls.append(len(runs)) or train(runs, device))
    return calls


# what there is to run


@pytest.mark.parametrize("recipe", ["paper", "short", "fast"])
@pytest.mark.parametrize("name", NAMES)
def test_cells_are_unique_and_networks_and_recipes_can_be_built(name, recipe):
    chosen = run.with_settings(studies.get(name), [f"recipe={recipe}"])
    pickle.loads(pickle.dumps(chosen))
    for scale in ("smoke", "laptop", "paper"):
        assert expand(chosen, scale, [0, 1])
    for cell in chosen.cells("paper"):
        made = plan.make_recipe(cell.spec["recipe"])
        assert cell.gpus == 1 and (made.epochs == 200) == (recipe == "paper")
        loss, data = plan.make_loss(cell.spec["loss"]), cell.spec["data"]["name"]
        assert cell.spec["network"]["outputs"] == plan.CLASSES[data]
        if cell.spec["loss"]["name"] == "simplex" and "r1" not in cell.name:
            assert loss.link.radius == plan.CLASSES[data] and loss.scale == 1


def test_the_papers_networks_can_be_built():
    specs = {json.dumps(cell.spec["network"]) for name in NAMES for cell in studies.get(name).cells("paper")}
    assert len(specs) == 4
    for spec in map(json.loads, specs):
        with torch.device("meta"):
            assert models.build(spec)(torch.zeros(2, 3, 32, 32)).shape == (2, spec["outputs"])


def test_studies_share_cells_and_recipes_do_not():
    hashes = {name: {cell.name: cell.hash() for cell in studies.get(name).cells("paper")} for name in NAMES}
    for name in ("gaussian_noise", "reliability"):
        assert hashes[name].items() <= hashes["table1"].items()
    assert hashes["codings"]["resnet18-cifar10-SL-clean"] == hashes["table1"]["resnet18-cifar10-SL-clean"]
    fast = {cell.hash() for cell in run.with_settings(studies.get("table1"), ["recipe=fast"]).cells("paper")}
    assert not fast & set(hashes["table1"].values())


def test_the_papers_values_belong_to_cells():
    known = {cell.name for name in NAMES for cell in studies.get(name).cells("paper")}
    assert set(paper_images.paper_cells()) <= known
    assert paper_images.values()["resnet18-cifar10-SL"]["pgd_2"] == (0.3053, 0.0092, 5, "")
    assert paper_images.values()["resnet18-cifar10-SL"]["accuracy"].std == 0.0007  # table 1 goes before the table of codings
    assert paper_images.values()["resnet18-cifar10-SL"]["autoattack_4"] == (None, None, None, "0*")
    assert paper_images.values()["resnet18-cifar10-SL-b128"]["accuracy"] == (0.1, None, 5, "*")


def test_the_stand_in_is_the_same_every_time_and_flips_keep_the_class():
    a, b = (stand_in(5, 50, 20, seed=3) for _ in range(2))
    assert torch.equal(a.train.x, b.train.x) and a.num_classes == 5 and a.train.x.shape == (50, 3, 32, 32)
    mean = torch.stack([a.train.x[a.train.y == k].float().mean(0) for k in range(5)])
    flipped = torch.cdist(mean.flip(3).flatten(1), mean.flatten(1))
    assert torch.equal(flipped.argmin(1), torch.arange(5))
    spec = {"name": "stand-in", "classes": 5, "train": 50, "test": 20, "seed": 3}
    assert read(spec) is read(dict(reversed(spec.items())))


# how it is run


def test_table1_trains_each_network_once_and_other_studies_take_its_results(tmp_path, trained):
    found = smoke("table1", tmp_path)
    assert trained == [1, 1, 1] and len(found) == 12
    clean, pgd = found["resnet18-cifar10-SL-clean"], found["resnet18-cifar10-SL-pgd"]
    assert clean["accuracy"] > 0.3  # ten classes
    assert clean["noise"]["accuracy"] == [clean[f"noise_{std}"] for std in (0.1, 0.2, 0.3, 0.4)]
    assert set(clean["readings"]) == {"", "+temperature"} and "ece_clipped" in clean["readings"][""]
    assert {m["weights"] for cell, m in found.items() if "-SL-" in cell} == {clean["weights"]}
    losses = [key for key in pgd if key.endswith("_8") and key not in ("pgd_8", "pgd_least_8")]
    assert len(losses) == 7 and pgd["pgd_8"] == pgd["pgd_softmax_probability_8"]
    assert pgd["pgd_least_8"] <= min(pgd[key] for key in losses)
    auto = found["resnet18-cifar10-SL-autoattack"]
    assert auto["least_8"] <= min(auto["autoattack_8"], auto["autoattack_eta_8"])
    assert "autoattack_eta_8" not in found["resnet18-cifar10-CE-autoattack"]
    smoke("gaussian_noise", tmp_path)
    smoke("reliability", tmp_path)
    assert len(trained) == 3
    page = write(tmp_path, "md").read_text()
    for heading in ("Accuracy and robustness", "Gaussian noise", "Calibration", "What the paper says", "Cost", "stand-in"):
        assert heading in page
    assert "0 of its 8 networks" in page and "<svg" in write(tmp_path).read_text()
    drawn = subprocess.run([sys.executable, FIGURES, tmp_path], capture_output=True, text=True, check=True).stdout
    assert [Path(line).name for line in drawn.split()] == ["images-reliability.svg", "images-robustness.svg"]
    assert "as trained, ECE" in (tmp_path / "images-reliability.svg").read_text()


def test_a_network_is_measured_later_without_training_and_trained_anew_by_force(tmp_path, trained):
    first = smoke("table1", tmp_path, "resnet18-cifar10-CE-clean")
    later = smoke("table1", tmp_path, "resnet18-cifar10-CE-worst")
    assert trained == [1]
    assert later["resnet18-cifar10-CE-worst"]["weights"] == first["resnet18-cifar10-CE-clean"]["weights"]
    smoke("table1", tmp_path, "resnet18-cifar10-CE-worst", force=True)
    assert trained == [1]  # the measure alone
    smoke("table1", tmp_path, "resnet18-cifar10-CE-clean", force=True)
    assert trained == [1, 1]


def test_networks_are_loaded_once_for_all_their_measures_and_few_are_held(tmp_path, monkeypatch):
    loaded, load = [], networks.load
    monkeypatch.setattr(networks, "load", lambda one, context: loaded.append(one.key) or load(one, context))
    smoke("table1", tmp_path, "resnet18-cifar10-SL-clean,resnet18-cifar10-SL-worst,resnet18-cifar10-CE-clean")
    assert len(loaded) == len(set(loaded)) == 2
    wanted = [networks.Wanted(Cell("network", {"task": "images", "number": i}), 0) for i in range(3)]
    monkeypatch.setattr(networks, "load", lambda one, context: one)
    shelf = networks.Shelf(Context(root=tmp_path), most=2)
    first = shelf.take(wanted[0])
    assert shelf.take(wanted[1])[0] is wanted[1] and shelf.take(wanted[0]) is first
    shelf.take(wanted[2])  # the second makes room
    assert shelf.take(wanted[0]) is first and len(shelf._kept) == 2


def test_a_stopped_training_goes_on_to_the_same_network(tmp_path):
    job = Job(studies.get("table1").cells("smoke")[0], 0)
    (one,) = networks.wanted(job)

    def stopping(one):
        def on_epoch(row):
            if row.epoch == 1:
                raise KeyboardInterrupt

        return on_epoch

    stopped, whole = Context(root=tmp_path / "stopped"), Context(root=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        networks.train([one], stopped, stopping)
    epochs = []
    networks.train([one], stopped, lambda one: lambda row: epochs.append(row.epoch))
    networks.train([one], whole, lambda one: lambda row: None)
    assert epochs == [2, 3]  # of 4
    assert networks.load(one, stopped).mark == networks.load(one, whole).mark
    assert [file.name for file in one.folder(stopped).iterdir()] == ["network.safetensors"]


def test_a_stopped_measure_goes_on(tmp_path, monkeypatch):
    """PGD is interrupted after the third loss; the second start does the other four, and nothing is lost."""
    smoke("table1", tmp_path, "resnet18-cifar10-SL-clean")
    seen, attack = [], measures.pgd

    def stopping(*args, loss, **options):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(loss)
        return attack(*args, loss=loss, **options)

    monkeypatch.setattr(measures, "pgd", stopping)
    with pytest.raises(KeyboardInterrupt):
        smoke("table1", tmp_path, "resnet18-cifar10-SL-pgd")
    before, seen[:] = list(seen), []
    monkeypatch.setattr(measures, "pgd", lambda *a, loss, **o: seen.append(loss) or attack(*a, loss=loss, **o))
    found = smoke("table1", tmp_path, "resnet18-cifar10-SL-pgd")
    assert len(before) == 3 and len(seen) == 4 and not set(before) & set(seen)
    monkeypatch.setattr(measures, "pgd", attack)
    again = smoke("table1", tmp_path, "resnet18-cifar10-SL-pgd", force=True)
    for metrics in (*found.values(), *again.values()):
        metrics.pop("timings")
    assert found == again


def test_at_most_so_many_networks_share_a_gpu_whole_seeds_first_cheap_measures_first(monkeypatch, tmp_path):
    chunks, order = [], []
    monkeypatch.setattr(study, "train", lambda chunk, context, on_epoch: chunks.append([one.seed for one in chunk]))
    monkeypatch.setattr(study, "_measure", lambda job, context, shelf: order.append(job.name) or job)
    monkeypatch.setattr(study, "_measured", lambda job, context: tmp_path / job.key)
    table1 = run.with_settings(studies.get("table1"), ["together=4"])
    cells = [c for c in table1.cells("paper") if c.name.startswith(("resnet18-cifar10-CE", "resnet18-cifar10-SL-"))]
    assert len({cell.group for cell in cells}) == 1
    list(table1.run([Job(cell, seed) for cell in cells for seed in range(3)], Context("cuda", tmp_path)))
    assert chunks == [[0, 0, 1, 1], [2, 2]]
    first = [name.rpartition("-")[2] for name in order[:16]]
    assert first == [f"{kind}/seed{seed}" for kind in ("clean", "worst", "pgd", "autoattack") for seed in (0, 0, 1, 1)]
    assert len(order) == 24


def test_networks_that_are_there_are_measured_before_others_train(monkeypatch, tmp_path):
    chunks = []
    monkeypatch.setattr(study, "train", lambda chunk, context, on_epoch: chunks.append([one.seed for one in chunk]))
    monkeypatch.setattr(study, "_measure", lambda job, context, shelf: job)
    table1, context = studies.get("table1"), Context("cuda", tmp_path)
    cells = [cell for cell in table1.cells("paper") if cell.name in ("resnet18-cifar10-CE-pgd", "resnet18-cifar10-SL-pgd")]
    (there,) = networks.wanted(Job(cells[0], 1))
    there.folder(context).mkdir(parents=True)
    (there.folder(context) / "network.safetensors").touch()
    list(table1.run([Job(cell, seed) for cell in cells for seed in range(3)], context))
    assert chunks == [[1], [0, 0, 1, 2], [2]]


def test_a_network_that_diverges_is_recorded_and_shown_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(captured, "train", lambda runs, device: [Diverged(1, 2, 0.1, []) for _ in runs])
    codings = studies.get("codings")
    outcome = execute(codings, "smoke", [0], Store(tmp_path))
    assert {record.status for record in outcome.records} == {"diverged"}
    shown = images.view(outcome.records, Header("codings", ""))
    assert "CIFAR-10 ResNet-18 SL (.1, 128), seed 0: diverged at epoch 1." in shown.sentences


def test_adversarial_training_codings_and_what_is_beyond_the_paper(tmp_path):
    found = smoke("adversarial_training", tmp_path, "*-adv7-clean,*-SL-adv3-autoattack")
    assert len(found) == 3 and "autoattack_eta_8" in found["resnet18-cifar10-SL-adv3-autoattack"]
    smoke("codings", tmp_path, "resnet18-cifar10-OH1-clean")
    found = smoke("beyond_paper", tmp_path, "*-beyond,*-from-*")
    for metrics in (m for cell, m in found.items() if cell.endswith("beyond")):
        assert metrics["nc1"] > 0 and 0 <= metrics["auroc_probability"] <= 1 and metrics["outside_images"] == 100
    carried = found["resnet18-cifar10-SL-from-CE"]
    assert 0 <= carried["transfer_8"] <= 1 and carried["points"] <= 8
    page = write(tmp_path, "md").read_text()
    assert "one-hot (1, 1)" in page and "NC1" in page and "stand examples of CE, 8/255" in page and "PGD-7" in page


# what is measured


def test_notes_are_kept_and_find_only_once(tmp_path):
    notes = measures.Notes(tmp_path, 2)
    assert notes.once("a", lambda: {"value": 1})["value"] == 1
    again = measures.Notes(tmp_path, 2)
    assert again.once("a", lambda: pytest.fail("found before"))["value"] == 1
    assert "seconds" in json.loads((tmp_path / "notes.json").read_text())["a"]


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


def test_each_half_is_read_by_the_temperature_of_the_other():
    """Scores of one half are multiplied by five: the other half's temperature is then five times too small for them."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2000, 5, generator=generator) * 2
    labels = torch.distributions.Categorical(logits=outputs).sample()
    net = networks.Trained(nn.Identity(), None, plan.make_loss({"name": "ce"}), None, {}, "")
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    outputs[order[:1000]] *= 5
    probabilities, (first, second) = measures.crossed(net, outputs, labels)
    assert second / first == pytest.approx(5, rel=0.3)
    assert torch.allclose(probabilities[order[:1000]], torch.softmax(outputs[order[:1000]] / first, 1), atol=1e-5)


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


def test_the_strongest_example_of_a_linear_model_is_a_corner_of_the_ball():
    weight = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 1.0, 1.0]])
    model = nn.Linear(3, 2, bias=False)
    model.weight.data = weight
    x, y = torch.full((2, 3), 0.5), torch.tensor([0, 1])
    moved = beyond.strongest(model, x, y, 0.1, 10)
    assert torch.allclose(moved - x, 0.1 * torch.stack([weight[1] - weight[0], weight[0] - weight[1]]).sign())
    edge = beyond.strongest(model, torch.ones(1, 3), y[:1], 0.1, 10)
    assert edge.max() <= 1 and edge.min() >= 0.9 - 1e-6


# how it is shown


def test_views_of_nothing_and_of_little_are_empty_tables():
    assert not any(make([]).rows for makers in images.VIEWS_OF.values() for make in makers)
    assert images.tally([]) == [] == images.cautions([]) and not images.robustness([]).panels


def net(line, full=True, **metrics):
    seeds = {seed: {key: values[seed] for key, values in metrics.items()} for seed in range(2)}
    return image_rows.Net(line, "200 epochs, (0.01, 32)", full, metrics=seeds)


def test_claims_follow_the_numbers():
    ce = net("resnet18-cifar10-CE", accuracy=[0.951, 0.952], ece=[0.03, 0.031], worst_2=[0.02, 0.021])
    attacks = {"softmax_probability": 0.2, "log_probability": 0.3, "angle": 0.25, "residual": 0.5}
    attacks = {f"pgd_{name}_2": [value, value] for name, value in attacks.items()}
    sl = net("resnet18-cifar10-SL", accuracy=[0.94, 0.941], ece=[0.01, 0.011], worst_2=[0.019, 0.022], **attacks)
    told = {(row[0].text, row[1].text): row[3].text for row in images.claims([ce, sl]).rows}
    where, pair = "ResNet-18, CIFAR-10, {}", "ResNet-18, CIFAR-10"
    assert told[where.format("CE"), "accuracy 95.15 (0.11), to within half a point"] == "holds"
    assert told[where.format("SL"), "accuracy 95.04 (0.07), to within half a point"] == "does not hold"
    assert told[pair, "clean accuracy: SL below CE"] == "holds"
    assert told[pair, "ECE of SL below half of CE's, as trained"] == "holds"
    assert told[where.format("SL"), "attacks at 2/255: angle far better than square loss"] == "holds"
    assert told[where.format("SL"), "attacks at 2/255: L1, softmax_probability, is the best"] == "holds"
    assert told[pair, "SL stands more at 2/255, worst case (not in the paper)"] == "not told apart"
    # what asks more than the paper does is no claim of it
    assert images.tally([ce, sl]) == ["Claims of the paper that could be tried: 7. Hold here: 6; do not: 1; not told apart: 0."]
    weaker = net("resnet18-cifar10-SL", **{**attacks, "pgd_angle_2": [0.1, 0.1]})
    (_, best) = images.claims([weaker]).rows
    assert best[3].text == "does not hold"


def test_the_papers_value_stands_below_ours_once():
    ours = net("resnet18-cifar10-SL", accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.001])
    first, second = images.table_1([ours]).rows
    assert first[5].text == "95.00 (1.41)" and second[5].text == "95.04 (0.07)" and second[6].text == "0*"
    shorter = net("resnet18-cifar10-SL", full=False, accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.0])
    assert len(images.table_1([ours, shorter]).rows) == 3 and len(images.table_1([shorter]).rows) == 2
    shorter.stands_in = "a small network"
    assert [row[2].text for row in images.codings([shorter]).rows] == ["SL"]


def test_tables_wider_than_long_are_turned():
    ours = net("resnet18-cifar10-SL", accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.001], pgd_2=[0.3, 0.4])
    table = images.table_1([ours])
    assert list(table.columns) == ["measure", "CIFAR-10, ResNet-18, SL", images.PAPER]
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["trained", "200 epochs, (0.01, 32)", images.PAPER],
        ["seeds", "2", "5"],
        ["clean", "95.00 (1.41)", "95.04 (0.07)"],
        ["PGD 2/255", "35.00 (7.07)", "30.53 (0.92)"],
        ["AutoAttack 4/255", "0.05 (0.07)", "0*"],
    ]


def test_pages_are_filled_from_results_of_whole_data_sets_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    pages = importlib.import_module("image_tables")
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "images")
    pages.found.cache_clear()
    assert {made() for name, made in pages.TABLES.items() if name != "images-figures"} == {"Not run yet.", "Nothing yet.", ""}
    for scale, accuracy in (("paper", 0.9), ("laptop", 0.1)):
        cells = {cell.name: cell for cell in studies.get("table1").cells(scale)}
        result = Result(Job(cells["resnet18-cifar10-CE-clean"], 0), {"accuracy": accuracy, "weights": "a"})
        Store(tmp_path / "images").write("table1", result)
    pages.found.cache_clear()
    page = pages.TABLES["images-table1"]()
    assert "| CIFAR-10 | ResNet-18 | CE | 200 epochs, (0.01, 32) | 1 | 90.00 |" in page
    assert "| the paper, 200 epochs | 5 | 95.15 (0.11) |" in page and "10.00" not in page
    assert "torch" in pages.TABLES["images-runs"]() and "| 90.00 |" in pages.TABLES["images"]()
    pages.found.cache_clear()


def test_cost_is_projected_from_complete_networks():
    ours = net("resnet18-cifar10-SL", accuracy=[0.9, 0.9])
    for metrics in ours.metrics.values():
        metrics["timings"] = {"clean": {"training": 250.0}}
    ours.seconds = {kind: {0: 110.0, 1: 110.0} for kind in ("worst", "pgd", "autoattack")} | {"clean": {0: 260.0, 1: 260.0}}
    table = images.cost([ours])
    assert [row[1].text for row in table.rows[1:]] == ["250", "10", "110", "110", "110", "590"]
    assert "0.8 hours for 1 of its 8 networks" in table.caption  # five times 590 seconds
