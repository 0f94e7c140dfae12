"""compare: what is shared between losses, how a learning rate is chosen, and what is planned."""

import math
import re
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from squareloss.attacks._common import eps_text
from squareloss.lab.runs import Context, Job, Result, Store
from squareloss.lab.runs.execute import execute
from squareloss.lab.studies.common import thinned
from squareloss.lab.studies.compare import measure
from squareloss.lab.studies.compare import study as study_module
from squareloss.lab.studies.compare.ingredients import LOSSES, Source
from squareloss.lab.studies.compare.plan import plan
from squareloss.lab.studies.compare.study import Compare, default_folder
from squareloss.lab.training.loop import Epoch, Run
from squareloss.lab.training.recipes import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")


def csv_file(folder, rows=120, seed=0, shift=0.0):
    """Two overlapping classes in two numbers and a category."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    a, b = rng.normal(y * 1.5 + shift, 1), rng.normal(-y, 1)
    lines = [
        f"{u:.4f},{v:.4f},{'red' if w else 'blue'},{'yes' if k else 'no'}"
        for u, v, w, k in zip(a, b, rng.random(rows) < 0.5, y, strict=True)
    ]
    path = folder / "points.csv"
    path.write_text("\n".join(["a,b,colour,label", *lines]) + "\n")
    return path


def tiny(path, **changes):
    """A comparison that takes seconds."""
    options = {"target": "label", "losses": "ce,ce+temperature,simplex", "seeds": 2, "epochs": 3, "lrs": [0.05, 0.2]}
    options |= {"quick": True, "device": "cpu"}
    return plan(str(path), **{**options, **changes})


def test_classes_that_no_test_sample_tells_of_are_noted(tmp_path):
    plain = csv_file(tmp_path)
    assert tiny(plain).header.notes == ()
    one = tmp_path / "one.csv"
    one.write_text(plain.read_text() + "0.1,0.2,red,maybe\n")
    (note,) = tiny(one).header.notes
    assert note.startswith("no sample of 'maybe' (1 in all) in the test split: ")
    pairs = tmp_path / "pairs.csv"  # of some of them, one falls to the test split
    pairs.write_text(plain.read_text() + "".join(f"0.1,0.2,red,{k}\n0.3,0.4,blue,{k}\n" for k in range(20)))
    (note,) = tiny(pairs).header.notes
    assert re.match(r"no sample of ('\d+' \(2 in all\)(, | and )){3}\d+ more in the test split of the first seed: ", note)


def test_more_classes_than_the_simplex_takes_are_noted_if_nothing_better_is_compared(tmp_path):
    def notes(classes, losses):
        path = tmp_path / f"{classes}.csv"
        path.write_text("a,label\n" + "".join(f"{k + i / 9},c{k}\n" for k in range(classes) for i in range(9)))
        return [note for note in tiny(path, losses=losses).header.notes if "simplex" in note]

    (note,) = notes(100, "ce,simplex+asinh")
    assert note.startswith("with 100 classes the simplex can fall far behind") and "--losses ce,ce+asinh,one_hot_15" in note
    (note,) = notes(201, "ce,simplex,one_hot_15")
    assert "--losses ce,ce+asinh,scaled_one_hot" in note
    assert notes(99, "ce,simplex") == notes(200, "ce,squentropy") == notes(200, "simplex,one_hot_15+asinh") == []
    assert notes(201, "simplex,scaled_one_hot+asinh") == []


def test_a_comparison_of_a_table(tmp_path):
    planned = tiny(csv_file(tmp_path))
    store = Store(tmp_path / "out")
    outcome = execute(planned.study, "laptop", planned.seeds, store)
    assert outcome.new == 4 and not outcome.failures
    by_job = {(r.cell, r.seed): r.metrics for r in outcome.records}
    for found in by_job.values():
        best = max(found["grid"], key=lambda row: (row["accuracy"], -row["nll"]))
        assert found["lr"] == best["lr"]
        assert found["margin"] >= 0 and found["distances"]["radius"] == sorted(found["distances"]["radius"])
        assert found["curve"]["epoch"] == [1, 2, 3]
    again = execute(planned.study, "laptop", planned.seeds, store)
    assert again.new == 0
    changed = tiny(csv_file(tmp_path, shift=1.0))  # the same name, other content
    assert changed.study.cells("laptop")[0].hash() != planned.study.cells("laptop")[0].hash()


def test_a_category_that_only_some_training_splits_have(tmp_path):
    path = csv_file(tmp_path)
    with path.open("a") as file:
        file.write("0.1,0.2,rare,yes\n")
    planned = tiny(path, seeds=4, epochs=1, lrs=[0.05], losses="ce")
    splits = [planned.study.source.read(seed) for seed in planned.seeds]
    assert {split.shape for split in splits} == {(5,)}
    assert {bool(split.train.x[:, split.features.index("colour=rare")].any()) for split in splits} == {False, True}
    outcome = execute(planned.study, "laptop", planned.seeds, Store(tmp_path / "out"))
    assert outcome.new == 4 and not outcome.failures


def test_files_of_one_name_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def start(path):
        """As the command does, up to where it trains."""
        monkeypatch.setattr(sys, "argv", ["squareloss", "compare", path, "--target", "label"])
        planned = tiny(path)
        folder = default_folder(planned.study)
        planned.header.write(Store(folder))
        return planned.study, folder.as_posix()

    for name, shift in (("a", 0.0), ("b", 1.0), ("c", 2.0)):
        (tmp_path / name).mkdir()
        csv_file(tmp_path / name, shift=shift)
    study, folder = start("a/points.csv")
    assert folder == "runs/compare-points"
    Store(folder).write("compare", Result(Job(study.cells("laptop")[0], 0), {"accuracy": 1.0}))
    assert start("b/points.csv")[1] == "runs/compare-points-2"
    assert start("c/points.csv")[1] == "runs/compare-points-3"
    for path, number in (("a/points.csv", ""), ("./b/points.csv", "-2"), (str(tmp_path / "c" / "points.csv"), "-3")):
        assert start(path)[1] == f"runs/compare-points{number}"
    (tmp_path / "a").rename(tmp_path / "moved")
    assert start("moved/points.csv")[1] == "runs/compare-points"  # by its content
    csv_file(tmp_path / "moved", shift=3.0)
    assert start("moved/points.csv")[1] == "runs/compare-points"  # by its path
    csv_file(tmp_path).rename(tmp_path / "digits.csv")
    assert start("digits.csv")[1] == "runs/compare-digits-2"
    assert default_folder(plan("digits", quick=True, device="cpu").study).as_posix() == "runs/compare-digits"


def test_results_are_the_same_whatever_runs_beside(tmp_path):
    planned = tiny(csv_file(tmp_path), epochs=1)
    jobs = [Job(cell, 0) for cell in planned.study.cells("laptop")]
    heard = {}
    context = Context(
        "cpu", tmp_path / "scratch", lambda job, step, total, _: heard.setdefault(job.name, []).append(step / total)
    )
    together = {r.job.name: r.metrics for r in planned.study.run(jobs, context)}
    alone = {r.job.name: r.metrics for job in jobs for r in planned.study.run([job], Context("cpu", tmp_path / "other"))}
    assert together == alone
    assert all(0 < shares[0] <= shares[-1] <= 1 and shares == sorted(shares) for shares in heard.values()) and len(heard) == 2


def test_losses_that_train_side_by_side_share_the_time_of_training(tmp_path):
    study = tiny(csv_file(tmp_path)).study
    jobs, data = [Job(cell, 0) for cell in study.cells("laptop")], study.source.read(0)
    started = time.perf_counter()
    seconds = [result.seconds for result in study._together(jobs, data, Context("cpu", tmp_path / "scratch"))]
    whole = time.perf_counter() - started
    assert len(seconds) == 2 and 0.5 * whole < sum(seconds) <= whole


def test_losses_share_weights_batches_and_splits(tmp_path):
    study = tiny(csv_file(tmp_path)).study
    context = Context("cpu", tmp_path / "scratch")
    data = study.source.read(1)
    a, b = (study._runs(Job(cell, 1), data, context) for cell in study.cells("laptop"))
    for mine, other in zip(a, b, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(mine.network.parameters(), other.network.parameters(), strict=True))
        rows = (run.batches(torch.device("cpu")).epoch(0).sample for run in (mine, other))
        assert torch.equal(*rows)
        assert mine.x is other.x and mine.recipe == other.recipe
    assert type(a[0].loss) is not type(b[0].loss)
    other = study._runs(Job(study.cells("laptop")[0], 2), data, context)[0]
    assert not torch.equal(next(a[0].network.parameters()), next(other.network.parameters()))
    assert not torch.equal(*(run.batches(torch.device("cpu")).epoch(0).sample for run in (a[0], other)))


def test_a_learning_rate_that_diverges_is_not_chosen(tmp_path):
    path = csv_file(tmp_path)
    context = Context("cpu", tmp_path / "scratch")
    one = tiny(path, lrs=[0.05, 1e8], losses="simplex").study
    (result,) = one.run([Job(one.cells("laptop")[0], 0)], context)
    assert result.status == "done" and result.metrics["lr"] == 0.05
    assert [row["accuracy"] is None for row in result.metrics["grid"]] == [False, True]
    none = tiny(path, lrs=[1e8], losses="simplex").study
    (result,) = none.run([Job(none.cells("laptop")[0], 0)], context)
    assert result.status == "diverged"


def test_the_best_accuracy_is_chosen_and_of_equals_the_lower_nll(tmp_path, monkeypatch):
    study, measured = tiny(csv_file(tmp_path), lrs=[0.1, 0.2, 0.3, 0.4], losses="simplex").study, []
    scores = iter([(0.8, 0.1), (0.9, 0.7), (0.9, 0.6), (0.9, 0.65)])
    monkeypatch.setattr(study_module, "validation_score", lambda *_: next(scores))
    report = lambda network, loss, data, **options: measured.append((network, options)) or {"readings": {}, "replicates": {}}
    monkeypatch.setattr(study_module, "measure", report)
    data, context, job = study.source.read(7), Context("cpu", tmp_path / "scratch"), Job(study.cells("laptop")[0], 7)
    runs = study._runs(job, data, context)
    found = study._result(job, runs, [[Epoch(0, 1.0, run.recipe.lr, 0.5, 1.0)] for run in runs], data, context).metrics
    assert found["lr"] == found["curve"]["loss"][0] == 0.3 and [row["accuracy"] for row in found["grid"]] == [
        0.8,
        0.9,
        0.9,
        0.9,
    ]
    ((network, options),) = measured
    assert network is runs[2].network and options.pop("progress")
    own = {name: getattr(study, name) for name in ("noise", "eps", "attacked", "steps")}
    assert options == {**own, "seed": 7}


def test_a_network_without_finite_outputs_is_not_chosen(tmp_path):
    class Spiked(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).index_fill(0, torch.tensor([0]), math.inf)

    data = Source(str(csv_file(tmp_path)), "label").read(0)
    for kind, usable in ((torch.nn.Linear, True), (Spiked, False)):
        recipe = Recipe(epochs=1, batch_size=8, lr=0.1)
        run = Run(kind(4, 2), LOSSES["ce"](2), recipe, 0, data.train.x, data.train.y, measure.Standardize(data.mean, data.std))
        assert (study_module._validated(run, [], data)["accuracy"] is not None) is usable


def test_results_are_found_again_by_what_they_depend_on(tmp_path):
    """Not by where the data lie, how losses run side by side, or a learning rate that the grid replaces."""
    study = tiny(csv_file(tmp_path)).study
    hashes = lambda **changes: [cell.hash() for cell in replace(study, **changes).cells("laptop")]
    same = {"together": True, "source": replace(study.source, data="elsewhere.csv"), "recipe": replace(study.recipe, lr=9.0)}
    for name, value in same.items():
        assert hashes(**{name: value}) == hashes(), name
    other = {
        "content": "x",
        "lrs": (0.05,),
        "noise": (0.3,),
        "steps": 7,
        "attacked": 11,
        "eps": (0.5,),
        "network": {"name": "n"},
    }
    other |= {"recipe": replace(study.recipe, epochs=4), "source": replace(study.source, target="other")}
    for name, value in other.items():
        assert not set(hashes(**{name: value})) & set(hashes()), name


def test_plan_settles_and_says_what_it_cut():
    quick, full = plan("digits", quick=True, device="cpu"), plan("digits", device="cpu")
    assert len(quick.seeds) == 3 and len(full.seeds) == 5 and full.header.cut == ()
    said = "; ".join(quick.header.cut)
    for part in (
        "3 of 5 seeds",
        "2 of 3 learning rates",
        "15 of 30 epochs",
        "300 of 359 attacked test points",
        "2 of 3 radii",
        "10 of 20 steps of PGD",
        "smaller network",
    ):
        assert part in said
    more = plan("digits", quick=True, seeds=7, device="cpu").header.cut
    assert not any("seeds" in part for part in more)
    assert full.header.rows == ("ce", "ce+temperature", "simplex", "simplex+temperature")
    assert full.header.baseline == "ce" and set(full.header.hashes) == {"ce", "simplex"}
    assert full.header.overlap == pytest.approx(359 / 1079)


def test_what_is_asked_for_is_planned(tmp_path):
    asked = {"model": "mlp", "epochs": 7, "batch_size": 50, "augment": True, "attacked": 11, "device": "cpu"}
    planned = plan("digits", lrs=[0.3, 0.1, 0.3], eps=[0.2, 0.1], **asked)
    study, recipe = planned.study, planned.study.recipe
    assert (study.network["name"], recipe.epochs, recipe.batch_size, recipe.augment) == ("mlp", 7, 50, True)
    assert (study.lrs, study.eps, study.attacked, study.steps) == ((0.1, 0.3), (0.1, 0.2), 11, 20)
    assert dict(planned.header.facts)["splits"] == "1079 training, 359 validation, 359 test samples; drawn anew by each seed"
    rng = np.random.default_rng(0)
    parts = {"x_train": rng.normal(size=(60, 3)), "y_train": np.arange(60) % 2}
    np.savez(tmp_path / "own.npz", **parts, x_test=rng.normal(size=(20, 3)), y_test=np.arange(20) % 2)
    own = dict(plan(str(tmp_path / "own.npz"), device="cpu").header.facts)
    assert own["splits"] == "48 training, 12 validation, 20 test samples; the test set is the data's own"


def test_only_the_readings_that_are_compared_are_explained():
    told = [dict(plan("digits", losses=losses, device="cpu").header.facts)["probabilities"] for losses in ("ce", "ce,ce+asinh")]
    assert "+" not in told[0] and "+asinh" in told[1] and "+temperature" not in told[1]


def test_temperature_readings_do_not_change_what_is_trained():
    plain, both = (
        plan("digits", losses="ce", device="cpu").study,
        plan("digits", losses="ce,ce+temperature", device="cpu").study,
    )
    assert [cell.hash() for cell in plain.cells("laptop")] == [cell.hash() for cell in both.cells("laptop")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "expected --seeds to be 1 or more, got 0"),
        ({"attacked": -5}, "expected --attacked to be 1 or more, got -5"),
        ({"eps": [8.0]}, "expected --eps for images in .0, 1., such as 2/255, got 8"),
        ({"device": "gpu"}, "Unknown device 'gpu'. Available: auto, cpu, cuda"),
        ({"lrs": [0.1, -1.0]}, "expected --lrs to be numbers > 0, got -1"),
        ({"model": "resnet18"}, None),
        ({"device": "cuda"}, "torch finds no GPU"),
        ({"losses": ","}, "expected one loss or more"),
    ],
)
def test_plan_refuses_what_makes_no_sense(options, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = {"device": "cpu", **options}
    if message is None:
        assert isinstance(plan("digits", **options).study, Compare)
    else:
        with pytest.raises(ValueError, match=message):
            plan("digits", **options)


def test_a_convolutional_network_is_refused_for_a_table(tmp_path):
    with pytest.raises(ValueError, match="expected images for the model 'resnet8'"):
        tiny(csv_file(tmp_path), model="resnet8")
    with pytest.raises(ValueError, match="expected --eps for images"):
        tiny(csv_file(tmp_path), eps=[0.1])
    with pytest.raises(ValueError, match="expected --augment for images, got it for the table 'points'"):
        tiny(csv_file(tmp_path), augment=True)


def test_radii_as_people_write_them():
    assert [eps_text(e) for e in (2 / 255, 0.5 / 255, 0.1, 0.025)] == ["2/255", "0.5/255", "0.1", "0.025"]


def test_long_curves_are_thinned_and_keep_their_end():
    rows = [asdict(Epoch(i, 0.1, 1.0, 0.5, 0.0)) for i in range(200)]
    thin = thinned(rows, most=60, digits=5)
    assert len(thin["epoch"]) <= 60 and thin["epoch"][-1] == 200
