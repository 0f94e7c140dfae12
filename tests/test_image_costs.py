"""The time left that is shown while image studies run, beside what they took."""

from pathlib import Path

import pytest

from squareloss.lab import studies
from squareloss.lab.runs import Context, Job, Store
from squareloss.lab.runs.live import Listener
from squareloss.lab.studies.images import costs
from squareloss.lab.studies.images.networks import wanted
from squareloss.lab.studies.images.study import KINDS, _reporter
from squareloss.lab.training.loop import Epoch

RESULTS = Path(__file__).parents[1] / "results" / "images"
FIRST = "squareloss reproduce table1 --scale paper --cells 'resnet18-cifar10-CE-*,resnet18-cifar10-SL-*' --seeds 0-1 "
CELLS = {cell.name: cell for cell in studies.get("table1").cells("paper")}


@pytest.fixture(scope="module")
def took():
    """Seconds of each job of the first run, which had the chip to itself but for the first minutes."""
    records = [r for r in Store(RESULTS, create=False).records("table1") if r.command.startswith(FIRST)]
    return {Job(CELLS[r.cell], r.seed): r.seconds for r in records if r.hash == CELLS[r.cell].hash()}


def test_weights_are_about_what_jobs_took(took):
    for kind in ("clean", "pgd", "autoattack"):
        ratios = [seconds / job.cell.weight for job, seconds in took.items() if job.cell.spec["measure"]["kind"] == kind]
        assert 0.7 < min(ratios) <= max(ratios) < 1.4, kind
    assert sum(took.values()) == pytest.approx(sum(job.cell.weight for job in took), rel=0.1)


def test_time_left_is_right_from_the_first_epochs_on(took, monkeypatch):
    """The run of the committed results again, by the clock of its records: four networks side by side, then the measures."""
    now = [0.0]
    monkeypatch.setattr("squareloss.lab.runs.live.time.monotonic", lambda: now[0])
    jobs = sorted(took, key=lambda job: (job.seed, KINDS.index(job.cell.spec["measure"]["kind"])))
    listener, end, errors = Listener(), 40 + sum(took.values()), []
    context = Context(on_report=listener.reported)
    listener.began("table1", len(jobs), jobs)
    for job in jobs:
        listener.started(job, "here")
    now[0] = 40  # compilation
    training = [job for job in jobs if job.cell.spec["measure"]["kind"] == "clean"]
    told = [_reporter(jobs, context, wanted(job)[0]) for job in training]
    for epoch in range(200):
        now[0] += sum(took[job] for job in training) / 200
        for on_epoch in told:
            on_epoch(Epoch(epoch=epoch, loss=0.1, train_accuracy=0.9, lr=0.01, seconds=0.0))
        errors += [listener.left() / (end - now[0])] if epoch in (2, 62, 150, 199) else []
    for job in sorted(jobs, key=lambda job: KINDS.index(job.cell.spec["measure"]["kind"])):
        now[0] += 0.0 if job in training else took[job]
        listener.finished(job, "done")
        if end - now[0] > 60:
            errors.append(listener.left() / (end - now[0]))
    assert 0.8 < min(errors) <= max(errors) < 1.25, errors


def test_costs_follow_the_spec():
    spec = CELLS["resnet18-cifar10-SL-pgd"].spec
    less = {**spec, "measure": {**spec["measure"], "points": 1000, "levels": [8], "steps": 50}}
    assert costs.measuring(less) == pytest.approx(costs.measuring(spec) / 60)
    shorter = {**spec, "data": {**spec["data"], "train": 5000}, "recipe": {**spec["recipe"], "epochs": 20}}
    assert costs.training(shorter) == pytest.approx(costs.training(spec) / 100)
    harder = {**spec, "recipe": {**spec["recipe"], "adversary": {"steps": 7}}}
    assert costs.training(harder) == pytest.approx(6.25 * costs.training(spec))
    faster = {**spec, "recipe": {**spec["recipe"], "adversary": {"steps": 7, "mode": "eval"}}}
    assert costs.training(faster) == pytest.approx(5.2 * costs.training(spec))
    larger = {**spec, "recipe": {**spec["recipe"], "batch_size": 128}}
    assert costs.training(larger) < 0.7 * costs.training(spec), "larger batches fill the chip"
    assert costs.training(CELLS["wrn16_10-cifar10-SL-pgd"].spec) > 2 * costs.training(spec)
    assert CELLS["resnet18-cifar10-CE-clean"].weight > 200 > 50 > CELLS["resnet18-cifar10-CE-pgd"].weight


def test_adversarial_training_and_attacks_on_its_networks_cost_about_what_they_took():
    records = Store(RESULTS, create=False).records("adversarial_training")
    kind = lambda r: r.spec["measure"]["kind"]
    took = {
        (r.cell, r.spec["recipe"]["epochs"]): r.metrics["timings"]["training"] / costs.training(r.spec)
        if kind(r) == "clean"
        else r.seconds / costs.measuring(r.spec)
        for r in records
        if kind(r) != "readings" and r.metrics.get("side_by_side") != 1  # alone, training takes longer than a share does
    }
    slow = [(f"resnet18-cifar10-{loss}-adv3-clean", 48) for loss in ("CE", "SL")]  # on a chip that was
    ratios = [ratio for name, ratio in took.items() if name not in slow]
    assert len(ratios) >= 19 and 0.75 < min(ratios) <= max(ratios) < 1.3, took


def test_a_measure_counts_training_only_if_it_trained(tmp_path):
    """Shares that the jobs of a network report: training is a part of the first alone, or of a later one that comes alone."""
    cells = {cell.name: cell for cell in studies.get("table1").cells("smoke")}
    clean, pgd = (Job(cells[f"resnet18-cifar10-CE-{kind}"], 0) for kind in ("clean", "pgd"))
    for folder, jobs in (("both", [clean, pgd]), ("one", [pgd])):
        heard = {}
        note = lambda job, step, total, values, heard=heard: heard.setdefault(job, []).append(step / total)
        list(studies.get("table1").run(jobs, Context("cpu", tmp_path / folder, note)))
        for job, shares in heard.items():
            assert shares == sorted(shares) and shares[-1] == 1
            first = costs.trained_part(job.cell.spec) / 4 if job is jobs[0] else 0.0  # four epochs, then four losses
            expected = first if first else 0.25
            assert shares[0] == pytest.approx(expected, abs=0.1)
