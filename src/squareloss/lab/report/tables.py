"""The tables of a report: plain lists of cells, which the page, Markdown, TeX and CSV each write in their way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from squareloss.lab.report.header import Column, Header
from squareloss.lab.report.rows import Row, columns_of, one_per_cell
from squareloss.lab.report.statistics import agreement, mean_std
from squareloss.lab.report.words import BETTER, WORSE, judge, like_with_like, verdicts
from squareloss.lab.runs.store import Record

_LONG = 45  # characters: more is a sentence, not a number with its interval


@dataclass(frozen=True)
class Entry:
    """A cell of a table: what is shown, what it is sorted by, and a word for its style ("better", "worse", "agrees", ...).

    Without a value it is sorted by its text, and set to the right as a number is.
    """

    text: str
    value: float | str | None = None
    kind: str = ""

    @classmethod
    def words(cls, text: str, kind: str = "") -> Entry:
        """Words, set to the left and sorted as such."""
        return cls(text, text, kind)

    @classmethod
    def number(cls, value: float | None, form: str) -> Entry:
        """A number as `format` writes it, such as ".4f" or ".1%"; a dash where there is none."""
        return cls("–" if value is None else format(value, form), value)


@dataclass(frozen=True)
class Table:
    """A heading, the names of the columns, the rows, and a line of explanation."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    caption: str = ""

    @property
    def wordy(self) -> bool:
        """Whether some entry is a sentence, which may take several lines; numbers stay on one."""
        return any(len(entry.text) > _LONG for row in self.rows for entry in row)

    def turned(self, corner: str) -> Table:
        """The same on its side, columns as rows, with another word in the corner."""
        names = [corner, *(row[0].text for row in self.rows)]
        body = [[Entry.words(name), *(row[i] for row in self.rows)] for i, name in enumerate(self.columns) if i]
        return Table(self.heading, names, body, self.caption)


def results(rows: Sequence[Row], header: Header, columns: Sequence[Column] | None = None) -> Table:
    """Mean (std) of every row in every column, with its verdict against the baseline; on its side if that is less wide."""
    columns = columns_of(rows, header) if columns is None else columns
    words = {(_owner(v.row, v.column), v.column.key): v.word for v in verdicts(rows, header)}
    body = [
        [Entry.words(row.name), *(_value(row, column, words.get((_owner(row, column), column.key), "")) for column in columns)]
        for row in rows
    ]
    seeds = span(len(row.metrics) for row in rows if row.metrics)
    caption = {"": "Nothing to show.", "1": "One seed."}.get(seeds, f"Mean (standard deviation) over {seeds} seeds.")
    if header.baseline and any(word in (BETTER, WORSE) for word in words.values()):
        caption += (
            f" Green is better than {header.baseline}, red is worse, where the 95% interval of the difference excludes zero."
        )
    table = Table("Results", ["name", *(column.heading for column in columns)], body, caption)
    return table.turned("measure") if len(columns) > max(6, len(rows)) else table


def span(counts: Iterable[int]) -> str:
    """The least and the largest: "3 to 5", or "3" where they are one; "" of none."""
    found = sorted(set(counts))
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else "".join(map(str, found))


def _owner(row: Row, column: Column) -> str:
    """What has a value: the network, where all readings of it share the value, else the row."""
    return row.cell if column.shared else row.name


def _value(row: Row, column: Column, word: str) -> Entry:
    found = row.summary(column.key)
    return Entry(mean_std(found.mean, found.std, column.show), found.mean, word if word in (BETTER, WORSE) else "")


def differences(rows: Sequence[Row], header: Header) -> Table:
    """Every verdict: the difference to the baseline, its interval, and what it means; then like with like."""
    found = [*verdicts(rows, header), *like_with_like(rows, header)]
    body = []
    for v in found:
        show, d = v.column.show, v.difference
        interval = d.interval(partial(show, signed=True)) or "–"
        mine, theirs = (row.summary(v.column.key).mean for row in (v.row, v.other))
        body.append(
            [
                Entry(v.column.heading, v.column.label), Entry.words(v.row.name), Entry(show(mine), mine),
                Entry.words(v.other.name), Entry(show(theirs), theirs), Entry(show(d.value, True), d.value),
                Entry(interval, d.low), Entry.words(v.word, v.word.split()[0]),
            ]
        )  # fmt: skip
    grounds = dict.fromkeys(v.difference.how for v in found)
    # "one seed" alone, of what has no interval, says nothing beside "one seed, bootstrap of the test points"
    how = "; ".join(each for each in grounds if not any(other.startswith(f"{each}, ") for other in grounds))
    caption = f"95% intervals of the difference: {how}." + (
        " Widened for training sets that overlap, since each seed draws its own split (Nadeau and Bengio 2003)."
        if header.overlap and "paired" in how
        else ""
    )
    names = ["measure", "loss", "value", "against", "value", "difference", "95% interval", "so it is"]
    return Table("Differences", names, body, caption)


def paper(rows: Sequence[Row], header: Header) -> Table:
    """Ours beside the paper's, where the paper has a value."""
    body = []
    for row in rows:
        for column in columns_of(rows, header):
            theirs = header.paper.get(row.name, {}).get(column.key)
            ours = row.summary(column.key)
            if theirs is None or ours.mean is None:  # what was not run has nothing to stand beside
                continue
            word = agreement(ours, theirs)
            mean, std, _ = theirs
            texts = [mean_std(ours.mean, ours.std, column.show), mean_std(mean, std, column.show)]
            body.append(
                [
                    Entry.words(row.name), Entry(column.heading, column.label), Entry(texts[0], ours.mean),
                    Entry(texts[1], mean), Entry(word or "no error known", word, word),
                ]
            )  # fmt: skip
    caption = (
        "Mean (std). Agrees: within two standard errors of the difference, of ours and of the paper's where it gives one. "
        "Differs: outside of its 95% interval (Welch's), which is wide for few seeds."
    )
    return Table("Beside the paper", ["name", "measure", "ours", "the paper's", "so it"], body, caption)


def claims(rows: Sequence[Row], header: Header) -> Table:
    """The directions that the paper claims, and whether they show here."""
    body = []
    for claim in header.claims:
        told = judge(claim, rows, header)
        kind = "agrees" if told.startswith("holds") else "differs" if told.startswith("does not") else ""
        text = claim.text or f"{claim.better} beats {claim.worse} in {claim.key}"
        body.append([Entry.words(text), Entry.words(told, kind)])
    return Table("What the paper claims", ["the paper", "here"], body)


def rates(rows: Sequence[Row]) -> Table:
    """The learning rates that were tried: validation accuracy of each, and how often it was chosen."""
    tried: dict[tuple[str, float], list[tuple[float | None, bool]]] = defaultdict(list)
    for row in one_per_cell(rows):
        for metrics in row.metrics.values():
            for entry in metrics.get("grid", []):
                tried[row.cell, entry["lr"]].append((entry["accuracy"], entry["lr"] == metrics.get("lr")))
    body = []
    for (cell, lr), found in sorted(tried.items()):
        scores = [score for score, _ in found if score is not None]
        mean = sum(scores) / len(scores) if scores else None
        lost = len(found) - len(scores)
        body.append(
            [
                Entry.words(cell), Entry.number(lr, "g"), Entry("–" if mean is None else f"{100 * mean:.2f}", mean),
                Entry(f"{sum(chosen for _, chosen in found)} of {len(found)}", sum(chosen for _, chosen in found)),
                Entry(str(lost) if lost else "", lost),
            ]
        )  # fmt: skip
    names = ["loss", "learning rate", "validation accuracy (%)", "chosen", "diverged"]
    if not any(row[-1].value for row in body):
        names, body = names[:-1], [row[:-1] for row in body]
    return Table("Learning rates", names, body)


def matrix(records: Sequence[Record], header: Header) -> Table:
    """What was run: seconds of each cell and seed, where if there are several machines, and whether it ended well."""
    seeds = sorted({record.seed for record in records})
    order = {cell: i for i, cell in enumerate(header.hashes)}
    cells = sorted({record.cell: None for record in records}, key=lambda cell: order.get(cell, len(order)))
    machines = _machines(records)
    by_place = {(record.cell, record.seed): record for record in records}
    body = [[Entry.words(cell), *(_job(by_place.get((cell, seed)), machines) for seed in seeds)] for cell in cells]
    names = ["job", *(f"seed {seed}" for seed in seeds)]
    return Table("What was run", names, body, "Seconds of each job; one job is one core, or one GPU.")


def _job(record: Record | None, machines: Mapping[str, int]) -> Entry:
    if record is None:
        return Entry("not run", None, "missing")
    status = "" if record.status == "done" else f" {record.status}"
    place = f" on {machines[_machine(record)]}" if len(machines) > 1 else ""
    return Entry(f"{record.seconds:.1f} s{status}{place}", record.seconds, record.status)


def places(records: Sequence[Record]) -> Table:
    """Where it was run: machines, versions, how many jobs and hours each."""
    found: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    numbers = _machines(records)
    named = {machine: f"{i}: {machine}" if len(numbers) > 1 else machine for machine, i in numbers.items()}
    for record in records:
        machine = _machine(record)
        versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
        found[machine, versions, (record.commit or "")[:12]].append(record)
    body = [
        [
            Entry(named[machine]), Entry(versions), Entry(commit or "–"), Entry.number(len(mine), "d"),
            Entry(f"{sum(r.seconds for r in mine):.0f} s", sum(r.seconds for r in mine)),
            Entry(_period(sorted(r.date for r in mine)), min(r.date for r in mine)),
        ]
        for (machine, versions, commit), mine in found.items()
    ]  # fmt: skip
    return Table("Where", ["machine", "versions", "commit", "jobs", "time", "when"], body)


def _period(dates: Sequence[str]) -> str:
    """From the first to the last of sorted dates such as "2026-11-15T11:02:41Z", to the minute."""
    (day, start), (other, end) = (date.rstrip("Z").split("T") for date in (dates[0], dates[-1]))
    last = "" if (day, start[:5]) == (other, end[:5]) else f" to {end[:5]}" if day == other else f" to {other} {end[:5]}"
    return f"{day} {start[:5]}{last} UTC"


def _machine(record: Record) -> str:
    hardware = record.hardware
    return f"{hardware.get('gpu') or hardware.get('cpu', '?')}, {hardware.get('cores', '?')} cores"


def _machines(records: Sequence[Record]) -> dict[str, int]:
    """The machines, numbered from 1."""
    return {machine: i for i, machine in enumerate(dict.fromkeys(map(_machine, records)), 1)}
