"""`squareloss attack` on a saved classifier."""

import json

import pytest
import torch
from typer.testing import CliRunner

from squareloss import Classifier, SquareLoss, Standardize
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
    # a second start reads what the first one kept
    again = attack(saved, "digits", [0.02, 0.3], attacks=attacks, points=60, out=out, progress=False)
    assert [r["robust"] for r in again.rows()] == [r["robust"] for r in table.rows()]


def test_the_command_reads_fractions(saved, tmp_path):
    out = tmp_path / "attack.json"
    arguments = ["attack", str(saved), "--data", "digits", "--eps", "1/50,0.3", "--attacks", "pgd-ce", "--points", "20"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "clean accuracy" in done.output
    assert json.loads(out.read_text())["eps"] == [0.02, 0.3]


def test_tables_are_refused(saved, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n" + "\n".join(f"{i},{i % 2}" for i in range(40)))
    with pytest.raises(ValueError, match="missing|target|images"):
        attack(saved, str(path), [0.1])
