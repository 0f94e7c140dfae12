"""The findings in docs/theory.md, from the results folders of the theorems' studies; `fill.py` puts them there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_tables import table  # beside this file

if TYPE_CHECKING:
    from squareloss.lab.report.tables import Table

RESULTS = Path(__file__).resolve().parent.parent / "results" / "theory"
STUDIES = (
    "spectrum", "excess_risk", "separable_rate", "margin", "calibration_rate", "ntk_equivalence", "noise_injection",
    "simplex_probability", "odd_degrees",
)  # fmt: skip


def findings(study: str) -> str:
    """What the report of a study says first, a line each; nothing if there are no results."""
    if not (RESULTS / study).exists():
        return ""
    from squareloss.lab.report import gather

    found = gather(RESULTS / study)[0]
    scale = dict(found.header.facts).get("scale", "")
    lines = [f"- {line}" for line in found.view.sentences] + [f"- Measured at `--scale {scale}`."]
    rates = [made for made in found.view.tables if "measured slope" in made.columns][:2]
    return "\n\n".join(["\n".join(lines), *map(slopes, rates)])


def slopes(made: Table) -> str:
    """A table of slopes, with its heading over the first column."""
    return table([made.heading, *made.columns[1:]], [[entry.text for entry in row] for row in made.rows])


TABLES: dict[str, Callable[[], str]] = {f"theory-{study}": partial(findings, study) for study in STUDIES}
