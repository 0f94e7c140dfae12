"""A report in the terminal: the settings before, the table and the words after."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from itertools import product
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as _escape
from rich.padding import Padding
from rich.table import Column
from rich.table import Table as RichTable

from squareloss.lab.plain import harmless
from squareloss.lab.report import tables
from squareloss.lab.report.header import Header
from squareloss.lab.report.rows import columns_of, one_per_cell
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.words import named
from squareloss.lab.report.write import StudyReport, marked

STYLES = {"better": "green", "worse": "red", "agrees": "green", "differs": "red"}
_GAP = 3  # between the columns of a table
# rich before 14.3 makes the first and the last column wider by the padding that they do not have
_EDGE = 1 if tuple(map(int, version("rich").split(".")[:2])) < (14, 3) else 0


def escape(text: str) -> str:
    """A text of anyone's as it is to be seen: neither markup nor control characters."""
    return _escape(harmless(text))


def introduce(header: Header, console: Console) -> None:
    """What is going to be done, and what was cut."""
    console.print(f"[bold]{escape(header.title)}[/bold]")
    grid = RichTable.grid("", Column(overflow="fold"), padding=(0, 2))  # long names too are told whole
    losses = named(header)
    lines = [
        *([("losses", losses)] if losses else []),
        *header.facts,
        *([("cut to save time", "; ".join(header.cut))] if header.cut else []),
    ]
    for name, value in [*lines, *(("note", note) for note in header.notes)]:
        grid.add_row(f"  {escape(name)}", escape(value))
    console.print(grid)


def conclude(report: StudyReport, console: Console) -> None:
    """The results, the paper's beside them, and what follows; of a view's tables the first few, the others by name."""
    shown = _results(report) if report.view.plain else []
    shown += [tables.paper(report.rows, report.header), tables.claims(report.rows, report.header)]
    shown += report.view.tables[: report.view.brief]
    for table in shown:
        if table.rows:
            put(table, console)
    others = [table.heading for table in report.view.tables[report.view.brief :]]
    if others:
        _say(f"\nMore tables in the report: {'; '.join(others)}.", console)
    if report.sentences or report.cautions:
        console.print()
    for line in report.sentences:
        _say(f"- {line}", console)
    for line in report.cautions:
        _say(f"- {line}", console, "dim")
    if report.in_short:
        console.print("\n[bold]In short[/bold]")
    for line in report.in_short:
        _say(line, console)


def _say(text: str, console: Console, style: str = "") -> None:
    console.print(harmless(text), style=style, markup=False, highlight=False)


def _results(report: StudyReport) -> list[Table]:
    """The results; where networks are read in several ways, what is the network's own apart, so that it fits a terminal."""
    rows, columns = report.rows, columns_of(report.rows, report.header)
    networks = one_per_cell(rows)
    if len(networks) == len(rows):
        return [tables.results(rows, report.header)]
    networks = [replace(row, name=row.cell) for row in networks]
    header = replace(report.header, baseline=report.header.baseline.partition("+")[0])
    own = tables.results(networks, header, [column for column in columns if column.shared])
    read = tables.results(rows, report.header, [column for column in columns if not column.shared])
    return [replace(own, heading="Networks"), replace(read, heading="Probabilities")]


def put(table: Table, console: Console) -> None:
    """Print a table: as it is or on its side, on one line per row or on two, else as a list; nothing is cut off."""
    console.print(f"\n[bold]{escape(table.heading)}[/bold]")
    table = table if console.color_system else marked(table)
    for lines, drawn in product((1, 2), (table, table.turned(table.columns[0]))):
        widths = _widths(drawn, lines, console.width)
        if widths is not None:
            console.print(_drawn(drawn, widths))
            break
    else:
        _listed(table, console)
    if table.caption:
        _say(table.caption, console, "dim")


def _widths(table: Table, lines: int, room: int) -> list[int] | None:
    """Of the columns, so that entries take so many lines at most, headings any number; None if that does not fit."""
    least = [
        max(*(len(word) for word in (*name.split(), "")), *(_width(row[i].text, lines) for row in table.rows))
        for i, name in enumerate(table.columns)
    ]
    spare = room - sum(least) - _GAP * (len(least) - 1)
    if spare < 0:
        return None
    full = [max(len(name), *(len(row[i].text) for row in table.rows)) for i, name in enumerate(table.columns)]
    wish = [most - width for most, width in zip(full, least, strict=True)]
    for i in sorted(range(len(least)), key=lambda i: wish[i]):  # what is left makes as many columns whole as can be
        more = min(wish[i], spare)
        least[i], spare = least[i] + more, spare - more
    return least


def _width(text: str, lines: int) -> int:
    """The least width in which a text takes so many lines, broken between words alone."""
    if lines == 1:
        return len(text)
    longest = max((len(word) for word in text.split()), default=0)
    return next(width for width in range(longest, len(text) + 1) if not text or len(wrap(text, width)) <= lines)


def _drawn(table: Table, widths: list[int]) -> RichTable:
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, (name, width) in enumerate(zip(table.columns, widths, strict=True)):
        edges = (i == 0) + (i == len(widths) - 1)
        shown.add_column(escape(name), justify="right" if i else "left", width=max(1, width - edges * _EDGE))
    for row in table.rows:
        shown.add_row(*map(_styled, row))
    return shown


def _listed(table: Table, console: Console) -> None:
    """A paragraph per row: its name, and the verdict if the last column has one; then the other columns by name."""
    for row in table.rows:
        verdict = bool(row[-1].kind or isinstance(row[-1].value, str)) and len(row) > 1
        middle = list(zip(table.columns, row, strict=True))[1 : -1 if verdict else None]
        end = f": {_styled(row[-1])}" if verdict else ""
        console.print(f"{escape(row[0].text)}{end}", highlight=False)
        told = "; ".join(f"{escape(name)}: {_styled(entry)}" for name, entry in middle if entry.text)
        console.print(Padding(told, (0, 0, 0, 4)), highlight=False)


def _styled(entry: Entry) -> str:
    text = escape(entry.text)
    return f"[{STYLES[entry.kind]}]{text}[/]" if entry.kind in STYLES else text
