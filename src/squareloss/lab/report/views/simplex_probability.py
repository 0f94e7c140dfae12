"""The view of `simplex_probability`: the identity, and the error of eta by n and K."""

from __future__ import annotations

from collections.abc import Sequence

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import GUIDE, by, panel, series, slope, table
from squareloss.lab.runs.store import Record

D = 3


def view(records: Sequence[Record], header: Header) -> View:
    """Exact at the minimiser, a rate from samples."""
    groups = by(records, lambda spec: spec["K"])
    keys = sorted(groups)
    squared = [series(f"K = {k}", groups[k], "squared", -D / (2 * D - 1)) for k in keys]
    largest = [series(f"K = {k}", groups[k], "largest", -1 / (4 * D - 2)) for k in keys]
    exact = max(record.metrics["identity"] for record in records)
    told = ", ".join(f"{slope(s)} for {s.name}" for s in squared)
    sentences = [
        "Statement: at the minimiser of the mean square error to the simplex codes, eta_k = ((K - 1) f.v_k + 1)/K.",
        f"At the minimiser itself it holds to {exact:.1e}, for every K here.",
        f"From samples, by kernel ridge in three dimensions, the squared error of eta falls with slopes {told}; the rate that "
        f"the two-class theory gives is {-D / (2 * D - 1):.3f}.",
    ]
    tables = [
        table("Squared error of eta against n", squared, "Sum over classes, mean over the sphere.", halves=True),
        table(
            "Largest error of eta against n",
            largest,
            "Over classes and a fine set of points; the two-class bound.",
            halves=True,
        ),
        _outside(groups),
    ]
    panels = [
        *panel("Squared error", squared, "n", "squared error of eta"),
        *panel("Largest error", largest, "n", "largest error of eta"),
    ]
    return View(tables, [Figure("Error of the probabilities", GUIDE, panels)], sentences, plain=False)


def _outside(groups: dict[int, list[Record]]) -> Table:
    rows = [
        [
            Entry(f"K = {k}", k),
            Entry.number(record.spec["n"], "d"),
            Entry.number(record.metrics["outside"], ".2%"),
            Entry.number(record.metrics["sum"], ".1e"),
        ]
        for k, found in sorted(groups.items())
        for record in found
    ]
    columns = ["classes", "n", "eta outside [0, 1]", "|sum of eta - 1|, at most"]
    return Table("Outside the simplex", columns, rows, "Raw eta sums to one by construction, and may leave [0, 1].")
