"""The pages: tables agree with results/, links lead somewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_tables_are_made_from_the_results():
    done = subprocess.run([sys.executable, "docs/fill.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr + "run: python docs/fill.py"


def test_a_mark_without_a_table_is_an_error(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "README.md").write_text("<!-- nonsense -->\n<!-- end -->\n")
    done = subprocess.run([sys.executable, "docs/fill.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "README.md: expected marks of tables" in done.stderr and "nonsense" in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which is not there"
