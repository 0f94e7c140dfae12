"""Plain words: what is better, by how much, and what can't be told apart. They follow the numbers and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from squareloss.lab.report.header import Claim, Column, Header
from squareloss.lab.report.rows import Row, columns_of, difference
from squareloss.lab.report.statistics import Difference

LOSSES = {
    "ce": "cross-entropy",
    "simplex": "square loss to the vertices of a simplex, the library's SquareLoss()",
    "one_hot": "square loss to 0/1 targets",
    "one_hot_15": "square loss to one-hot targets for a hundred classes, SquareLoss(OneHot(k=K/20, M=15), scale=1)",
    "scaled_one_hot": "square loss to one-hot targets for many classes, SquareLoss(OneHot(k=K/5, M=5))",
    "squentropy": "cross-entropy plus the mean square of the other logits",
    "ce_smoothed": "cross-entropy with label smoothing 0.1",
    "focal": "focal loss, gamma 2",
    "brier": "the Brier score of the softmax",
}
READINGS = {
    "temperature": "the same network, its scores divided by a fitted number",
    "asinh": "the same network, its scores bent by three fitted numbers",
}
BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "can't be told apart", "no interval"


@dataclass(frozen=True)
class Verdict:
    """How a row does against another in a column."""

    row: Row
    other: Row
    column: Column
    difference: Difference

    @property
    def word(self) -> str:
        """Better, worse, or can't be told apart."""
        if self.difference.low is None:
            return UNKNOWN
        sign = self.difference.sign if self.column.better == "higher" else -self.difference.sign
        return BETTER if sign > 0 else WORSE if sign < 0 else SAME

    def amount(self) -> str:
        """The difference with its interval: "+0.51 points [+0.10, +0.92]"."""
        d, show, unit = self.difference, self.column.show, " points" if self.column.percent else ""
        return f"{show(d.value, True)}{unit} {d.interval(partial(show, signed=True))}".rstrip()

    def values(self) -> str:
        """Both means: "98.92% against 98.41%"."""
        unit = "%" if self.column.percent else ""
        mine, theirs = (self.column.show(row.summary(self.column.key).mean) + unit for row in (self.row, self.other))
        return f"{mine} against {theirs}"

    def told(self) -> str:
        """The measure, with both means unless they can't be told apart, and with the amount unless it has no interval."""
        parts = ([] if self.word == SAME else [self.values()]) + ([] if self.word == UNKNOWN else [self.amount()])
        return f"{self.column.label} ({': '.join(parts)})"


def named(header: Header) -> str:
    """What the names of the losses in a comparison stand for, in one line; "" where the rows are no losses."""
    names = list(dict.fromkeys(row.partition("+")[0] for row in header.rows))
    if not names or not all(name in LOSSES for name in names):
        return ""
    told = [f"{name}: {LOSSES[name]}" for name in names]
    told += [f"+{name}: {what}" for name, what in READINGS.items() if any(row.endswith(f"+{name}") for row in header.rows)]
    return "; ".join(told)


def verdicts(rows: Sequence[Row], header: Header) -> list[Verdict]:
    """Every row against the baseline where one can be better; readings of one network only in columns where they differ."""
    by_name = {row.name: row for row in rows}
    base = by_name.get(header.baseline)
    if base is None:
        return []
    return [v for row in rows if row is not base for v in _against(row, base, rows, header)]


def like_with_like(rows: Sequence[Row], header: Header) -> list[Verdict]:
    """Calibrated rows, such as "simplex+asinh", against the baseline with the same calibrator or, if it has not that, another.

    Empty if the baseline is itself a calibrated row: then `verdicts` has these pairs.
    """
    by_name = {row.name: row for row in rows}
    bases = {name: by_name[f"{header.baseline}+{name}"] for name in READINGS if f"{header.baseline}+{name}" in by_name}
    found = []
    for row in rows:
        cell, plus, name = row.name.partition("+")
        base = bases.get(name) or next(iter(bases.values()), None)
        if plus and base is not None and cell != header.baseline:
            found += [v for v in _against(row, base, rows, header) if not v.column.shared]
    return found


def _against(row: Row, other: Row, rows: Sequence[Row], header: Header) -> list[Verdict]:
    found = []
    for column in columns_of(rows, header):
        elsewhere = column.shared and row is not _teller(row, rows)
        d = difference(row, other, column, header.overlap) if column.better and not elsewhere else None
        if d is not None and not (column.shared and row.cell == other.cell):
            found.append(Verdict(row, other, column, d))
    return found


def _teller(row: Row, rows: Sequence[Row]) -> Row:
    """Of the rows of a network the one that its shared measures are told with: as trained if that is there, else the first."""
    mine = [r for r in rows if r.cell == row.cell]
    return next((r for r in mine if r.name == r.cell), mine[0])


def summary(rows: Sequence[Row], header: Header) -> list[str]:
    """Some sentences: each row against the baseline, then like with like."""
    pairs: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in [*verdicts(rows, header), *like_with_like(rows, header)]:
        pairs.setdefault((verdict.row.name, verdict.other.name), []).append(verdict)
    return [_pair(name, other, mine) for (name, other), mine in pairs.items()]


def _pair(name: str, other: str, found: Sequence[Verdict]) -> str:
    leads = {BETTER: "better in", WORSE: "worse in", SAME: "can't be told apart in", UNKNOWN: "no interval for"}
    by_word = {word: [v.told() for v in found if v.word == word] for word in leads}
    parts = [f"{leads[word]} {', '.join(told)}" for word, told in by_word.items() if told]
    return f"{name} against {other}: {'; '.join(parts)}."


def in_short(rows: Sequence[Row], header: Header) -> list[str]:
    """The answer in a sentence or two per trained loss: how many measures are better, worse, or open."""
    if nothing_trained(rows):
        return ["No loss could be trained: all of them diverged, at every learning rate tried. Try smaller ones (--lrs)."]
    found, (base, calibrated, _) = verdicts(rows, header), header.baseline.partition("+")
    lines = []
    for row in rows:
        mine = [v for v in found if v.row is row]
        if mine and row.cell == row.name:
            lead = f"{row.name} as trained" if calibrated else f"As trained, {row.name}"
            lines.append(f"{lead} against {header.baseline}: {_tally(mine)}.")
        elif mine and not calibrated and row is _teller(row, rows):
            lines.append(f"{row.name} against {header.baseline}: {_tally(mine)}.")
    fair = found if calibrated else like_with_like(rows, header)
    for row in rows:
        mine = [v for v in fair if v.row is row]
        if mine and row.cell not in (row.name, base):
            lines.append(f"With both calibrated, {row.name} against {mine[0].other.name}: {_tally(mine)}.")
    return lines


def nothing_trained(rows: Sequence[Row]) -> bool:
    """Whether every network there is diverged."""
    return any(row.diverged for row in rows) and not any(row.metrics for row in rows)


def _tally(found: Sequence[Verdict]) -> str:
    told = {word: [f"{v.column.label} ({v.values()})" for v in found if v.word == word] for word in (BETTER, WORSE)}
    parts = [f"{word} in {', '.join(names)}" for word, names in told.items() if names]
    for word, sentence in ((SAME, "no difference that can be told in {}"), (UNKNOWN, "no interval to judge {} by")):
        if names := [v.column.label for v in found if v.word == word]:
            parts.append(sentence.format(_either(names, beside=bool(parts))))
    return "; ".join(parts)


def _either(names: Sequence[str], beside: bool) -> str:
    """Measures by name, or if they are more than three by number; `beside` if others were told before."""
    if len(names) > 3:
        return f"{len(names)} other measures" if beside else f"any of {len(names)} measures"
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def cautions(rows: Sequence[Row], header: Header) -> list[str]:
    """What must be said beside the numbers, found in the numbers."""
    smoke = ("scale", "smoke") in header.facts
    lines = ["Scale smoke shows that everything runs; its numbers say nothing of the paper."] if smoke else []
    seen: set[str] = set()
    for row in rows:
        lines += _cautions_of_reading(row)
        if row.cell not in seen:
            lines += _cautions_of_training(row)
        seen.add(row.cell)
    return [*lines, *_cautions_of_seeds(rows, header)]


def _cautions_of_reading(row: Row) -> list[str]:
    reading = row.name.removeprefix(row.cell)
    lacking = sum(reading not in metrics.get("readings", {reading: None}) for metrics in row.metrics.values())
    if not lacking:
        return []
    return [
        f"{row.name}: {lacking} of {len(row.metrics)} seeds were measured before there was this reading; "
        "the same command with --force measures them again."
    ]


def _cautions_of_training(row: Row) -> list[str]:
    """How training went, which all readings of a network share."""
    lines, seeds = [], len(row.metrics)
    if row.diverged:
        lost = len(row.diverged)
        lines.append(
            f"{row.cell}: training diverged, at every learning rate tried, for {lost} of {lost + seeds} seeds; left out."
        )
    edge = sum(map(_at_edge, row.metrics.values()))
    if edge * 2 > seeds:
        lines.append(
            f"{row.cell}: the best learning rate was at an end of the grid for {edge} of {seeds} seeds; "
            "a wider grid (--lrs) may be fairer to it."
        )
    unfitted = sum(metrics.get("temperature_fitted") is False for metrics in row.metrics.values())
    if unfitted:
        lines.append(
            f"{row.cell}: no temperature is best for {unfitted} of {seeds} seeds, since every validation sample was right "
            "(or none could be told); it is that of a weak prior there."
        )
    return lines


def _cautions_of_seeds(rows: Sequence[Row], header: Header) -> list[str]:
    """How far intervals can be trusted, by the number of seeds, and robust accuracies."""
    lines = []
    most = max((len(row.metrics) for row in rows), default=0)
    if 1 < most < 5 and any(v.word == SAME for v in verdicts(rows, header)):
        lines.append(f"{most} seeds make wide intervals; the same command with --seeds 10 adds to these results.")
    compared = header.baseline and len(rows) > 1  # else there is no interval to speak of
    if compared and most > 1:
        lines.append("Each interval is a 95% one by itself: of twenty, one misleads by chance.")
    if compared and most == 1:
        lines.append("One seed: intervals are over test points alone and say nothing of other initial weights or splits.")
    if any(key.startswith("robust_") for row in rows for m in row.metrics.values() for key in m):
        lines.append("Robust accuracies are upper bounds: a stronger attack may find more.")
    return lines


def _at_edge(metrics: Mapping[str, Any]) -> bool:
    """Whether the chosen learning rate is the least or the largest of three or more."""
    rates = [row["lr"] for row in metrics.get("grid", [])]
    return len(rates) >= 3 and metrics.get("lr") in (min(rates), max(rates))


def judge(claim: Claim, rows: Sequence[Row], header: Header) -> str:
    """Whether a direction that the paper claims shows here."""
    by_name = {row.name: row for row in rows}
    column = next((c for c in columns_of(rows, header) if c.key == claim.key), None)
    if column is None or claim.better not in by_name or claim.worse not in by_name:
        return "not run"
    d = difference(by_name[claim.better], by_name[claim.worse], column, header.overlap)
    if d is None:
        return "not run"
    verdict = Verdict(by_name[claim.better], by_name[claim.worse], column, d)
    same_way = (d.value > 0) == (column.better == "higher") and d.value != 0
    if verdict.word in (BETTER, WORSE):
        return f"{'holds' if same_way else 'does not hold'}: {verdict.amount()}"
    return f"{'same direction' if same_way else 'other direction'}, can't be told from chance: {verdict.amount()}"
