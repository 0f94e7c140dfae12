"""Fill the tables in README.md and docs/*.md from the files in results/.

    python docs/fill.py            # rewrite what stands between <!-- name --> and <!-- end -->
    python docs/fill.py --check    # exit 1 if a page is stale

What each table shows is in the *_tables.py beside this file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import benchmark_tables  # beside this file
import image_tables
import synthetic_tables
import theory_tables
from markdown_tables import table

ROOT = Path(__file__).resolve().parent.parent


def digits() -> str:
    """The README's first table."""
    data = json.loads((ROOT / "results" / "digits.json").read_text())
    cell = lambda v: f"{v['mean']:.4f} ({v['std']:.4f})"
    rows = [[kind, *(cell(row[key]) for key in ("accuracy", "ece", "brier"))] for kind, row in data["rows"].items()]
    return table(["", "accuracy", "ECE", "Brier score"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "digits": digits,
    **benchmark_tables.TABLES,
    **synthetic_tables.TABLES,
    **theory_tables.TABLES,
    **image_tables.TABLES,
}


def filled(text: str) -> str:
    """A page with its tables made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if pattern.search(text):
            body = make()
            text = pattern.sub(lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text)
    return text


def check_marks(page: Path, text: str) -> None:
    """Raise for a mark that no table belongs to: nothing would ever stand there."""
    unknown = sorted({*re.findall(r"<!-- ([\w-]+) -->", text)} - {*TABLES, "end"})
    if unknown:
        raise SystemExit(f"{page.name}: expected marks of tables in docs/*_tables.py, got {', '.join(unknown)}")


def main() -> int:
    """Fill or check every page."""
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        check_marks(page, text)
        if (new := filled(text)) != text:
            stale.append(page.relative_to(ROOT))
            if "--check" not in sys.argv:
                page.write_text(new)
    if stale:
        print(("stale: " if "--check" in sys.argv else "filled: ") + ", ".join(map(str, stale)))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    raise SystemExit(main())
