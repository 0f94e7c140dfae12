"""The command line."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import squareloss
from squareloss import cli
from squareloss.lab.data import download


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


def test_unknown_commands_are_status_2(invoke):
    assert invoke("nonsense").exit_code == 2
