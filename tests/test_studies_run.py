"""Studies in pieces and with several settings: which cells and seeds a command runs, and what its report shows."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from typer.testing import CliRunner

from squareloss import cli
from squareloss.lab import report, studies
from squareloss.lab.runs import Cell, Result, Store
from squareloss.lab.studies import run


@dataclass(frozen=True)
class Grid:
    """Two networks, each measured in two ways."""

    recipe: str = "paper"
    seconds: float = 0.0
    name, summary, cost = "grid", "what is chosen", MappingProxyType({"smoke": "no time"})
    options = MappingProxyType({"recipe": "how to train", "seconds": "of each job"})

    def cells(self, scale):
        spec = {"task": "grid", "recipe": self.recipe}
        return [Cell(f"{net}-{what}", spec | {"net": net, "what": what}) for net in "ab" for what in ("clean", "pgd")]

    def run(self, jobs, context):
        for job in jobs:
            time.sleep(self.seconds)
            yield Result(job, {"value": job.seed})


GRID = Grid()


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    monkeypatch.setitem(studies.STUDIES, "grid", f"{__name__}:GRID")
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "grid", "--scale", "smoke", "--engine", "local", "--quiet", "--out", "out"]
    return lambda *more: CliRunner().invoke(cli.app, [*command, *more])


def done():
    return {(record.cell, record.seed) for record in Store(Path("out")).records("grid")}


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("0,2,4", [0, 2, 4]), ("7,", [7]), ("2-4", [2, 3, 4]), ("5,0-1,1", [0, 1, 5])]
)
def test_seeds_are_a_number_or_a_list(text, seeds):
    assert list(run.parse_seeds(text)) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "1,b", "3-1", "0,3-1", "1,,2", "1.5"])
def test_other_seeds_are_refused(text):
    with pytest.raises(ValueError, match="a list such as 0,2,4"):
        run.parse_seeds(text)


def test_cells_and_seeds_are_chosen_and_add_up_in_the_folder(reproduce):
    assert reproduce("--cells", "*-clean", "--seeds", "1,").exit_code == 0
    assert done() == {("a-clean", 1), ("b-clean", 1)}
    page = Path("out/report.html").read_text()
    assert "2 of 4 jobs have no result yet" in page  # the other cells of the study, at this seed
    assert reproduce("--cells", "a-pgd, b-*", "--seeds", "2-2").exit_code == 0
    assert done() == {("a-clean", 1), ("b-clean", 1), ("a-pgd", 2), ("b-clean", 2), ("b-pgd", 2)}
    assert "3 of 8 jobs have no result yet" in Path("out/report.html").read_text()  # seeds 1 and 2 are both shown
    assert reproduce("--seeds", "1").exit_code == 0  # a number means these; what was done before is shown all the same
    assert "3 of 12 jobs have no result yet" in Path("out/report.html").read_text() and len(done()) == 9


def test_each_of_several_settings_is_shown(reproduce):
    assert reproduce("--seeds", "2").exit_code == 0
    assert reproduce("--set", "recipe=short", "--cells", "a-*", "--seeds", "2,").exit_code == 0
    assert reproduce("--cells", "b-*", "--seeds", "1,3").exit_code == 0  # a piece of the first
    last, before = report.gather("out")
    assert [last.settings, before.settings] == ["recipe paper", "recipe short"]
    assert [(len(found.records), list(found.header.seeds)) for found in (last, before)] == [(10, [0, 1, 3]), (2, [2])]
    assert dict(last.facts)["seeds"] == "3" and "2 of 12 jobs have no result yet." in last.cautions
    assert "2 of 4 jobs have no result yet." in before.cautions and not (last.others or before.others)
    told = " ".join(reproduce("--set", "recipe=short", "--seeds", "2,").output.split())
    assert "recipe short" in told and "recipe paper" not in told  # a terminal shows what it was asked for alone
    assert [found.settings for found in report.gather("out")] == ["recipe short", "recipe paper"]


def as_a_process(*options):
    """What the processes below do; they wait for each other before they start."""
    studies.STUDIES["grid"] = f"{__name__}:GRID"
    Path(f"ready-{options[-1]}").touch()
    while len(list(Path().glob("ready-*"))) < 3:
        time.sleep(0.005)
    cli.app(["reproduce", "grid", "--scale", "smoke", "--engine", "local", "--quiet", "--out", "out", *options])


def test_processes_with_other_seeds_and_settings_in_one_folder_do_no_harm(tmp_path):
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_studies_run; test_studies_run.as_a_process(*sys.argv[2:])"
    start = [sys.executable, "-c", code, str(Path(__file__).parent), "--set", "seconds=0.1"]
    options = (["--seeds", "0-1"], ["--seeds", "2-3"], ["--set", "recipe=short", "--seeds", "0,"])
    started = [subprocess.Popen([*start, *more], cwd=tmp_path, stderr=subprocess.PIPE, text=True) for more in options]
    assert [(process.communicate()[1], process.returncode) for process in started] == [("", 0)] * 3
    found = {one.settings: one for one in report.gather(tmp_path / "out")}
    assert {name: len(one.records) for name, one in found.items()} == {"recipe paper": 16, "recipe short": 4}
    assert not any("no result yet" in line or "Not shown" in line for one in found.values() for line in one.cautions)


def test_a_pattern_without_a_cell_is_an_error_that_lists_them(reproduce):
    told = str(reproduce("--cells", "a-clea").exception)
    assert "Unknown cell of grid" in told and "a-clean, a-pgd, b-clean, b-pgd" in told and "did you mean 'a-clean'?" in told
    assert "expected --cells" in str(reproduce("--cells", ",").exception)
    assert "Unknown scale" in str(reproduce("--cells", "a-*", "--scale", "big").exception)
