"""The tables of docs/synthetic.md, from the results folders of the two studies; `fill.py` puts them there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from markdown_tables import of_report, table  # beside this file

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
def found(study: str, scale: str) -> Any:
    """The report of a study at a scale, or None."""
    if not (RESULTS / f"{study}-{scale}").exists():
        return None
    from squareloss.lab.report import gather

    return gather(RESULTS / f"{study}-{scale}")[0]


def one(study: str, heading: str) -> str:
    """One table of a report, at the largest scale there is."""
    scale = next((scale for scale in SCALES if found(study, scale)), None)
    tables = [t for t in found(study, scale).tables if t.heading == heading] if scale else []
    if not tables:
        return "Not run yet."
    return f"At {scale} scale.\n\n{of_report(tables[0])}"


def survive(study: str) -> str:
    """The verdict on each claim at both scales."""
    verdicts: dict[str, dict[str, str]] = {}
    for scale in SCALES:
        for row in found(study, scale).tables[0].rows if found(study, scale) else ():
            verdicts.setdefault(row[0].text.partition(" (at mu")[0], {})[scale] = row[-1].text
    rows = [[text, *(told.get(scale, "not run yet") for scale in SCALES)] for text, told in verdicts.items()]
    return table(["the paper's claim", "paper scale", "laptop scale"], rows) if rows else "Not run yet."


def took(study: str) -> str:
    """Seconds of a study at each scale, where and by which command."""
    lines = []
    for scale in SCALES:
        if mine := found(study, scale):
            first, seconds = mine.records[0], sum(record.seconds for record in mine.records)
            chip = first.hardware["gpu"] or f"{first.hardware['cpu']}, {first.hardware['cores']} cores"
            lines.append(
                f"- {scale} scale: {seconds:.0f} s on {chip}, torch {first.versions['torch']}: `{mine.header.command}`"
            )
    return "\n".join(lines) or "Not run yet."


TABLES: dict[str, Callable[[], str]] = {}
for _study in ("spirals", "sine"):
    TABLES |= {f"{_study}-survive": partial(survive, _study), f"{_study}-took": partial(took, _study)}
TABLES |= {f"{study}-{name}": partial(one, study, HEADINGS[name]) for study, name in product(("spirals", "sine"), HEADINGS)}
