"""The view of `separable_rate`: the probability of any error against n, and the norm of the fit."""

from __future__ import annotations

from collections.abc import Sequence

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import FEW, Series, by, failing, failures, late, panel, slope, table
from squareloss.lab.runs.store import Record


def view(records: Sequence[Record], header: Header) -> View:
    """Exponential where the label lies in the RKHS, not where it does not."""
    groups = by(records, lambda spec: (spec["classes"], spec["mu"]))
    drawn = {kind: [_series(kind, mu, groups[k, mu]) for k, mu in groups if k == kind] for kind in ("arcs", "caps")}
    tails = [_series(kind, mu, failing(found, 0.5)) for (kind, mu), found in groups.items() if kind == "arcs"]
    arcs = [found for found in tails if len(set(found.x)) > 1]
    told = "; ".join(f"{found.name}: {_law(found)}" for found in arcs)
    sentences = [
        "Statement: on separable classes, with mu = o(1) and a bounded RKHS norm of the fit, the probability of any error is "
        "at most C_1 exp(-C_2 n), up to a part that a wider network makes small.",
        f"P(any error) by n: {told}." if told else "Too few points for a slope.",
        _caps(groups.get(("caps", "1/n"), []), groups.get(("caps", "0.1"), [])),
    ]
    caption = (
        f"The slope of log P against n, where at most half of the replications err and at least {FEW} (or a tenth) do. "
        "The statement gives no number: any negative slope agrees with it, if it stays."
    )
    tables = [table("Decay by n", arcs, caption, exponential=True, halves=True), _counts(groups)]
    heads = {"arcs": "Arcs: label in the RKHS", "caps": "Opposite caps: label not in the RKHS"}
    panels = [
        one for kind, rows in drawn.items() for one in panel(heads[kind], rows, "n", "P(any error)", exponential=kind == "arcs")
    ]
    about = (
        "Twice the standard error as bars, where they fit; n without any error are left out. "
        "A straight line on the left is a rate."
    )
    return View(tables, [Figure("Probability of any error", about, panels)], sentences, plain=False, brief=1)


def _series(kind: str, mu: str, records: Sequence[Record]) -> Series:
    """P(any error) by n, where any replication errs."""
    kept = [(r.spec["n"], s) for r, s in zip(records, failures(records), strict=True) if any(s)]
    return Series(f"{kind}, mu = {mu}", [n for n, _ in kept], [s for _, s in kept])


def _law(found: Series) -> str:
    whole, end = (slope(part, exponential=True) for part in (found, late(found)))
    straight = end.low is not None and end.high is not None and end.low <= whole.value <= end.high
    return (
        f"exp({whole.value:.3f} n) from n = {found.x[0]:g} to {found.x[-1]:g}, interval {whole.interval()}, and the last half "
        f"of n {'agrees' if straight else 'differs'} ({end.value:.3f}, {end.interval()})"
    )


def _caps(free: Sequence[Record], held: Sequence[Record]) -> str:
    if not free or not held:
        return "The counterexample has no results."
    (first, last), fixed = (free[0], free[-1]), held[-1]
    worse = last.spec["n"] > first.spec["n"] and _rate(last) >= _rate(first)
    ends = "and so does its conclusion" if worse else "but its conclusion does not"
    mended = "mends it" if 2 * _rate(fixed) <= _rate(held[0]) else "does not mend it"
    return (
        f"Where the label is no function of the RKHS (two opposite caps), the statement's assumption fails {ends}: "
        f"with mu = 1/n {_share(first)} of fits err somewhere at n = {first.spec['n']} and {_share(last)} at n = "
        f"{last.spec['n']}, while the squared norm goes from {first.metrics['norm'][1]:.3g} to {last.metrics['norm'][1]:.3g}; "
        f"mu = 0.1 {mended} ({_share(fixed)} of {fixed.spec['replications']} at n = {fixed.spec['n']})."
    )


def _rate(record: Record) -> float:
    """The part of the replications that err anywhere."""
    return float(record.metrics["failures"] / record.spec["replications"])


def _share(record: Record) -> str:
    return f"{100 * _rate(record):.3g}%"


def _counts(groups: dict[tuple[str, str], list[Record]]) -> Table:
    rows = []
    for (kind, mu), found in groups.items():
        for record in found:
            failed, norm = _rate(record), record.metrics["norm"][1]
            setting = [Entry(f"{kind}, mu = {mu}", f"{kind} {mu}"), Entry.number(record.spec["n"], "d")]
            errors = [Entry.number(failed, ".3g"), Entry.number(record.metrics["error"], ".2e")]
            rows.append([*setting, *errors, Entry.number(norm, ".3g")])
    columns = ["classes", "n", "P(any error)", "mean error", "squared norm, median"]
    return Table("All settings", columns, rows, "The norm is bounded for arcs, whose label lies in the RKHS, and not for caps.")
