"""What the views of the studies on synthetic data share: choosing mu, comparing replication by replication, judging claims."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from squareloss.lab.report.figures import Panel, legend
from squareloss.lab.report.statistics import Difference, mean_std, paired, summarise
from squareloss.lab.report.svg import Plot
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.runs.store import Record

NAMES = {"SL": "SL + l2", "CE": "CE + l2", "squentropy": "squentropy + l2", "smoothed": "smoothed CE + l2"}
PAIR = ("SL", "CE")  # the paper's two losses
HOLDS, FAILS, OPEN = "holds", "does not hold", "can't be told apart"


@dataclass(frozen=True)
class Cells:
    """The results of a study by loss, mu and what they change ("" for the study's own setting, else as "lr=0.01")."""

    found: Mapping[tuple[str, float, str], Sequence[Record]]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Cells:
        """Of the records of a study. A cell ends before the first seed that it lacks or diverged at: so any two stay paired."""
        by_seed: dict[tuple[str, float, str], dict[int, Record]] = defaultdict(dict)
        for record in records:
            spec = record.spec
            change = f"{spec['changed']}={spec[spec['changed']]}" if spec["changed"] else ""
            if record.status == "done":
                by_seed[spec["loss"], spec["mu"], change][record.seed] = record
        seeds = sorted({record.seed for record in records})
        found = {key: [mine[seed] for seed in takewhile(mine.__contains__, seeds)] for key, mine in by_seed.items()}
        return cls({key: kept for key, kept in found.items() if kept})

    def records(self, loss: str, mu: float, change: str = "") -> Sequence[Record]:
        """Those of one cell. Without a penalty its reading does not matter, so there the main cell serves."""
        plain = mu == 0 and change.startswith("penalty")
        return self.found.get((loss, mu, "" if plain else change), ())

    def values(self, loss: str, mu: float, key: str, change: str = "") -> list[float]:
        """A list over replications; "also.temperature.linf_grid" looks inside."""
        found: list[float] = []
        for record in self.records(loss, mu, change):
            value: Any = record.metrics
            for part in key.split("."):
                value = value.get(part, {})
            found += value or []
        return found

    def losses(self) -> list[str]:
        """The losses there are results for."""
        return [loss for loss in NAMES if self.mus(loss)]

    def mus(self, loss: str | None = None, change: str = "") -> list[float]:
        """The penalties there are results for, of one loss or of all."""
        found = {mu for name, mu, other in self.found if loss in (None, name) and other == change}
        if change.startswith("penalty") and (loss, 0.0, "") in self.found:
            found.add(0.0)
        return sorted(found)

    def best(
        self, loss: str, change: str = "", *, above: float = -1.0, without: float | None = None, key: str = "validation_error"
    ) -> float | None:
        """The mu of the least mean validation error, over the replications that all have; the larger mu if two are equal.

        Only mu greater than `above` count, 0 asks for a penalty, and other than `without`. Another `key` asks for the mu of
        its own least mean.
        """
        mus = [mu for mu in self.mus(loss, change) if mu > above and mu != without]
        errors = {mu: self.values(loss, mu, key, change) for mu in mus}
        common = min((len(values) for values in errors.values()), default=0)
        if not common:
            return None
        means = {mu: math.fsum(values[:common]) for mu, values in errors.items()}
        return min(means, key=lambda mu: (math.isnan(means[mu]), means[mu], -mu))

    def side(self, loss: str, key: str, change: str = "") -> list[float]:
        """A list over replications at the chosen mu."""
        return self.values(loss, self.best(loss, change) or 0.0, key, change)

    def curve(self, loss: str, what: str, key: str) -> dict[float, list[float]]:
        """A measure by the number of points ("n") or the "width", the main cell among them, over the same replications."""
        changed = {change: mu for name, mu, change in self.found if name == loss and change.startswith(f"{what}=")}
        if not changed:
            return {}
        mu = next(iter(changed.values()))
        found = {float(change.partition("=")[2]): self.values(loss, mu, key, change) for change in changed}
        if main := self.records(loss, mu):
            found[float(main[0].spec[what])] = self.values(loss, mu, key)
        common = min(len(values) for values in found.values())
        return {size: found[size][:common] for size in sorted(found) if all(map(math.isfinite, found[size][:common]))}

    def changes(self) -> list[str]:
        """What cells change, in the order of the study."""
        return list(dict.fromkeys(change for _, _, change in self.found if change))


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """a - b replication by replication, as far as both go."""
    return paired(dict(enumerate(a)), dict(enumerate(b)))


def p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of Student's paired test, of a sign test where all are the same; NaN where there is no interval either."""
    from scipy.special import stdtr

    found = difference(a, b)
    if found is None or found.low is None:
        return math.nan
    d = np.array(a[: len(b)]) - np.array(b[: len(a)])
    if found.low == found.high:
        return 2.0 ** (1 - len(d)) if found.value else 1.0
    return float(2 * stdtr(len(d) - 1, -abs(d.mean() / d.std(ddof=1) * math.sqrt(len(d)))))


def spread_p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p that two paired samples spread alike: Student's, of the distances from their medians (Brown and Forsythe).

    It keeps its level where values are skewed, as largest errors are, which tests of the variances do not.
    """
    n = min(len(a), len(b))
    if n < 3:
        return math.nan
    x, y = (np.abs(values - np.median(values)).tolist() for values in (np.array(a[:n]), np.array(b[:n])))
    return p_value(x, y)


def judged(d: Difference | None, *, margin: float = 0.0) -> str:
    """Whether a - b < 0 holds; with a margin, whether |a - b| stays below it."""
    if d is None or d.low is None or d.high is None:
        return OPEN
    if margin:
        return HOLDS if -margin < d.low and d.high < margin else FAILS if d.low > margin or d.high < -margin else OPEN
    return HOLDS if d.high < 0 else FAILS if d.low > 0 else OPEN


Claim = Sequence[Entry]  # the claim, the paper's value, ours with the test, the verdict
CLAIM_COLUMNS = ["the paper", "its value", "ours", "here"]


def lower(text: str, paper: str, a: Sequence[float], b: Sequence[float], *, margin: float = 0.0) -> Claim:
    """The claim that a is lower than b, or with a margin that they are alike, tested over replications."""
    return claim(text, paper, _against(a, b), p_value(a, b), judged(difference(a, b), margin=margin))


def higher(text: str, paper: str, a: Sequence[float], b: Sequence[float]) -> Claim:
    """The claim that a is higher than b."""
    return claim(text, paper, _against(a, b), p_value(a, b), judged(difference(b, a)))


def _against(a: Sequence[float], b: Sequence[float]) -> str:
    """Both means with their spread, and the paired difference with its interval."""
    return f"{spread(a)} against {spread(b)}, {interval(difference(a, b))}"


def interval(d: Difference | None) -> str:
    """A difference with its interval: "difference -0.0003 [-0.0020, +0.0014]"."""
    if d is None:
        return "no replications in common"
    return f"difference {d.value:+.4f} {d.interval('{:+.4f}'.format)}".rstrip()


def steadier(text: str, paper: str, a: Sequence[float], b: Sequence[float]) -> Claim:
    """The claim that a spreads less than b."""
    mine, theirs, p = summarise(a).std, summarise(b).std, spread_p_value(a, b)
    if mine is None or theirs is None:
        return claim(text, paper, "too few replications", math.nan, OPEN)
    verdict = OPEN if not p < 0.05 else HOLDS if mine < theirs else FAILS
    return claim(text, paper, f"standard deviations {mine:.4f} against {theirs:.4f}", p, verdict)


def best_mu(text: str, paper: float, cells: Cells, loss: str) -> Claim:
    """The claim that the paper's mu has the least mean validation error: told by that of the best other mu."""
    errors = {mu: cells.values(loss, mu, "validation_error") for mu in cells.mus(loss)}
    ours, other = cells.best(loss), cells.best(loss, without=paper)
    if ours is None or other is None or paper not in errors:
        return claim(text, f"{paper:g}", "–" if ours is None else f"{ours:g}", math.nan, OPEN)
    d = difference(errors[paper], errors[other])
    told = f"{ours:g}; validation error at {paper:g} against {other:g}: {interval(d)}"
    return claim(text, f"{paper:g}", told, p_value(errors[paper], errors[other]), judged(d))


def claim(text: str, paper: str, ours: str, p: float, verdict: str) -> Claim:
    """One line of the table of claims."""
    kind = {HOLDS: "agrees", FAILS: "differs"}.get(verdict, "")
    told = ours if math.isnan(p) else f"{ours}, p = {p:.1g}" if p < 0.001 else f"{ours}, p = {p:.3f}"
    return [Entry.words(text), Entry(paper), Entry(told), Entry.words(verdict, kind)]


def claims_table(claims: Sequence[Claim], caption: str) -> Table:
    """The claims with their verdicts."""
    return Table("What the paper claims", CLAIM_COLUMNS, claims, caption)


def tally(claims: Sequence[Claim]) -> str:
    """A sentence: how many claims hold."""
    count = {word: sum(row[-1].text == word for row in claims) for word in (HOLDS, FAILS, OPEN)}
    failed = [f"“{row[0].text}”" for row in claims if row[-1].text == FAILS]
    named = f" ({'; '.join(failed)})" if failed else ""
    hold, fail = ("holds" if count[HOLDS] == 1 else "hold"), ("does" if count[FAILS] == 1 else "do")
    told = f"{count[HOLDS]} {hold} here, {count[FAILS]} {fail} not{named}, {count[OPEN]} can't be told"
    return f"Of {len(claims)} claims of the paper {told}."


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean (std) as text."""
    found = summarise(values)
    return mean_std(found.mean, found.std, lambda value: f"{value:.{digits}f}")


def entry(values: Sequence[float], against: Sequence[float], better: str = "lower") -> Entry:
    """Mean (std), coloured where it differs from other values, replication by replication."""
    d = difference(values, against) if against and list(values) != list(against) else None
    sign = 0 if d is None else d.sign if better == "higher" else -d.sign
    return Entry(spread(values), summarise(values).mean, {1: "better", -1: "worse"}.get(sign, ""))


def row_by_mu(cells: Cells, loss: str, key: str, name: str) -> list[Entry]:
    """Mean (std) of a measure at every mu, the chosen one coloured."""
    best, texts = cells.best(loss), [(mu, spread(cells.values(loss, mu, key))) for mu in cells.mus()]
    return [Entry(name), *(Entry(text, kind="better" if mu == best else "") for mu, text in texts)]


def by_mu(cells: Cells, key: str, heading: str, label: str, *, log: bool = False, from_zero: bool = True) -> Panel:
    """Mean and standard deviation of a measure against mu, side by side for the losses."""
    losses, mus = cells.losses(), cells.mus()
    found = {loss: [(i, summarise(cells.values(loss, mu, key))) for i, mu in enumerate(mus)] for loss in losses}
    rows = {
        loss: [(i, s.mean, s.std or 0.0) for i, s in points if s.mean is not None and math.isfinite(s.mean)]
        for loss, points in found.items()
    }
    low, high = _range([(m, s) for points in rows.values() for _, m, s in points], log, from_zero)
    places = [(i, f"{mu:g}") for i, mu in enumerate(mus)]
    across = (-0.5, len(mus) - 0.5)
    plot = Plot("mu", label, across, (low, high), f"{label} against mu", log="y" if log else "", x_ticks=places)
    for place, (loss, points) in enumerate(rows.items()):
        shift = 0.14 * (place - (len(rows) - 1) / 2)
        plot.line([(i + shift, mean) for i, mean, _ in points], place, dots=False)
        for i, mean, std in points:
            plot.bar(i + shift, mean - std, mean + std, place)
            plot.dot(i + shift, mean, place, f"{NAMES[loss]}: {plot.value(mean)} at mu = {mus[i]:g}")
    return Panel(heading, plot.svg(), legend(NAMES[loss] for loss in losses))


def _range(points: Sequence[tuple[float, float]], log: bool, from_zero: bool) -> tuple[float, float]:
    if not points:
        return (0.1 if log else 0.0), 1.0
    if not log:
        low, high = min(m - s for m, s in points), max(m + s for m, s in points)
        low = min(low, 0.0) if from_zero else low
        room = 0.05 * (high - low) or 0.1
        return (low if from_zero else low - room), high + room
    least = min([m - s for m, s in points if m - s > 0] + [m / 2 for m, _ in points if m > 0] + [1.0])
    return max(least, 1e-6) / 1.12, max([m + s for m, s in points] + [10 * least]) * 1.12
