"""The tables of docs/synthetic.md, from the results folders of the two studies; `fill.py` puts them there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path

from markdown_tables import of_report, table  # beside this file

from squareloss.lab.report import StudyReport, gather

RESULTS = Path(__file__).resolve().parent.parent / "results" / "synthetic"
# name of a table in the page -> heading of the report's table
HEADINGS = {
    "claims": "What the paper claims",
    "chosen": "At the chosen mu",
    "readings": "How much the reading matters",
    "instance": "Beside the paper's one instance",
    "slopes": "Slopes",
    "choices": "How the choice of mu matters",
    "nearest": "At the mu best for L_inf",
}
SCALES = ("paper", "laptop")


@cache
def found(study: str, scale: str) -> StudyReport:
    """The report of a study at a scale."""
    return gather(RESULTS / f"{study}-{scale}")[0]


def one(study: str, heading: str) -> str:
    """One table of a report, at the paper's scale."""
    made = next(made for made in found(study, "paper").tables if made.heading == heading)
    return f"At paper scale.\n\n{of_report(made)}"


def survive(study: str) -> str:
    """The verdict on each claim at both scales."""
    verdicts: dict[str, dict[str, str]] = {}
    for scale in SCALES:
        for row in found(study, scale).tables[0].rows:
            verdicts.setdefault(row[0].text.partition(" (at mu")[0], {})[scale] = row[-1].text
    rows = [[text, *(told[scale] for scale in SCALES)] for text, told in verdicts.items()]
    return table(["the paper's claim", "paper scale", "laptop scale"], rows)


def took(study: str) -> str:
    """Seconds of a study at each scale, where and by which command."""
    lines = []
    for scale in SCALES:
        mine = found(study, scale)
        first, seconds = mine.records[0], sum(record.seconds for record in mine.records)
        chip = first.hardware["gpu"] or f"{first.hardware['cpu']}, {first.hardware['cores']} cores"
        lines.append(f"- {scale} scale: {seconds:.0f} s on {chip}, torch {first.versions['torch']}: `{mine.header.command}`")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {}
for _study in ("spirals", "sine"):
    TABLES |= {f"{_study}-survive": partial(survive, _study), f"{_study}-took": partial(took, _study)}
TABLES |= {f"{study}-{name}": partial(one, study, HEADINGS[name]) for study, name in product(("spirals", "sine"), HEADINGS)}
