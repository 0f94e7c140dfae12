"""The command line."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import squareloss
from squareloss import cli
from squareloss.lab.data import download
from squareloss.lab.studies import run


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *args: CliRunner().invoke(cli.app, [str(a) for a in args])


def test_version(invoke):
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.strip() == f"squareloss {squareloss.__version__}"


def test_help_lists_the_commands(invoke):
    assert "data" in invoke("--help").output
    output = invoke("data", "--help").output
    assert "get" in output
    assert "list" in output


def test_data_list_says_what_is_there(invoke, tmp_path, monkeypatch):
    (tmp_path / "cifar-100-python").mkdir()
    lines = {line.split()[0]: line for line in invoke("data", "list", "--dir", tmp_path).output.splitlines()}
    assert list(lines) == ["digits", "cifar10", "cifar100"]
    assert "squareloss data get cifar10" in lines["cifar10"]
    assert str(tmp_path / "cifar-100-python") in lines["cifar100"]
    monkeypatch.setenv("SQUARELOSS_DATA", str(tmp_path))
    assert invoke("data", "list").output.splitlines() == list(lines.values())


def test_data_get_calls_and_prints(invoke, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(download, "get", lambda *args, **options: calls.append((args, options)) or tmp_path / "there")
    result = invoke("data", "get", "cifar10", "--dir", tmp_path)
    assert (result.exit_code, result.output.strip()) == (0, str(tmp_path / "there"))
    assert calls == [(("cifar10", tmp_path), {"progress": True})]


@pytest.mark.parametrize("failed", [0, 2])
def test_every_option_of_compare_arrives_and_failures_are_status_1(invoke, monkeypatch, failed):
    told, study = [], SimpleNamespace(source=SimpleNamespace(data="digits"))

    def plan(*arguments, **options):
        told.append((arguments, options))
        return SimpleNamespace(study=study, seeds=range(2), header="header", device="cpu")

    monkeypatch.setattr("squareloss.lab.studies.compare.plan.plan", plan)
    monkeypatch.setattr(run, "carry_out", lambda *arguments: told.append(arguments) or failed)
    options = {
        "target": "y", "size": 8, "model": "mlp", "losses": "ce", "seeds": 2, "recipe": "fast", "epochs": 3, "batch_size": 16,
        "attacked": 9, "device": "auto",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    words += ["--augment", "--lrs", "0.1,1/5", "--eps", "1/4", "--quick"]
    here = ["--engine", "ray", "--workers", 3, "--address", "auto", "--out", "o", "--quiet", "--force", "--tensorboard", "tb"]
    assert invoke("compare", "x.csv", *words, *here).exit_code == (1 if failed else 0)
    expected = options | {"augment": True, "lrs": [0.1, 0.2], "eps": [0.25], "quick": True}
    settled = run.Options("ray", 3, "auto", "cpu", True, True, Path("tb"))
    assert told == [(("x.csv",), expected), (study, "laptop", range(2), "header", Path("o"), settled)]


def test_every_option_of_reproduce_arrives(invoke, monkeypatch):
    told = []
    monkeypatch.setattr(run, "carry_out", lambda *arguments: told.append(arguments))
    words = ["--scale", "smoke", "--cells", "SL-mu0", "--seeds", "2,5", "--set", "lr=0.02", "--device", "cpu"]
    here = ["--engine", "ray", "--workers", 3, "--address", "auto", "--out", "o", "--quiet", "--force", "--tensorboard", "tb"]
    assert invoke("reproduce", "spirals", *words, *here).exit_code == 0
    ((study, scale, seeds, _, *where),) = told
    assert [(cell.name, cell.spec["lr"]) for cell in study.cells("smoke")] == [("SL-mu0", 0.02)]
    assert (scale, list(seeds)) == ("smoke", [2, 5])
    assert where == [Path("o"), run.Options("ray", 3, "auto", "cpu", True, True, Path("tb"))]


def test_every_option_of_attack_arrives(invoke, monkeypatch):
    told = []
    monkeypatch.setattr("squareloss.lab.attack.attack", lambda *arguments, **options: told.append((arguments, options)))
    options = {
        "norm": "l2", "model": "m:f", "size": 8, "points": 5, "device": "cpu", "seed": 3, "split_seed": 4, "out": Path("o"),
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    words += ["--data", "photos", "--eps", "1/4,0.5", "--attacks", "pgd-ce, square", "--all", "--dir", "d", "--quiet"]
    assert invoke("attack", "net", *words).exit_code == 0
    expected = options | {"attacks": ["pgd-ce", "square"], "every": True, "root": Path("d"), "progress": False}
    assert told == [((Path("net"), "photos", [0.25, 0.5]), expected)]
    invoke("attack", "net")
    assert told[1][1]["out"] == Path("net", "attack.json") and told[1][1]["progress"] is True
    invoke("attack", "net", "--out", "-")
    assert told[2][1]["out"] == Path("/dev/stdout")


def test_errors_are_one_line_and_status_1(tmp_path):
    command = [sys.executable, "-m", "squareloss", "data", "get", "mnist", "--dir", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.strip() == "squareloss: Unknown data 'mnist'. Available: cifar10, cifar100 (digits need no download)"


def test_what_a_terminal_can_not_show_is_no_error(tmp_path):
    command = [sys.executable, "-m", "squareloss", "data", "list", "--dir", str(tmp_path / "a日b")]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (result.returncode, result.stderr) == (0, "") and "a?b" in result.stdout


def test_a_missing_package_is_one_line_and_a_broken_import_is_not(monkeypatch, capsys):
    def app():
        raise raised

    monkeypatch.setattr(cli, "app", app)
    raised = ImportError('engine "ray" needs Ray; install it with: pip install "squareloss[ray]"')
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err == f"squareloss: {raised}\n"
    raised = ModuleNotFoundError("No module named 'nowhere'", name="nowhere")
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def test_what_files_say_writes_over_no_terminal(monkeypatch, capsys):
    def app():
        raise FileNotFoundError("no file \x1b[2J")

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which `main` replaces
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err == "squareloss: no file \\x1b[2J\n"
    assert warnings.formatwarning("column \x1b[2J", UserWarning, "tables.py", 1) == "squareloss: column \\x1b[2J\n"


def test_unknown_commands_are_status_2(invoke):
    assert invoke("nonsense").exit_code == 2
