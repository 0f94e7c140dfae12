"""Markdown tables, for the scripts that fill the pages."""

from __future__ import annotations

from collections.abc import Sequence

from squareloss.lab.report.tables import Table
from squareloss.lab.report.write import markdown_table


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def of_report(made: Table) -> str:
    """A table of a report as `squareloss report --format md` writes it, with its caption."""
    return "\n".join(markdown_table(made)).rstrip()
