"""The image studies on a GPU: networks side by side, every measure. Skipped without one."""

import pytest
import torch

from squareloss.lab import studies
from squareloss.lab.runs import Context, Job
from squareloss.lab.studies import run
from squareloss.lab.studies.images import networks
from squareloss.lab.training import captured

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler's own
]


def jobs(name, pattern, seeds=(0,)):
    chosen = run.chosen(studies.get(name), "smoke", pattern)
    return chosen, [Job(cell, seed) for cell in chosen.cells("smoke") for seed in seeds]


def test_every_measure_of_networks_trained_side_by_side(tmp_path, monkeypatch):
    calls, train = [], captured.train
    monkeypatch.setattr(captured, "train", lambda runs, device: calls.append(len(runs)) or train(runs, device))
    chosen, mine = jobs("beyond_paper", "*")
    results = {result.job.cell.name: result for result in chosen.run(mine, Context("cuda", tmp_path))}
    assert calls == [4] and len(results) == len(mine) and {r.status for r in results.values()} == {"done"}
    for name in ("CEsmooth", "squentropy"):
        clean = results[f"resnet18-cifar10-{name}-clean"].metrics
        assert 0.2 < clean["accuracy"] <= 1 and clean["side_by_side"] == 4
        auto, worst = (results[f"resnet18-cifar10-{name}-{kind}"].metrics for kind in ("autoattack", "worst"))
        assert auto["least_8"] <= auto["autoattack_8"] and 0 <= worst["worst_8"] <= 1


def test_square_loss_and_adversarial_training(tmp_path):
    for name, pattern in (("table1", "resnet18-cifar10-SL-*"), ("adversarial_training", "*-SL-adv3-clean")):
        chosen, mine = jobs(name, pattern)
        results = {result.job.cell.name: result for result in chosen.run(mine, Context("cuda", tmp_path))}
        assert len(results) == len(mine) and all("weights" in result.metrics for result in results.values())


def test_a_kept_network_gives_the_scores_it_had(tmp_path):
    _, (job,) = jobs("table1", "resnet18-cifar10-SL-clean")
    (one,) = networks.wanted(job)
    context = Context("cuda", tmp_path)
    networks.train([one], context, lambda one: lambda row: None)
    a, b = networks.load(one, context), networks.load(one, Context("cpu", tmp_path))
    x = a.data.test.x[:50].float() / 255
    torch.testing.assert_close(a.model(x.cuda()).cpu(), b.model(x), rtol=1e-2, atol=1e-2)
    assert a.mark == b.mark
