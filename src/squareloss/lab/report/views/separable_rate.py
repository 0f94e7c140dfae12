"""The view of `separable_rate`: the probability of any error against n, and the norm of the fit."""

from __future__ import annotations

from collections.abc import Sequence

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import Series, by, panel, rates, slope, table
from squareloss.lab.runs.store import Record


def view(records: Sequence[Record], header: Header) -> View:
    """Exponential where the label lies in the RKHS, not where it does not."""
    groups = by(records, lambda spec: (spec["classes"], spec["mu"]))
    arcs = [_series(f"arcs, mu = {mu}", found) for (kind, mu), found in groups.items() if kind == "arcs"]
    caps = [_series(f"caps, mu = {mu}", found, most=1.0) for (kind, mu), found in groups.items() if kind == "caps"]
    told = "; ".join(f"{s.name}: {_law(s)}" for s in arcs if len(s.x) > 1)
    sentences = [
        "Statement: on separable classes, with mu = o(1) and a bounded RKHS norm of the fit, the probability of any error is "
        "at most C_1 exp(-C_2 n), up to a part that a wider network makes small.",
        f"P(any error) by n: {told}." if told else "Too few points for a slope.",
        _caps(groups.get(("caps", "1/n"), []), groups.get(("caps", "0.1"), [])),
    ]
    caption = (
        "The slope is that of log P against n, where P is between 0 and 1/2. Any negative slope agrees with the statement."
    )
    tables = [table("Decay by n", [s for s in arcs if len(s.x) > 1], caption, exponential=True), _counts(groups)]
    panels = [panel("Arcs: label in the RKHS", arcs, "n", "P(any error)", exponential=True)] if any(s.x for s in arcs) else []
    panels += [panel("Opposite caps: label not in the RKHS", caps, "n", "P(any error)")] if any(s.x for s in caps) else []
    figure = Figure(
        "Probability of any error", "Twice the standard error as bars; a straight line on the left is a rate.", panels
    )
    return View(tables, [figure], sentences, plain=False, brief=1)


def _series(name: str, records: Sequence[Record], most: float = 0.5) -> Series:
    samples = rates(records, "failures")
    kept = [(r.spec["n"], s) for r, s in zip(records, samples, strict=True) if 0 < sum(s) <= most * len(s)]
    return Series(name, [n for n, _ in kept], [s for _, s in kept], 0.0 if most < 1 else None)


def _law(found: Series) -> str:
    rate = slope(found, exponential=True)
    return f"exp({rate.value:.3f} n), interval {rate.interval()}"


def _caps(free: Sequence[Record], held: Sequence[Record]) -> str:
    if not free or not held:
        return "The counterexample has no results."
    (first, last), fixed = (free[0], free[-1]), held[-1]
    return (
        "Where the label is no function of the RKHS (two opposite caps), the statement's assumption fails and so does its end: "
        f"with mu = 1/n {_share(first)} of fits err somewhere at n = {first.spec['n']} and {_share(last)} at n = "
        f"{last.spec['n']}, while the squared norm goes from {first.metrics['norm'][1]:.3g} to {last.metrics['norm'][1]:.3g}; "
        f"mu = 0.1 mends it ({_share(fixed)} at n = {fixed.spec['n']})."
    )


def _share(record: Record) -> str:
    return f"{100 * record.metrics['failures'] / record.spec['replications']:.3g}%"


def _counts(groups: dict[tuple[str, str], list[Record]]) -> Table:
    rows = []
    for (kind, mu), found in groups.items():
        for record in found:
            failed, norm = record.metrics["failures"] / record.spec["replications"], record.metrics["norm"][1]
            rows.append(
                [
                    Entry(f"{kind}, mu = {mu}", f"{kind} {mu}"),
                    Entry(str(record.spec["n"]), record.spec["n"]),
                    Entry(f"{failed:.4f}", failed),
                    Entry(f"{record.metrics['error']:.2e}", record.metrics["error"]),
                    Entry(f"{norm:.3g}", norm),
                ]
            )
    columns = ["classes", "n", "P(any error)", "mean error", "squared norm, median"]
    return Table("All settings", columns, rows, "The norm is bounded for arcs, whose label lies in the RKHS, and not for caps.")
