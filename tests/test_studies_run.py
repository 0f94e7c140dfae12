"""Studies in pieces: which cells and which seeds a command runs, and what its report shows."""

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from typer.testing import CliRunner

from squareloss import cli
from squareloss.lab import studies
from squareloss.lab.runs import Cell, Result, Store
from squareloss.lab.studies import run


@dataclass(frozen=True)
class Grid:
    """Two networks, each measured in two ways."""

    name, summary, cost = "grid", "what is chosen", MappingProxyType({"smoke": "no time"})

    def cells(self, scale):
        return [Cell(f"{net}-{what}", {"task": "grid", "net": net, "what": what}) for net in "ab" for what in ("clean", "pgd")]

    def run(self, jobs, context):
        for job in jobs:
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


def test_a_pattern_without_a_cell_is_an_error_that_lists_them(reproduce):
    told = str(reproduce("--cells", "a-clea").exception)
    assert "Unknown cell of grid" in told and "a-clean, a-pgd, b-clean, b-pgd" in told and "did you mean 'a-clean'?" in told
    assert "expected --cells" in str(reproduce("--cells", ",").exception)
    assert "Unknown scale" in str(reproduce("--cells", "a-*", "--scale", "big").exception)
