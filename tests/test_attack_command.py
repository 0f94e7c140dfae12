"""`squareloss attack` on a saved classifier."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from squareloss import Classifier, SquareLoss, Standardize
from squareloss.attacks.apgd import APGDRound
from squareloss.attacks.pgd import PGDRound
from squareloss.cli import app
from squareloss.lab.attack import attack
from squareloss.lab.data import load
from squareloss.lab.training.loop import Run, train
from squareloss.lab.training.recipes import Recipe
from squareloss.models import MLP


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    data, loss = load("digits"), SquareLoss()
    recipe = Recipe(epochs=8, batch_size=64, lr=0.1, schedule="constant", augment=False, precision="float32")
    net = MLP(64, (64,), 10, generator=torch.Generator().manual_seed(0))
    preprocess = Standardize(data.mean, data.std)
    train(Run(net, loss, recipe, 0, data.train.x, data.train.y, preprocess))
    folder = tmp_path_factory.mktemp("attacked") / "digits"
    Classifier(net, loss.link, preprocess, classes=data.classes).save(folder)
    return folder


def test_the_table_and_its_file(saved, tmp_path):
    out = tmp_path / "results" / "attack.json"
    attacks = ["pgd-ce", "pgd-angle"]
    table = attack(saved, "digits", [0.02, 0.3], attacks=attacks, points=60, out=out, progress=False)
    assert table.clean > 0.8
    written = json.loads(out.read_text())
    assert written["points"] == 60
    rows = {row["attack"]: row["robust"] for row in written["rows"]}
    assert list(rows) == [*attacks, "minimum"]
    assert rows["pgd-ce"][1] < rows["pgd-ce"][0] <= table.clean
    assert all(rows["minimum"][i] <= min(rows[name][i] for name in attacks) for i in range(2))
    assert list(out.parent.iterdir()) == [out]


def test_an_interrupted_evaluation_goes_on_and_another_one_starts_afresh(saved, tmp_path, monkeypatch):
    out = tmp_path / "attack.json"

    def run(points, **options):
        return attack(saved, "digits", [0.1], attacks=["pgd-ce", "apgd-ce"], points=points, out=out, progress=False, **options)

    def stop(*_):
        raise KeyboardInterrupt

    whole = run(20)
    with monkeypatch.context() as patch:
        patch.setattr(APGDRound, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(20)
    for points, options in ((10, {}), (20, {"seed": 1})):
        run(points, **options)
        assert json.loads(out.read_text())["points"] == points
    monkeypatch.setattr(PGDRound, "step", stop)  # its part is read, not done again
    assert [row["robust"] for row in run(20).rows()] == [row["robust"] for row in whole.rows()]
    assert list(tmp_path.iterdir()) == [out]


def test_the_command_reads_fractions(saved, tmp_path):
    out = tmp_path / "attack.json"
    arguments = ["attack", str(saved), "--data", "digits", "--eps", "1/50,0.3", "--attacks", "pgd-ce", "--points", "20"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "clean accuracy" in done.output
    assert json.loads(out.read_text())["eps"] == [0.02, 0.3]


def test_what_can_not_be_attacked_is_refused(saved, tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(80.0).reshape(40, 2), y=np.arange(40) % 2)
    for source in ("t.csv", str(tmp_path / "t.npz")):
        with pytest.raises(ValueError, match=f"expected images to attack, got .*{Path(source).name}"):
            attack(saved, source, [0.1])
    with pytest.raises(ValueError, match="Unknown device 'gpu'. Available: auto, cpu, cuda"):
        attack(saved, "digits", [0.1], device="gpu")
    with pytest.raises(ValueError, match="expected --points to be 1 or more, got -3"):
        attack(saved, "digits", [0.1], points=-3)
