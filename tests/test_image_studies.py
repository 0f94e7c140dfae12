"""The image studies: which cells there are, networks trained once, and results that grow."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from squareloss import models
from squareloss.lab import studies
from squareloss.lab.report import write
from squareloss.lab.report.header import Header
from squareloss.lab.report.views import images, paper_images
from squareloss.lab.report.views.image_rows import nets
from squareloss.lab.report.write import gather
from squareloss.lab.runs import Cell, Context, Job, Store, execute, expand
from squareloss.lab.studies import run
from squareloss.lab.studies.images import measures, networks, plan, study
from squareloss.lab.studies.images.data import read, stand_in
from squareloss.lab.training import captured
from squareloss.lab.training.loop import Diverged, Epoch
from squareloss.lab.training.recipes import Adversary

FIGURES = Path(__file__).parents[1] / "docs" / "figures" / "images.py"
NAMES = ("table1", "gaussian_noise", "reliability", "adversarial_training", "codings", "beyond_paper")


def smoke(name, folder, cells="", settings=(), **options):
    """Run some cells of a study and give their metrics by cell."""
    chosen = run.with_settings(studies.get(name), settings)
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
        steps = made.adversary.steps if made.adversary else 0
        assert steps == int(next((part[3:] for part in cell.name.split("-") if part.startswith("adv")), 0))
        assert not steps or made.adversary == Adversary(steps, 8 / 255, {3: 4 / 255, 7: 2 / 255}[steps])
        if recipe != "fast":
            assert (made.lr, made.batch_size) == ((0.1, 128) if "-b128" in cell.name else (0.01, 32))
        loss, data = plan.make_loss(cell.spec["loss"]), cell.spec["data"]["name"]
        assert cell.spec["network"]["outputs"] == plan.CLASSES[data]
        assert cell.spec["measure"].get("outside", {}).get("name") != data, "images of other classes are of the other data set"
        if cell.spec["loss"]["name"] == "simplex" and "r1" not in cell.name:
            assert loss.link.radius == plan.CLASSES[data] and loss.scale == 1


def test_the_mode_of_the_adversary_is_a_setting_of_adversarial_training_and_part_of_its_networks():
    study = studies.get("adversarial_training")
    assert "attack" in study.options and "attack" not in studies.get("table1").options
    specs = [
        run.with_settings(study, [f"attack={mode}"]).cells("paper")[0].spec["recipe"]["adversary"] for mode in ("train", "eval")
    ]
    assert "mode" not in specs[0], "results from before it could be set are of the mode train"
    assert specs[1] == {**specs[0], "mode": "eval"}
    assert [plan.make_recipe({"epochs": 1, "batch_size": 1, "lr": 1, "adversary": s}).adversary.mode for s in specs] == [
        "train",
        "eval",
    ]
    with pytest.raises(ValueError, match="Unknown attack 'evil'. Available: train, eval"):
        run.with_settings(study, ["attack=evil"]).cells("smoke")


def test_the_papers_networks_can_be_built():
    specs = {json.dumps(cell.spec["network"]) for name in NAMES for cell in studies.get(name).cells("paper")}
    assert len(specs) == 4
    millions = {}
    for spec in map(json.loads, specs):
        with torch.device("meta"):
            network = models.build(spec)
            assert network(torch.zeros(2, 3, 32, 32)).shape == (2, spec["outputs"])
        millions[spec["name"], spec["outputs"]] = round(sum(p.numel() for p in network.parameters()) / 1e6, 1)
    wide = {("wide_resnet", 10): 17.1, ("wide_resnet", 100): 17.2}  # as Zagoruyko and Komodakis count WRN-16-10
    assert millions == {("resnet18", 10): 11.2, ("resnet50", 100): 23.7, **wide}
    for short, paper in zip(plan.RECIPES["short"].values(), plan.RECIPES["paper"].values(), strict=True):
        assert short.epochs / short.step_size == paper.epochs / paper.step_size, "the same schedule"


def test_studies_share_cells_and_recipes_do_not():
    hashes = {name: {cell.name: cell.hash() for cell in studies.get(name).cells("paper")} for name in NAMES}
    for name in ("gaussian_noise", "reliability"):
        assert {pair for pair in hashes[name].items() if not pair[0].endswith("-readings")} <= hashes["table1"].items()
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
    assert paper_images.values()["resnet18-cifar10-CE"]["noise_0.1"] == (0.9003, None, 5, "")
    assert paper_images.values()["resnet50-cifar100-SL"]["noise_0.4"].mean == 0.0947
    assert paper_images.values()["resnet18-cifar10-SL"]["ece"] == (0.0097, 0.001, 5, "")  # no share of a hundred


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
    assert set(auto["timings"]) == {"autoattack 8/255", "autoattack_eta 8/255", "least 8/255"}
    smoke("gaussian_noise", tmp_path)
    readings = smoke("reliability", tmp_path)
    assert len(trained) == 3
    assert set(studies.get("reliability").rows("smoke")) == {
        name + suffix for name, metrics in readings.items() for suffix in metrics["readings"]
    }
    sl = next(net for net in nets(Store(tmp_path).records()) if net.line == "resnet18-cifar10-SL")
    assert all(sl.by_seed(f"ece{reading}") for reading in ("", "+temperature", "+asinh", "+isotonic", "+renormalised"))
    page = write(tmp_path, "md").read_text()
    headings = {figure.heading for report in gather(tmp_path) if report.header.study == "table1" for figure in report.figures}
    assert {"Reliability", "Robustness"} <= headings
    for heading in ("Accuracy and robustness", "Gaussian noise", "Calibration", "What the paper says", "Cost", "stand-in"):
        assert heading in page
    assert "of its 8 networks" not in page, "stand-ins tell nothing of what Table 1 costs"
    assert "<svg" in write(tmp_path).read_text()
    drawn = subprocess.run([sys.executable, FIGURES, tmp_path], capture_output=True, text=True, check=True).stdout
    assert [Path(line).name for line in drawn.split()] == [
        f"images-{kind}-resnet18-cifar10.svg" for kind in ("reliability", "robustness")
    ]
    assert "CE, as trained" in (tmp_path / "images-reliability-resnet18-cifar10.svg").read_text()  # as a comment


def test_a_network_is_measured_later_without_training_and_trained_anew_by_force(tmp_path, trained):
    first = smoke("table1", tmp_path, "resnet18-cifar10-CE-clean")
    later = smoke("table1", tmp_path, "resnet18-cifar10-CE-worst")
    assert trained == [1]
    assert later["resnet18-cifar10-CE-worst"]["weights"] == first["resnet18-cifar10-CE-clean"]["weights"]
    assert later["resnet18-cifar10-CE-worst"]["worst_passes_8"] >= 8  # of eight images, the clean pass at the least
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
    take = networks.shelf(Context(root=tmp_path), most=2)
    first = take(wanted[0])
    assert take(wanted[1])[0] is wanted[1] and take(wanted[0]) is first
    take(wanted[2])  # the second makes room
    assert take(wanted[0]) is first and take.cache_info().currsize == 2


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
    monkeypatch.setattr(study, "_measure", lambda job, context, shelf, trains: order.append(job.name) or job)
    monkeypatch.setattr(study, "_measured", lambda job, context: tmp_path / job.key)
    table1 = run.with_settings(studies.get("table1"), ["together=4"])
    cells = [c for c in table1.cells("paper") if c.name.startswith(("resnet18-cifar10-CE", "resnet18-cifar10-SL-"))]
    assert len({cell.group for cell in cells}) == 1
    of_two_batch_sizes = {cell.group for cell in table1.cells("paper") if cell.name.startswith("wrn16_10-cifar100-")}
    assert len(of_two_batch_sizes) == 1
    list(table1.run([Job(cell, seed) for cell in cells for seed in range(3)], Context("cuda", tmp_path)))
    assert chunks == [[0, 0, 1, 1], [2, 2]]
    first = [name.rpartition("-")[2] for name in order[:16]]
    assert first == [f"{kind}/seed{seed}" for kind in ("clean", "worst", "pgd", "autoattack") for seed in (0, 0, 1, 1)]
    assert len(order) == 24


def test_networks_side_by_side_share_the_time_by_what_each_costs(monkeypatch, tmp_path):
    rows = [Epoch(0, 0.1, 1.0, 0.5, 30.0), Epoch(1, 0.1, 0.5, 0.6, 60.0)]
    monkeypatch.setattr(captured, "train", lambda runs, device: [rows for _ in runs])
    cells = {c.name: c for c in studies.get("codings").cells("smoke") if c.name.endswith(("-SL-clean", "-SL-b128-clean"))}
    small, large = (networks.wanted(Job(cell, 0))[0] for cell in cells.values())
    monkeypatch.setattr(networks, "training", lambda spec: 3.0 if spec == small.cell.spec else 1.0)
    networks.train([small, large], Context("cpu", tmp_path), lambda one: lambda row: None)
    first, second = (networks.load(one, Context("cpu", tmp_path)).facts for one in (small, large))
    assert (first["seconds"], second["seconds"]) == (45.0, 15.0)
    assert first["wall"] == pytest.approx(3 * second["wall"])


def test_networks_that_are_there_are_measured_before_others_train(monkeypatch, tmp_path):
    chunks = []
    monkeypatch.setattr(study, "train", lambda chunk, context, on_epoch: chunks.append([one.seed for one in chunk]))
    monkeypatch.setattr(study, "_measure", lambda job, context, shelf, trains: job)
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
    found = smoke("adversarial_training", tmp_path, "*-SL-adv7-clean,*-SL-adv3-autoattack", ["attack=eval"])
    assert len(found) == 2 and "autoattack_eta_8" in found["resnet18-cifar10-SL-adv3-autoattack"]
    smoke("codings", tmp_path, "resnet18-cifar10-OH1-clean")
    found = smoke("beyond_paper", tmp_path, "*-SL-beyond,*-SL-from-CE")
    beyond = found["resnet18-cifar10-SL-beyond"]
    assert beyond["nc1"] > 0 and 0 <= beyond["auroc_probability"] <= 1 and beyond["outside_images"] == 100
    carried = found["resnet18-cifar10-SL-from-CE"]
    assert 0 <= carried["transfer_8"] <= 1 and carried["points"] <= 8
    page = write(tmp_path, "md").read_text()
    assert "one-hot (1, 1)" in page and "NC1" in page and "stand examples of CE, 8/255" in page and "PGD-7" in page
    assert "4 epochs, PGD in eval mode, (0.01, 16)" in page
