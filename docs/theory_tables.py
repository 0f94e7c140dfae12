"""The findings in docs/theory.md, from the results folders of the theorems' studies; `fill.py` puts them there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
    rates = [table for table in found.view.tables if "measured slope" in table.columns][:2]
    return "\n".join(lines + [line for table in rates for line in slopes(table)])


def slopes(table: Table) -> list[str]:
    """A table of slopes in Markdown, under its heading."""
    head = ["| " + " | ".join([table.heading, *table.columns[1:]]) + " |", "|" + " --- |" * len(table.columns)]
    return ["", *head, *("| " + " | ".join(entry.text for entry in row) + " |" for row in table.rows)]


TABLES: dict[str, Callable[[], str]] = {f"theory-{study}": partial(findings, study) for study in STUDIES}
