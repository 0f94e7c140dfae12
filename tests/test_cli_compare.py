"""compare, reproduce and report from the command line, as a new user would."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from typer.testing import CliRunner

from squareloss import cli
from squareloss.lab import studies
from squareloss.lab.report import views
from squareloss.lab.report.header import Claim, Column
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.runs import Cell, Result
from squareloss.lab.studies import run

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = ("--quick", "--seeds", "2", "--epochs", "2", "--attacked", "20", "--device", "cpu", "--engine", "local")


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """Run a command in an empty folder; errors as `main` tells them."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda *args: CliRunner().invoke(cli.app, [str(a) for a in args])
    torch.set_num_threads(threads)


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_csv_from_the_example(invoke, tmp_path):
    example("make_csv").main(str(tmp_path / "customers.csv"), 150)
    result = invoke("compare", "customers.csv", "--target", "leaves", *SMALL)
    assert result.exit_code == 0, result.output
    for part in (
        "Which loss for customers?",
        "cut to save time",
        "column 'income'",
        "decision margin",
        "In short",
        "simplex against ce",
    ):
        assert part in result.output
    assert f"report: {Path('runs/compare-customers/report.html')}" in result.output
    assert "Which loss for customers?" in Path("runs/compare-customers/report.html").read_text()
    before = {p: p.stat().st_mtime_ns for p in Path("runs").rglob("seed*.json")}
    assert len(before) == 4
    again = invoke("compare", "customers.csv", "--target", "leaves", *SMALL)
    assert again.exit_code == 0 and "4 of them done before" in again.output
    assert {p: p.stat().st_mtime_ns for p in Path("runs").rglob("seed*.json")} == before
    invoke("compare", "customers.csv", "--target", "leaves", *SMALL, "--force", "--quiet")
    assert all(p.stat().st_mtime_ns > stamp for p, stamp in before.items())


def test_a_folder_of_images_from_the_example_with_a_network_of_ones_own(invoke, tmp_path):
    example("make_image_folder").main(str(tmp_path / "shapes"), 12)
    Path("mynet.py").write_text(
        "import math\nfrom torch import nn\n\n"
        "def build(shape, outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))\n"
    )
    result = invoke("compare", "shapes/", "--size", "16", "--model", "mynet:build", "--eps", "1/255,4/255", *SMALL)
    assert result.exit_code == 0, result.output
    assert "robust accuracy at 4/255" in result.output and "mynet:build" in result.output
    (record, *_) = Path("runs/compare-shapes/compare").glob("simplex-*/seed0.json")
    attacks = json.loads(record.read_text())["metrics"]["attacks"]
    assert attacks["eps"] == [1 / 255, 4 / 255] and set(attacks["robust"]) == {
        "ce",
        "margin",
        "angle",
        "residual",
        "worst case",
    }


def test_results_do_not_go_into_the_folder_of_the_data(invoke, tmp_path, monkeypatch):
    example("make_image_folder").main(str(tmp_path / "shapes"), 12)
    inside = invoke("compare", "shapes", "--size", "8", "--out", "shapes/results", *SMALL)
    monkeypatch.chdir(tmp_path / "shapes")
    by_default = invoke("compare", ".", "--size", "8", *SMALL)
    for result in (inside, by_default):
        assert "expected results outside of the data, got" in str(result.exception)
    assert not Path("runs").exists() and not Path("results").exists()


def test_report_in_every_format(invoke, tmp_path):
    example("make_csv").main(str(tmp_path / "customers.csv"), 120)
    assert (
        invoke("compare", "customers.csv", "--target", "leaves", "--losses", "simplex", "--out", "out", *SMALL).exit_code == 0
    )
    for kind, part in (
        ("html", "<!doctype html>"),
        ("md", "# Which loss"),
        ("tex", "\\begin{tabular}"),
        ("csv", "study,row,seed"),
    ):
        result = invoke("report", "out", "--format", kind)
        assert result.exit_code == 0 and result.output.strip() == str(Path("out") / f"report.{kind}")
        assert part in Path("out", f"report.{kind}").read_text()
    assert invoke("report", "out", "--output", "page.html").exit_code == 0 and Path("page.html").exists()
    invoke("report", "out", "--output", "tables.tex")
    assert Path("tables.tex").read_bytes() == Path("out/report.tex").read_bytes()
    refused = invoke("report", "out", "--output", "page.pdf")
    assert "expected the output to end in one of .html, .md, .tex, .csv, got page.pdf" in str(refused.exception)
    assert not Path("page.pdf").exists()
    for name, *more in (["page"], ["PAGE.HTML"], ["page.htm", "--format", "html"]):
        assert invoke("report", "out", "--output", name, *more).exit_code == 0
        assert Path(name).read_bytes() == Path("out/report.html").read_bytes()
    with Path("redirected.csv").open("wb") as stdout:  # as of a shell: > redirected.csv
        Path("stdout").symlink_to(f"/proc/{os.getpid()}/fd/{stdout.fileno()}")
        assert invoke("report", "out", "--format", "csv", "--output", "stdout").output == ""
    assert Path("stdout").is_symlink() and Path("redirected.csv").read_bytes() == Path("out/report.csv").read_bytes()
    command = [sys.executable, "-m", "squareloss", "report", "out", "--format", "csv", "--output", "-"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == Path("out/report.csv").read_bytes()
    assert not Path("-").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--losses", "ce,simplx"], "Unknown loss 'simplx'.*did you mean 'simplex'"),
        (["compare", "--model", "resnet19"], "Unknown model 'resnet19'.*did you mean 'resnet18'"),
        (["compare", "--recipe", "fats"], "Unknown recipe 'fats'.*did you mean 'fast'"),
        (["compare", "table.csv", "--target", "Leave"], "got the columns a, leaves; did you mean 'leaves'"),
        (["compare", "nowhere.csv"], "Unknown data 'nowhere.csv'.*Available: digits"),
        (["compare", "tabel.csv"], "Unknown data 'tabel.csv'.*did you mean 'table.csv'"),
        (["compare", "digit"], "Unknown data 'digit'.*did you mean 'digits'"),
        (["compare", "--engine", "rai"], "Unknown engine 'rai'. Available: auto, local, processes, ray; did you mean 'ray'"),
        (["reproduce", "spirals", "--device", "gpu"], "Unknown device 'gpu'. Available: auto, cpu, cuda"),
        (["reproduce", "spirals", "--workers", "0"], "expected one worker or more, got 0"),
        (["compare", "--lrs", "0.1;0.2"], "expected --lrs to be numbers separated by commas"),
        (["compare", "--lrs", "1e999"], "expected --lrs to be numbers separated by commas"),
        (["compare", "--engine", "slurm", "--quick"], "Unknown engine 'slurm'. Available: auto, local, processes, ray"),
        (["reproduce", "tabel1"], "Unknown study 'tabel1'. Available: "),
        (["reproduce", "toy", "--scale", "papr"], "Unknown scale 'papr'.*did you mean 'paper'"),
        (["report", "nowhere"], "expected a results folder at nowhere, found none"),
        (["reproduce", "toy", "--tensorboard", "/dev/null"], "expected --tensorboard to be a folder, got the file /dev/null"),
    ],
)
def test_mistakes_are_named_with_what_would_be_right(invoke, monkeypatch, arguments, message):
    monkeypatch.setitem(studies.STUDIES, "toy", f"{__name__}:TOY")
    Path("table.csv").write_text("a,leaves\n1,x\n2,y\n")
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, (ValueError, OSError))
    assert re.search(message, str(result.exception))
    assert not Path("runs").exists()  # nothing is left behind


def test_help_is_enough(invoke):
    text = re.sub(r"\W+", " ", invoke("compare", "--help").output)
    for part in ("csv", "target", "temperature", "squentropy", "package module function", "quick", "Examples"):
        assert part in text
    assert {"compare", "reproduce", "report", "data"} <= set(re.findall(r"\w+", invoke("--help").output))


class Toy:
    """A study as `reproduce` takes them."""

    name, summary = "toy", "square loss is lower"
    columns = (Column("error", "error", "lower", digits=3),)
    claims = (Claim("error", "SL", "CE", "SL errs less"),)

    def __init__(self):
        self.cost = {"smoke": "no time", "paper": "no more"}
        self.paper = {"SL": {"error": [0.1, 0.01, 3]}, "CE": {"error": [0.9, 0.01, 3]}}

    def cells(self, scale):
        return [Cell(name, {"task": "toy", "loss": name, "scale": scale}) for name in ("CE", "SL", "broken")]

    def run(self, jobs, context):
        for job in jobs:
            if job.cell.name == "broken":
                raise RuntimeError("this one is broken")
            base, step = {"CE": (0.2, 0.001), "SL": (0.1, 0.0011)}[job.cell.name]
            yield Result(job, {"error": base + step * job.seed})


TOY = Toy()


def test_the_list_of_studies_fits_and_says_a_setting_once(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = invoke("reproduce", "list").output
    for name in studies.STUDIES:
        assert re.search(rf"^{name} ", listed, re.MULTILINE)
    assert max(map(len, listed.splitlines())) <= 80 and listed.count("--set recipe=") == 1
    assert max(map(len, run.listing(60).splitlines())) <= 70  # the first line says how to call them
    assert run.listing(20) == run.listing(40)  # narrower than the column of names: the terminal breaks the lines


def test_ctrl_c_ends_with_what_is_kept(invoke, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "listing", stop)
    result = invoke("reproduce", "list")
    assert result.exit_code == 130 and "What is done is kept; the same command goes on." in result.output


def test_help_shows_patterns_as_they_are_typed(invoke):
    assert "resnet18-*,*-clean" in invoke("reproduce", "--help").output


def test_reproduce_prints_the_papers_values_and_what_failed(invoke, monkeypatch):
    monkeypatch.setitem(studies.STUDIES, "toy", f"{__name__}:TOY")
    listed = invoke("reproduce", "list").output
    assert "toy" in listed and "square loss is lower" in listed and "smoke: no time" in listed
    result = invoke("reproduce", "toy", "--scale", "smoke", "--seeds", "3", "--engine", "local", "--quiet")
    assert result.exit_code == 1  # since one cell failed
    assert "this one is broken" in result.output
    assert re.search(r"SL\s+error\s+0\.101 \(0\.001\)\s+0\.100 \(0\.010\)\s+agrees", result.output)
    assert re.search(r"CE\s+error\s+0\.201 \(0\.001\)\s+0\.900 \(0\.010\)\s+differs", result.output)
    assert "SL errs less" in result.output and "holds: -0.100" in result.output
    page = Path("runs/toy-smoke/report.html").read_text()
    assert "Beside the paper" in page and "SL errs less" in page and "3 of 9 jobs have no result yet" in page


@dataclass(frozen=True)
class Readings:
    """A study with settings and a number of seeds of its own."""

    penalty: str = "sum"
    lr: float = 0.5
    name, summary = "readings", "what can be set"
    cost, seeds = MappingProxyType({"smoke": "no time"}), MappingProxyType({"smoke": 2})
    options = MappingProxyType({"penalty": "sum or mean", "lr": "learning rate"})

    def cells(self, scale):
        return [Cell("only", {"task": "readings", "penalty": self.penalty, "lr": self.lr})]

    def run(self, jobs, context):
        for job in jobs:
            yield Result(job, {"value": job.cell.spec["lr"] + job.seed})


READINGS = Readings()


def view(records, header):
    """As the modules of `report.views` have one."""
    values = [record.metrics["value"] for record in records]
    return View(
        tables=[Table("Sum", ["sum"], [[Entry(f"{sum(values):g}")]])], sentences=[f"The most is {max(values):g}."], plain=False
    )


def test_a_study_has_settings_seeds_and_a_view_of_its_own(invoke, monkeypatch):
    monkeypatch.setitem(studies.STUDIES, "readings", f"{__name__}:READINGS")
    monkeypatch.setitem(views.VIEWS, "readings", __name__)
    assert "--set lr=0.5: learning rate" in invoke("reproduce", "list").output
    command = ["reproduce", "readings", "--scale", "smoke", "--engine", "local", "--quiet"]
    result = invoke(*command, "--set", "lr=0.25")
    assert result.exit_code == 0
    assert re.search(r"Sum\s+sum\s+─+\s+1.5\s", result.output) and "The most is 1.25." in result.output
    assert "Results" not in result.output
    page = Path("runs/readings-smoke/report.html").read_text()
    assert "The most is 1.25." in page and "<td>1.5</td>" in re.sub(r"<td[^>]*>", "<td>", page)
    for setting, told in {"lr": "NAME=VALUE", "lr=x": "like 0.5, got 'x'", "rl=1": "did you mean 'lr'"}.items():
        assert told in str(invoke(*command, "--set", setting).exception)


def test_a_smaller_piece_shows_what_was_done_before_of_the_same_cells(invoke, monkeypatch):
    monkeypatch.setitem(studies.STUDIES, "readings", f"{__name__}:READINGS")
    monkeypatch.setitem(views.VIEWS, "readings", __name__)
    command = ["reproduce", "readings", "--scale", "smoke", "--engine", "local", "--quiet", "--seeds"]
    assert "The most is 2.5." in invoke(*command, "0,2").output
    assert "The most is 2.5." in invoke(*command, "1").output
    other = invoke(*command, "1", "--set", "lr=0.25").output
    assert "The most is 0.25." in other and "no result yet" not in other
    wrong = ["reproduce", "readings", "--scale", "smoek", "--out", "runs/readings-smoke"]
    assert "did you mean 'smoke'" in str(invoke(*wrong).exception)


def test_a_pool_of_processes_and_one_process_agree(tmp_path):
    """The whole program, twice: as a user starts it, and in one process."""
    example("make_csv").main(str(tmp_path / "customers.csv"), 120)
    found = {}
    for engine in ("processes", "local"):
        command = [sys.executable, "-m", "squareloss", "compare", "customers.csv", "--target", "leaves", *SMALL[:-1], engine]
        done = subprocess.run(
            [*command, "--out", engine], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        records = sorted((tmp_path / engine).rglob("seed*.json"))
        found[engine] = [json.loads(path.read_text())["metrics"] for path in records]
        assert "--engine" in json.loads(records[0].read_text())["command"]
    assert len(found["local"]) == 4 and found["local"] == found["processes"]


def test_losses_that_all_diverge_are_said_to_and_fail(invoke):
    result = invoke("compare", "digits", *SMALL, "--lrs", "1e30", "--out", "r")
    assert result.exit_code == 1 and "No loss could be trained" in " ".join(result.output.split())
    assert "over no seeds" not in result.output
