"""`squareloss attack` on a saved classifier."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from squareloss import Classifier, Simplex, Softmax, SquareLoss, Standardize
from squareloss.attacks.apgd import APGDRound
from squareloss.attacks.pgd import PGDRound
from squareloss.cli import app
from squareloss.lab import attack as attack_module
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


def test_the_table_and_its_file(saved, tmp_path, monkeypatch):
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
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.chdir(saved)
    attack(Path(), "digits", [0.1], attacks=["pgd-ce"], points=5, out=tmp_path / "pipe", progress=False)
    told = json.loads(os.read(reader, 10_000))
    assert (told["points"], told["classifier"]) == (5, "digits")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "results"}
    os.close(reader)


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
    attack(saved, "digits", [0.2], attacks=["pgd-ce"], points=20, out=out, progress=False)  # leaves the parts of others
    monkeypatch.setattr(PGDRound, "step", stop)  # its part is read, not done again
    assert [row["robust"] for row in run(20).rows()] == [row["robust"] for row in whole.rows()]
    assert list(tmp_path.iterdir()) == [out]


def relabelled(folder, classes):
    """The classifier of `folder` once more, with those names for its classes."""
    found = Classifier.load(folder)
    Classifier(found.network, found.link, found.preprocess, classes=classes).save(folder.parent / "relabelled")
    return folder.parent / "relabelled"


def test_labels_are_matched_by_name(saved, tmp_path):
    data = load("digits")
    file, rows = tmp_path / "some.npz", data.test.y >= 5
    train = data.train.x[data.train.y >= 5], data.train.y[data.train.y >= 5]
    words = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])

    def clean(folder, names):
        named = zip(("x_train", "y_train", "x_test", "y_test"), (*train, data.test.x[rows], data.test.y[rows]), strict=True)
        np.savez(file, **{key: names[value] if key[0] == "y" else value.numpy() for key, value in named})
        return attack(folder, str(file), [0.1], attacks=["pgd-ce"], points=30, progress=False).clean

    assert clean(saved, np.arange(10)) > 0.8
    assert clean(relabelled(saved, words.tolist()), words) > 0.8
    assert clean(relabelled(saved, range(10)), np.arange(10)) > 0.8
    with pytest.raises(
        ValueError, match="classes of the classifier, 0, 1, .*, 9, got eight, five, nine, seven, six; .*by name"
    ):
        clean(saved, words)
    with pytest.raises(
        ValueError, match="expected data of 10 classes for a classifier that does not name its own, got 5, 6, 7"
    ):
        clean(relabelled(saved, None), np.arange(10))
    with pytest.raises(ValueError, match="classes of the classifier, 1, 2, .*, got 0, 1"):
        attack(relabelled(saved, range(1, 11)), "digits", [0.1], attacks=["pgd-ce"], points=30, progress=False)
    twice = ["five" if name == "three" else name for name in words.tolist()]
    with pytest.raises(
        ValueError, match="expected one class of the classifier for each of the data, got several called 'five'"
    ):
        clean(relabelled(saved, twice), words)
    for names in (None, words.tolist(), twice):  # classes called 0 to 9 are those, in order
        folder = relabelled(saved, names)
        assert attack(folder, "digits", [0.1], attacks=["pgd-ce"], points=30, progress=False).clean > 0.8


def test_a_table_written_to_a_stream_is_alone_there(saved, tmp_path):
    """What is parsed at the other end of a pipe is the JSON; people read the table on stderr."""
    with (tmp_path / "redirected.json").open("wb") as file:  # as of a shell: > redirected.json
        (tmp_path / "stdout").symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        options = ["--eps", "0.1", "--attacks", "pgd-ce", "--points", "10", "--quiet", "--out", tmp_path / "stdout"]
        done = CliRunner().invoke(app, [str(part) for part in ("attack", saved, "--data", "digits", *options)])
    assert done.exit_code == 0 and done.stdout == "" and "pgd-ce" in done.stderr
    assert json.loads((tmp_path / "redirected.json").read_text())["points"] == 10


def test_progress_says_which_of_them_runs(saved, capsys):
    attack(saved, "digits", [0.1, 2 / 255], attacks=["pgd-ce", "apgd-ce"], points=10)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.endswith(":")] == [
        "pgd-ce at 0.1, 1 of 4:", "pgd-ce at 2/255, 2 of 4:", "apgd-ce at 0.1, 3 of 4:", "apgd-ce at 2/255, 4 of 4:",
    ]  # fmt: skip


def test_the_seed_is_that_of_the_attacks_alone(saved, tmp_path):
    clean = {}
    for seed, split in ((0, 0), (3, 0), (0, 1)):
        out = tmp_path / "attack.json"
        attack(saved, "digits", [0.1], attacks=["pgd-ce"], seed=seed, split_seed=split, out=out, progress=False)
        found = json.loads(out.read_text())
        assert (found["seed"], found["split_seed"]) == (seed, split)
        clean[seed, split] = found["clean"]
    assert clean[0, 0] == clean[3, 0] != clean[0, 1]  # the same images, and others


def test_all_images_are_attacked_if_none_was_trained_on(saved, tmp_path):
    digits = load("digits").test
    images = {"x": digits.x[:50, 0].numpy(), "y": digits.y[:50].numpy()}
    np.savez(tmp_path / "new.npz", **images)
    parts = {f"{key}_{part}": array[:n] for key, array in images.items() for part, n in (("train", 50), ("test", 30))}
    np.savez(tmp_path / "split.npz", **parts)
    for name, every, points in (("new", True, 50), ("new", False, 10), ("split", True, 30)):
        options = ["--attacks", "pgd-ce", "--eps", "0.1", "--out", str(tmp_path / "attack.json"), *["--all"] * every]
        done = CliRunner().invoke(app, ["attack", str(saved), "--data", str(tmp_path / f"{name}.npz"), *options])
        assert done.exit_code == 0, done.output
        found = json.loads((tmp_path / "attack.json").read_text())
        assert (found["points"], found["split_seed"]) == (points, None if every else 0)


def test_the_command_reads_fractions(saved, tmp_path):
    out = tmp_path / "attack.json"
    arguments = [
        "attack",
        str(saved),
        "--data",
        "digits",
        "--eps",
        "1/50, 0.3",
        "--attacks",
        "pgd-ce, apgd-ce",
        "--points",
        "20",
    ]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "clean accuracy" in done.output
    assert json.loads(out.read_text())["eps"] == [0.02, 0.3]


OWN = """
import math
from torch import nn


def build(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def none(shape, outputs):
    pass


def one(shape):
    return nn.Flatten()
"""


@pytest.mark.parametrize(("link", "classes"), [(Simplex(), ["a", "b", "c"]), (Simplex(reduced=True), None)])
def test_a_network_of_ones_own_on_a_folder_of_images(tmp_path, monkeypatch, link, classes):
    monkeypatch.chdir(tmp_path)
    name = "own_reduced" if link.reduced else "own_plain"
    Path(f"{name}.py").write_text(OWN)
    for i, label in enumerate("abc"):
        Path("photos", label).mkdir(parents=True)
        for k in range(10):
            Image.new("RGB", (9 + k, 12), (80 * i, k, 0)).save(Path("photos", label, f"{k}.png"))
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2 if link.reduced else 3))
    Classifier(network, link, classes=classes).save("net")
    arguments = ["attack", "net", "--data", "photos", "--size", "8", "--attacks", "pgd-ce", "--quiet"]
    done = CliRunner().invoke(app, [*arguments, "--model", f"{name}:build"])
    assert done.exit_code == 0, done.output
    assert json.loads(Path("net/attack.json").read_text())["points"] == 6
    with pytest.raises(ValueError, match="expected --model package.module:function, since .*Sequential, is not built in"):
        attack(Path("net"), "photos", [0.1], size=8)
    with pytest.raises(ValueError, match="expected --model to be package.module:function, got 'mlp'"):
        attack(Path("net"), "photos", [0.1], size=8, model="mlp")
    for function, told in {"none": "to return an nn.Module, got NoneType", "one": "failed: TypeError"}.items():
        with pytest.raises(ValueError, match=told):
            attack(Path("net"), "photos", [0.1], size=8, model=f"{name}:{function}")
    with pytest.raises(ValueError, match="expected --size to be 1 or more, got 0"):
        attack(Path("net"), "photos", [0.1], size=0)


def test_what_can_not_be_attacked_is_refused(saved, tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(80.0).reshape(40, 2), y=np.arange(40) % 2)
    for source in ("t.csv", str(tmp_path / "t.npz")):
        with pytest.raises(ValueError, match=f"expected images to attack, got .*{Path(source).name}"):
            attack(saved, source, [0.1])
    with pytest.raises(ValueError, match="Unknown device 'gpu'. Available: auto, cpu, cuda"):
        attack(saved, "digits", [0.1], device="gpu")
    with pytest.raises(ValueError, match="expected --points to be 1 or more, got -3"):
        attack(saved, "digits", [0.1], points=-3)
    with pytest.raises(ValueError, match="expected --out to be a file, got the folder"):
        attack(saved, "digits", [0.1], out=tmp_path)
    Classifier(MLP(64, (4,), 10), Softmax()).save(tmp_path / "ce")
    for name, other in (("apgd-ce@eta", "apgd-ce"), ("pgd-residual", "pgd-ce, pgd-margin or pgd-angle")):
        said = rf"expected {name} with .* square loss.* got one whose link is Softmax\(\); pass --attacks with {other}"
        with pytest.raises(ValueError, match=said):
            attack(tmp_path / "ce", "digits", [0.1], attacks=["pgd-ce", name])
    Classifier(MLP(64, (4,), 10), Softmax(), Standardize([0.0] * 3, [1.0] * 3)).save(tmp_path / "rgb")
    with pytest.raises(ValueError, match=r"expected images that the network takes, got digits with images of 1 x 8 x 8: "):
        attack(tmp_path / "rgb", "digits", [0.1])
    np.savez(tmp_path / "large.npz", x=np.zeros((40, 9, 9), np.uint8), y=np.arange(40) % 10)
    with pytest.raises(ValueError, match=r"expected images that the network takes, got large with images of 1 x 9 x 9: .*mat1"):
        attack(saved, str(tmp_path / "large.npz"), [0.1])
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"could not write .*attack.json: Not a directory. Results written before are intact"):
        attack(saved, "digits", [0.1], attacks=["pgd-ce"], points=5, out=tmp_path / "file" / "attack.json", progress=False)


def test_an_error_of_the_system_is_no_failure_to_write_where_nothing_is_written(saved, monkeypatch):
    def failing(*arguments, **options):
        raise OSError("no compiler")

    monkeypatch.setattr(attack_module, "evaluate", failing)
    with pytest.raises(OSError, match="^no compiler$"):
        attack(saved, "digits", [0.1], points=5, progress=False)
