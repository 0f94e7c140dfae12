"""A report in the terminal: the settings before, the table and the words after."""

from __future__ import annotations

from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from squareloss.lab.report import tables
from squareloss.lab.report.header import Header
from squareloss.lab.report.rows import columns_of
from squareloss.lab.report.tables import Table
from squareloss.lab.report.write import StudyReport

STYLES = {"better": "green", "worse": "red", "agrees": "green", "differs": "red"}


def introduce(header: Header, console: Console) -> None:
    """What is going to be done, and what was cut."""
    console.print(f"[bold]{escape(header.title)}[/bold]")
    grid = RichTable.grid(padding=(0, 2))
    lines = [*header.facts, *([("cut to save time", "; ".join(header.cut))] if header.cut else [])]
    for name, value in [*lines, *(("note", note) for note in header.notes)]:
        grid.add_row(f"  {escape(name)}", escape(value))
    console.print(grid)


def conclude(report: StudyReport, console: Console) -> None:
    """The results, the paper's beside them, and what follows."""
    shown = _results(report) if report.view.plain else []
    shown += [tables.paper(report.rows, report.header), tables.claims(report.rows, report.header), *report.view.tables]
    for table in shown:
        if table.rows:
            put(table, console)
    console.print()
    for line in report.sentences:
        console.print(f"- {line}", markup=False, highlight=False)
    if report.cautions:
        console.print()
    for line in report.cautions:
        console.print(f"- {line}", style="dim", markup=False, highlight=False)
    if report.in_short:
        console.print("\n[bold]In short[/bold]")
    for line in report.in_short:
        console.print(line, markup=False, highlight=False)


def _results(report: StudyReport) -> list[Table]:
    """The results; where networks are read in several ways, what is the network's own apart, so that it fits a terminal."""
    rows, columns = report.rows, columns_of(report.rows, report.header)
    networks = [row for i, row in enumerate(rows) if row.cell not in [other.cell for other in rows[:i]]]
    if len(networks) == len(rows):
        return [tables.results(rows, report.header)]
    own = tables.results(networks, report.header, [column for column in columns if column.shared])
    read = tables.results(rows, report.header, [column for column in columns if not column.shared])
    return [replace(own, heading="Networks"), replace(read, heading="Probabilities")]


def put(table: Table, console: Console) -> None:
    """Print a table."""
    console.print(f"\n[bold]{escape(table.heading)}[/bold]")
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(table.columns):
        shown.add_column(name, justify="right" if i else "left", no_wrap=not i)
    for row in table.rows:
        shown.add_row(*(f"[{STYLES[e.kind]}]{escape(e.text)}[/]" if e.kind in STYLES else escape(e.text) for e in row))
    console.print(shown)
    console.print(table.caption, style="dim", markup=False, highlight=False)
