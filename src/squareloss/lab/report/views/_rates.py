"""What the views of the theorems share: the slope of a rate with its interval, beside the bound's, and the figure of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from squareloss.lab.report.figures import Panel, legend
from squareloss.lab.report.svg import Plot
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.runs.store import Record

DRAWS = 500
MANY = 10_000  # replications, from which drawing each would take seconds
FEW = 10  # replications that err, fewer of which make no rate
GUIDE = "Dashes: the slope of the bound, through the first point."


@dataclass(frozen=True)
class Series:
    """A quantity against x, with its replications.

    Arguments:
        name: what it is.
        x: where it was measured, ascending.
        samples: at each x the replications; one alone is exact.
        spread: the standard errors, where samples hold means alone; None if they are in the samples.
        bound: the exponent that the statement gives, -0.4 for n^-0.4, or -c for exp(-c x); None where it gives none.
    """

    name: str
    x: Sequence[float]
    samples: Sequence[Sequence[float]]
    bound: float | None = None
    spread: Sequence[float] | None = None

    @property
    def means(self) -> Any:
        """Over replications, (X,)."""
        return np.array([np.mean(values) for values in self.samples])

    @property
    def errors(self) -> Any:
        """Standard errors of the means, (X,); zero where there is one replication."""
        if self.spread is not None:
            return np.array(self.spread)
        return np.array([np.std(s, ddof=1) / math.sqrt(len(s)) if len(s) > 1 else 0.0 for s in self.samples])

    def drawn(self, kept: Sequence[int]) -> Any:
        """Means of some points, resampled, (DRAWS, points): replications where they are known, else a normal law.

        A mean of zero counts as half of the least the sample can show.
        """
        draw = np.random.default_rng(0)
        if self.spread is not None:
            means, errors = self.means[kept], self.errors[kept]
            return np.maximum(means + errors * draw.standard_normal((DRAWS, len(kept))), 0.1 * means)
        samples = [np.asarray(self.samples[i], dtype=float) for i in kept]
        means = np.stack([_resampled(sample, draw) for sample in samples], 1)
        return np.maximum(means, [sample[sample > 0].min() / len(sample) / 2 for sample in samples])


def _resampled(sample: Any, draw: np.random.Generator) -> Any:
    """Means of samples drawn anew from a sample (n,), (DRAWS,); of many zeros and ones by how often each comes."""
    values, counts = np.unique(sample, return_counts=True)
    if len(sample) <= MANY or len(values) > 2:
        return draw.choice(sample, (DRAWS, len(sample))).mean(1)
    return draw.multinomial(len(sample), counts / len(sample), DRAWS) @ values / len(sample)


@dataclass(frozen=True)
class Slope:
    """A least-squares slope with its 95% interval over replications; low and high are None if there is one replication.

    The value is NaN where there are no two points to lay a line through.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return "–" if math.isnan(self.value) else f"{self.value:.3f}"

    def entry(self) -> Entry:
        """The value in a table."""
        return Entry(str(self), None if math.isnan(self.value) else self.value)

    def interval(self) -> str:
        """As text."""
        if math.isnan(self.value):
            return "–"
        return "exact" if self.low is None else f"{self.low:.3f} to {self.high:.3f}"


def slope(series: Series, *, exponential: bool = False) -> Slope:
    """The slope of log mean against log x, or against x, by least squares; the interval by resampling replications at each x.

    Points whose mean is not positive are left out; of fewer than two x there is none.
    """
    kept = [i for i, mean in enumerate(series.means) if mean > 0]
    x = np.array([series.x[i] for i in kept], dtype=float)
    if len(set(x)) < 2:
        return Slope(math.nan)
    across = x if exponential else np.log(x)
    value = _fit(across, np.log(series.means[kept]))
    if not series.errors[kept].any():
        return Slope(value)
    low, high = np.quantile([_fit(across, row) for row in np.log(series.drawn(kept))], [0.025, 0.975])
    return Slope(value, float(low), float(high))


def late(series: Series) -> Series:
    """The last half of the x, two at least: a rate is a statement on the limit, and all points may not yet show it."""
    places = list(dict.fromkeys(series.x))  # an x stands there once for each seed
    start = series.x.index(places[max(0, min(len(places) // 2, len(places) - 2))]) if places else 0
    spread = None if series.spread is None else series.spread[start:]
    return Series(series.name, series.x[start:], series.samples[start:], series.bound, spread)


def _fit(x: Any, y: Any) -> float:
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def verdict(found: Slope, bound: float) -> tuple[str, str]:
    """Whether a slope is at least as steep as the bound's, in words, and the kind of the entry."""
    if math.isnan(found.value):
        return "can't be told", ""
    low, high = (found.value if edge is None else edge for edge in (found.low, found.high))
    if high <= bound:
        return "yes", "better"
    if found.value <= bound:
        return "yes, within the interval", "better"
    return ("can't be told", "") if low <= bound else ("no", "worse")


def near(found: Slope, law: float) -> tuple[str, str]:
    """Where a slope lies beside that of a law which is no bound, in words."""
    if math.isnan(found.value):
        return "can't be told", ""
    if found.low is None or found.high is None:
        return f"off by {found.value - law:+.3f}", ""
    return ("in the interval", "better") if found.low <= law <= found.high else ("outside the interval", "")


def table(
    heading: str, rows: Sequence[Series], caption: str, *, exponential: bool = False, law: bool = False, halves: bool = False
) -> Table:
    """Exponent, slope, interval, and whether it is at least as steep; a row per series.

    A `law` is expected, not a bound. `halves` adds the slope over the last half of the points.
    """
    judged = any(series.bound is not None for series in rows)  # else there is nothing to judge them by
    exponent, question = ("expected exponent", "the expected one") if law else ("bound's exponent", "at least as steep?")
    columns = ["setting", "range", *([exponent] if judged else []), "measured slope", "95% interval"]
    columns += [*([question] if judged else []), *(["slope over the last half"] if halves else [])]
    lines = []
    for series in rows:
        found = slope(series, exponential=exponential)
        line = [Entry.words(series.name), Entry(f"{_short(series.x[0])} to {_short(series.x[-1])}", series.x[-1])]
        line += [Entry.number(series.bound, ".3f")] if judged else []
        line += [found.entry(), Entry(found.interval(), found.low)]
        if judged:
            told, kind = ("–", "") if series.bound is None else (near if law else verdict)(found, series.bound)
            line.append(Entry.words(told, kind))
        lines.append([*line, *([_late_entry(series, exponential)] if halves else [])])
    return Table(heading, columns, lines, caption)


def _late_entry(series: Series, exponential: bool) -> Entry:
    found = slope(late(series), exponential=exponential)
    return replace(found.entry(), text=f"{found} ({found.interval()})")


def _short(value: float) -> str:
    """A number in a few characters; whole ones below a million in full."""
    return f"{value:g}" if len(f"{value:g}") < 8 else f"{value:.2g}"


def tally(rows: Sequence[Series]) -> str:
    """How many series are at least as steep as their bound, of how many that have one, and which are not clearly so."""
    judged = {s.name: verdict(slope(s), s.bound)[0] for s in rows if s.bound is not None}
    doubts = "; ".join(f"{name}: {told}" for name, told in judged.items() if told != "yes")
    return f"{sum(told.startswith('yes') for told in judged.values())} of {len(judged)}{f' ({doubts})' if doubts else ''}"


def panel(
    heading: str, rows: Sequence[Series], x_label: str, y_label: str, *, exponential: bool = False, through: int = 0
) -> list[Panel]:
    """Means with twice their standard error on logarithmic axes (x plain if exponential), and the bound's slope as dashes.

    The dashes go through the first point, or the last (-1). One panel, or none where there is nothing to draw.
    """
    lines = [_points(series) for series in rows]
    guides = [_guide(line, series.bound, exponential, through) for line, series in zip(lines, rows, strict=True)]
    heights = [point.mean for line in lines for point in line] + [end[1] for guide in guides for end in guide]
    places = [point.x for line in lines for point in line]
    if not places:
        return []
    low, high = min(heights), max(heights)
    room = (high / low) ** 0.05 if high > low else 3.0
    x = (min(places), max(places) if max(places) > min(places) else min(places) + 1)
    plot = Plot(x_label, y_label, x, (low / room, high * room), heading, log="y" if exponential else "xy")
    for colour, (line, series, guide) in enumerate(zip(lines, rows, guides, strict=True)):
        _draw(plot, line, series.name, colour)
        if guide:
            plot.rule(guide[0], guide[1])
    return [Panel(heading, plot.svg(), legend(series.name for series in rows))]


class _Point(NamedTuple):
    """A mean at x with its standard error."""

    x: float
    mean: float
    error: float


def _points(series: Series) -> list[_Point]:
    """Those of a series whose mean is positive."""
    means = zip(series.x, series.means, series.errors, strict=True)
    return [_Point(x, float(m), float(e)) for x, m, e in means if m > 0]


def _guide(line: Sequence[_Point], bound: float | None, exponential: bool, through: int) -> list[tuple[float, float]]:
    if bound is None or not line:
        return []
    held = line[through]
    fall = [math.exp(bound * (x - held.x)) if exponential else (x / held.x) ** bound for x in (line[0].x, line[-1].x)]
    return [(line[0].x, held.mean * fall[0]), (line[-1].x, held.mean * fall[1])]


def _draw(plot: Plot, line: Sequence[_Point], name: str, colour: int) -> None:
    plot.line([(point.x, point.mean) for point in line], colour, dots=False)
    for point in line:
        twice = 2 * point.error
        if 0 < twice < point.mean:
            plot.bar(point.x, point.mean - twice, point.mean + twice, colour)
        plot.dot(point.x, point.mean, colour, f"{name}: {point.mean:.4g} at {point.x:g}")


def by(records: Sequence[Record], key: Callable[[Mapping[str, Any]], Any], x: str = "n") -> dict[Any, list[Record]]:
    """Records grouped by a function of their spec (None leaves one out), each group by ascending x."""
    found: dict[Any, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.spec.get(x, 0), r.seed)):
        group = key(record.spec)
        if group is not None:
            found[group].append(record)
    return dict(found)


def series(name: str, records: Sequence[Record], metric: str, bound: float | None = None) -> Series:
    """A metric that is a list over replications, of records that differ in n; seeds of one n are put together."""
    samples: dict[float, list[float]] = defaultdict(list)
    for record in records:
        value = record.metrics[metric]
        samples[record.spec["n"]] += value if isinstance(value, list) else [value]
    return Series(name, list(samples), list(samples.values()), bound)


def failing(records: Sequence[Record], most: float = 1.0) -> list[Record]:
    """Those in which `FEW` replications err at least (a tenth, if there are few in all), and at most a share `most` of them."""
    return [
        record
        for record in records
        if max(1, min(FEW, record.spec["replications"] // 10))
        <= record.metrics["failures"]
        <= most * record.spec["replications"]
    ]


def failures(records: Sequence[Record]) -> list[list[float]]:
    """Of each record, whether its replications err, as zeros and ones for `Series`."""
    counts = [(record.metrics["failures"], record.spec["replications"]) for record in records]
    return [[1.0] * count + [0.0] * (total - count) for count, total in counts]
