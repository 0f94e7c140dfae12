"""The pages: tables agree with results/, results with the studies, links lead somewhere."""

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from squareloss.lab import studies
from squareloss.lab.runs import SCALES, Store
from squareloss.lab.studies.run import with_settings

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted(path for name in ("synthetic", "theory", "theory-paper") for path in (ROOT / "results" / name).iterdir())
RESULTS += [ROOT / "results" / "images"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_tables_are_made_from_the_results():
    done = subprocess.run([sys.executable, "docs/fill.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr + "run: python docs/fill.py"


def test_a_mark_without_a_table_is_an_error(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "README.md").write_text("<!-- nonsense -->\n<!-- end -->\n")
    done = subprocess.run([sys.executable, "docs/fill.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "README.md: expected marks of tables" in done.stderr and "nonsense" in done.stderr


@pytest.mark.parametrize("folder", RESULTS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_results_are_of_the_experiments_that_the_studies_describe(folder):
    """A study whose settings changed must be run again: its page would show the numbers of another."""
    store = Store(folder, create=False)
    for name in store.studies():
        for command, records in itertools.groupby(store.records(name), key=lambda record: record.command):
            study = with_settings(studies.get(name), re.findall(r"--set (\S+)", command))
            known = {cell.hash() for scale in SCALES for cell in study.cells(scale)}
            assert [record.path for record in records if record.hash not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which is not there"
