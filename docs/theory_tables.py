"""The findings in docs/theory.md, from the results folders of the theorems' studies; `fill.py` puts them there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from markdown_tables import table  # beside this file

from squareloss.lab.report import StudyReport, gather
from squareloss.lab.report.tables import Table

RESULTS = Path(__file__).resolve().parent.parent / "results"
FOLDERS = {"paper": RESULTS / "theory-paper", "laptop": RESULTS / "theory"}
STUDIES = (
    "spectrum", "excess_risk", "separable_rate", "margin", "calibration_rate", "ntk_equivalence", "noise_injection",
    "simplex_probability", "odd_degrees",
)  # fmt: skip


@cache
def found(study: str, scale: str = "paper") -> StudyReport:
    """The report of a study at a scale."""
    return gather(FOLDERS[scale] / study)[0]


def findings(study: str) -> str:
    """What the report of a study says first, a line each, and its rates."""
    mine = found(study)
    lines = [f"- {line}" for line in mine.view.sentences] + [f"- Its jobs at `--scale paper` took {took(mine)}."]
    return "\n\n".join(["\n".join(lines), *map(slopes, rates(mine)[:2])])


def took(mine: StudyReport) -> str:
    """The seconds of its jobs, machine by machine, as the records have them."""
    seconds: dict[str, float] = {}
    for record in mine.records:
        chip = record.hardware["gpu"] or f"a core of {record.hardware['cpu']}"
        seconds[chip] = seconds.get(chip, 0.0) + record.seconds
    return ", ".join(f"{total:.0f} s on {chip}" for chip, total in sorted(seconds.items()))


def rates(mine: StudyReport) -> list[Table]:
    """The tables of slopes in a report."""
    return [made for made in mine.view.tables if "measured slope" in made.columns]


def slopes(made: Table) -> str:
    """A table of slopes, with its heading over the first column."""
    return table([made.heading, *made.columns[1:]], [[entry.text for entry in row] for row in made.rows])


def scales() -> str:
    """The slopes of each study at both scales, one line a table; exact ones are the same at any scale and left out."""
    rows = []
    for study in STUDIES:
        for large, small in zip(*(rates(found(study, scale))[:2] for scale in FOLDERS), strict=True):
            place = large.columns.index("measured slope")
            if large.rows[0][place + 1].text != "exact":
                known = {row[0].text: row[place].text for row in small.rows}
                names = [row[0].text for row in large.rows]
                told = [", ".join(known.get(name, "–") for name in names), ", ".join(row[place].text for row in large.rows)]
                rows.append([f"`{study}`: {large.heading[0].lower()}{large.heading[1:]}", *told])
    return table(["measured slopes, in the order of the tables above", "laptop", "paper"], rows)


TABLES: dict[str, Callable[[], str]] = {f"theory-{study}": partial(findings, study) for study in STUDIES}
TABLES["theory-scales"] = scales
