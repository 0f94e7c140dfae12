"""Gather what a results folder has, and write it as HTML, Markdown, TeX or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from itertools import product
from numbers import Real
from pathlib import Path
from typing import Any

from squareloss._checks import choose
from squareloss.lab.plain import harmless
from squareloss.lab.report import tables, words
from squareloss.lab.report.figures import Figure, figures
from squareloss.lab.report.header import Header, read
from squareloss.lab.report.rows import Row, asked_for, rows_of
from squareloss.lab.report.svg import dashes
from squareloss.lab.report.tables import Table
from squareloss.lab.report.views import View, view
from squareloss.lab.runs.store import Record, Store, StoreError, explained, write_atomically

# facts that change no result: how long, how often, how many networks at once, and what the names of the readings mean
_NO_SETTING = ("cost", "seeds", "together", "probabilities")


@dataclass(frozen=True)
class StudyReport:
    """One study with some settings, as a report shows it.

    Attributes:
        header: what the study says of itself.
        records: the results it asks for.
        rows: what is compared, with the values of every seed; `rows[0].summary("ece")` is their mean, std and n.
        settings: in what it differs from the other settings of the study in the report, in words; "" if there are none.
        others: results of the study that the report does not show at all; the first of its settings tells of them.
        more: results of the same cells with seeds that the header does not ask for, of which every cell has one.
    """

    header: Header
    records: Sequence[Record]
    rows: Sequence[Row]
    settings: str = ""
    others: Sequence[Record] = ()
    more: Sequence[Record] = ()

    @cached_property
    def view(self) -> View:
        """What the study adds of its own."""
        return view(self.records, self.header)

    @property
    def tables(self) -> list[Table]:
        """Those with something in them: results, differences, the paper's, the study's own."""
        found = [tables.results(self.rows, self.header)] if self.view.plain else []
        found += [tables.differences(self.rows, self.header)]
        found += [tables.paper(self.rows, self.header), tables.claims(self.rows, self.header), *self.view.tables]
        return [table for table in found if table.rows]

    @property
    def details(self) -> list[Table]:
        """Those on how the results came about."""
        found = (tables.rates(self.rows), tables.matrix(self.records, self.header), tables.places(self.records))
        return [table for table in found if table.rows]

    @property
    def losses(self) -> str:
        """What the names in a comparison stand for."""
        return words.named(self.header)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and values that describe the setting: the header's, and the replications inside a job."""
        counts = tables.span(record.spec["replications"] for record in self.records if "replications" in record.spec)
        return [*self.header.facts, *([("replications", f"{counts} in a job")] if counts else [])]

    @property
    def figures(self) -> list[Figure]:
        """The figures there is something for."""
        return [*figures(self.rows, self.records), *self.view.figures]

    @property
    def in_short(self) -> list[str]:
        """The answer."""
        return [*self.view.sentences, *words.in_short(self.rows, self.header)]

    @property
    def sentences(self) -> list[str]:
        """Each row against the baseline."""
        return words.summary(self.rows, self.header)

    @property
    def cautions(self) -> list[str]:
        """What must be said with it: missing results first."""
        done = {(record.cell, record.seed) for record in self.records}
        there = [job in done for job in product(self.header.hashes, self.header.seeds)]
        lines = [f"{there.count(False)} of {len(there)} jobs have no result yet."] if not all(there) else []
        if self.more:
            seeds = sorted({record.seed for record in self.more})
            told = f"{len(seeds)} more seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})"
            lines.append(f"Not shown: {told} of the same settings in this folder; --seeds {seeds[-1] + 1} shows all.")
        if self.others:
            last = max(self.others, key=lambda record: record.date)
            count = f"{len(self.others)} result{'s' * (len(self.others) > 1)}"
            lines.append(f"Not shown: {count} of other settings or seeds in this folder, the last of them by: {last.command}")
        return [*lines, *words.cautions(self.rows, self.header)]

    @property
    def commands(self) -> list[str]:
        """The commands that gave the results."""
        return list(dict.fromkeys([*filter(None, [self.header.command]), *(record.command for record in self.records)]))


def gather(folder: str | Path) -> list[StudyReport]:
    """Every study in a results folder, with each of its settings, the last first; StoreError if there is none."""
    store = Store(folder, create=False)
    found = [one for study in store.studies() for one in _settings(study, store)]
    if not found:
        inside = sorted(str(path) for path in Path(folder).iterdir() if path.is_dir() and Store(path, create=False).studies())
        hint = f"pass one of {', '.join(inside)}" if inside else f"run `squareloss compare` or `reproduce` with --out {folder}"
        raise StoreError(f"expected results in {folder}, found none; {hint}")
    return found


def of(header: Header, records: Sequence[Record], settings: Sequence[Header] = ()) -> StudyReport:
    """What a header asks for, and of a study in pieces the seeds there are besides.

    A cell that other `settings` of the study have too may have been run for these: its seeds are shown, and none of the other
    cells is missed for them.
    """
    kept = asked_for(records, header)
    if header.in_pieces:
        shared = {cell for other in settings if other.key != header.key for cell in other.hashes.values()}
        seeds = sorted({*header.seeds, *(record.seed for record in kept if record.hash not in shared)})
        facts = [(name, str(len(seeds)) if name == "seeds" else value) for name, value in header.facts]
        header = replace(header, seeds=seeds, facts=facts)
    mine = {record.path for record in kept}
    rest = [record for record in asked_for(records, replace(header, seeds=())) if record.path not in mine]
    cells = Counter(record.seed for record in rest)
    more = [record for record in rest if cells[record.seed] == len(header.hashes)]
    return StudyReport(header, kept, rows_of(kept, header), more=more)


def _settings(study: str, store: Store) -> list[StudyReport]:
    """A study with each of its settings, the last first; those whose every result later ones show too are left out."""
    records, headers = store.records(study), read(store, study)
    found, shown = list[StudyReport](), set[Path]()
    for header in headers or [Header(study, study)]:
        one = of(header, records, headers)
        mine = {record.path for record in one.records}
        if mine - shown:
            found.append(one)
            shown |= mine
    if len(found) > 1:
        found = [replace(one, settings=text) for one, text in zip(found, _apart(found), strict=True)]
    told = shown.union(record.path for one in found for record in one.more)
    others = [record for record in records if record.path not in told]
    return [replace(one, others=others) if one is found[0] else one for one in found]


def _apart(found: Sequence[StudyReport]) -> list[str]:
    """In what each differs from the others: losses and facts; where these do not tell it, when and by which command."""
    facts = [_told(one) for one in found]
    told = [
        "; ".join(f"{name} {value}" for name, value in mine.items() if any(value != other.get(name) for other in facts))
        for mine in facts
    ]
    clear = [bool(text) and told.count(text) == 1 for text in told]
    runs = [f"those of {max(record.date for record in one.records)}, by: {one.header.command}" for one in found]
    return [text if alone else "; ".join(filter(None, [text, run])) for text, alone, run in zip(told, clear, runs, strict=True)]


def _told(one: StudyReport) -> dict[str, str]:
    """What settings are told apart by."""
    losses = {"losses": ", ".join(one.header.rows)} if one.losses else {}
    return losses | {name: value for name, value in one.header.facts if name not in _NO_SETTING}


def write(folder: str | Path, kind: str | None = None, output: str | Path | None = None) -> Path:
    """Write the report of a results folder and return its path: report.html (or .md, .tex, .csv) in the folder by default.

    Without a format it is the one that the output's name ends in, and html if it has no ending, as /dev/stdout. Control
    characters are written out: it may go to a terminal, at once or by `cat`.
    """
    ending = Path(output or "").suffix.removeprefix(".").lower()
    if kind is None and ending and ending not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise ValueError(f"expected the output to end in one of {known}, got {output}; rename it, or pass --format")
    kind = choose("format", kind or ending or "html", FORMATS)
    path = Path(folder) / f"report.{kind}" if output is None else Path(output)
    text = harmless(FORMATS[kind](gather(folder)))
    with explained(f"write {path}"):
        write_atomically(path, text.encode())
    return path


def page(reports: Sequence[StudyReport]) -> str:
    """One HTML file, with its style, its script and its figures inside."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["dash"] = dashes
    template = environment.from_string((files("squareloss.lab.report") / "page.html").read_text(encoding="utf-8"))
    return template.render(reports=reports, title=" · ".join(dict.fromkeys(report.header.title for report in reports)))


def markdown(reports: Sequence[StudyReport]) -> str:
    """Tables and words as Markdown."""
    lines: list[str] = []
    for report in reports:
        told = [f"# {report.header.title}", "", *([f"Settings: {report.settings}", ""] if report.settings else [])]
        told += [report.losses, ""] if report.losses else []
        cut = [f"Cut to save time: {'; '.join(report.header.cut)}."] if report.header.cut else []
        told += [f"- {line}" for line in [*report.in_short, *cut, *report.cautions]] + [""]
        lines += map(_no_html, told)
        for table in report.tables:
            lines += [_no_html(f"## {table.heading}"), "", *markdown_table(table)]
        lines += ["```", *(" ".join(command.splitlines()) for command in report.commands), "```", ""]
    return "\n".join(lines)


def _no_html(text: str) -> str:
    """Names of columns and classes are anyone's, and Markdown lets HTML through: what would begin a tag is escaped."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def markdown_table(table: Table) -> list[str]:
    """The lines of a table and its caption; what is green or red on the page is bold or italic."""

    def line(texts: Iterable[str]) -> str:
        return "| " + " | ".join(_no_html(text).replace("|", "\\|") for text in texts) + " |"

    table = marked(table)
    lines = [line(table.columns), "| --- " * len(table.columns) + "|"]
    lines += [line(entry.text for entry in row) for row in table.rows]
    return [*lines, "", *([_no_html(table.caption), ""] if table.caption else [])]


def marked(table: Table) -> Table:
    """The same for where there are no colours: what is green is **bold**, what is red *italic*."""
    rows = [[replace(entry, text=_MARKDOWN.get(entry.kind, "%s") % entry.text) for entry in row] for row in table.rows]
    return replace(table, rows=rows, caption=_uncoloured(table.caption))


_MARKDOWN = {"better": "**%s**", "worse": "*%s*"}
_COLOURS = {"Green is": "Bold is", "green is": "bold is", "red is": "italic is", "green:": "bold:"}  # as captions name them


def _uncoloured(caption: str) -> str:
    for colour, face in _COLOURS.items():
        caption = caption.replace(colour, face)
    return caption


def tex(reports: Sequence[StudyReport]) -> str:
    """The tables as LaTeX, for booktabs."""
    lines = ["% needs \\usepackage{booktabs}"]
    for report in reports:
        lines += [f"% {' '.join(command.splitlines())}" for command in report.commands]
        for table in report.tables:
            lines += [
                "",
                "\\begin{table}",
                "\\centering",
                f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
                "\\toprule",
            ]
            lines += [" & ".join(map(_tex, table.columns)) + " \\\\", "\\midrule"]
            lines += [" & ".join(_TEX_FACES.get(e.kind, "%s") % _tex(e.text) for e in row) + " \\\\" for row in table.rows]
            lines += ["\\bottomrule", "\\end{tabular}"]
            settings = f" Settings: {report.settings}." if report.settings else ""
            caption = f"{report.header.title} {table.heading}. {_uncoloured(table.caption)}".strip() + settings
            lines += [f"\\caption{{{_tex(caption)}}}", "\\end{table}"]
    return "\n".join(lines) + "\n"


_TEX_FACES = {"better": "\\textbf{%s}", "worse": "\\textit{%s}"}
_TEX_CHARACTERS = {
    "\\": "\\textbackslash{}",
    "–": "--",
    "+": "$+$",
    "−": "$-$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "~": "\\textasciitilde{}",
    "^": "\\^{}",
}


def _tex(text: str) -> str:
    signed = re.sub(r"(?<!\w)-(?=\d)", "−", harmless(text))  # of a number, no hyphen
    return "".join(f"\\{c}" if c in "&%$#_{}" else _TEX_CHARACTERS.get(c, c) for c in signed)


_DRAWN = {"readings", "reliability", "noise", "attacks", "distances", "curve", "curve_of_first", "figures"}  # rows, figures


def spreadsheet(reports: Sequence[StudyReport]) -> str:
    """One line per number: study, row, seed, measure, index, value, and the settings where a study has several.

    The index is empty for a scalar, else the place in a list, counted from 0: the replication, or the point of a curve. What
    lies deeper is named by its path: "also.temperature.l1_grid", "ridge[3]". What is there to be drawn alone is left out.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["study", "row", "seed", "measure", "index", "value", "settings"])
    for report in reports:
        for row in report.rows:
            for seed, metrics in row.metrics.items():
                kept = {key: value for key, value in metrics.items() if not (key in _DRAWN and isinstance(value, Mapping))}
                lines = _numbers("", kept)
                told = ([report.header.study, row.name, seed, *line, report.settings] for line in lines)
                writer.writerows(map(_no_formulas, told))
    return out.getvalue()


def _no_formulas(line: Sequence[Any]) -> list[Any]:
    """A spreadsheet would compute a text that begins like a formula; behind an apostrophe it is a text."""
    return [f"'{entry}" if isinstance(entry, str) and entry[:1] in tuple("=+-@\t\r") else entry for entry in line]


def _numbers(name: str, value: Any) -> Iterator[tuple[str, int | str, float]]:
    """Measure, index and value of every number in the metrics."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}.{key}" if name else key, inner)
    elif isinstance(value, list) and all(isinstance(inner, Real) for inner in value):
        yield from ((name, place, float(inner)) for place, inner in enumerate(value))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(f"{name}[{place}]", inner)
    elif isinstance(value, Real):
        yield name, "", float(value)


FORMATS: dict[str, Callable[[Sequence[StudyReport]], str]] = {"html": page, "md": markdown, "tex": tex, "csv": spreadsheet}
