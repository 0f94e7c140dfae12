"""The view of `spectrum`: eigenvalues by index, entropy, effective dimension, and the least eigenvalue by n."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import Series, by, late, panel, series, slope, table
from squareloss.lab.runs.store import Record

LIMIT = "Exact, by closed form; over the half of the points nearest the limit."


def view(records: Sequence[Record], header: Header) -> View:
    """Four rates in one page."""
    exact = by(records, lambda spec: spec["d"] if spec["kind"] == "exact" else None)
    least = by(records, lambda spec: spec["d"] if spec["kind"] == "least" else None)
    values = [_of(exact[d][0], d, "index", "eigenvalue", -d / (d - 1)) for d in sorted(exact)]
    entropy = [_of(exact[d][0], d, "radius", "entropy", -2 * (d - 1) / d) for d in sorted(exact)]
    freedom = [_of(exact[d][0], d, "ridge", "effective", -(d - 1) / d) for d in sorted(exact)]
    small = {name: [_head(found) for found in rows] for name, rows in (("entropy", entropy), ("freedom", freedom))}
    smallest = [series(f"d = {d}", least[d], "least", -2 / (d - 1)) for d in sorted(least)]
    tails = [late(found) for found in values]
    told = ", ".join(f"{slope(s)} ({s.bound:.3f}) for {s.name}" for s in tails) or "none yet"
    sentences = [
        "Statement: the eigenvalues of h on the sphere fall as j^(-d/(d-1)), so the entropy of its unit ball is at most of the "
        "order delta^(-2(d-1)/d).",
        f"Slopes of the exact eigenvalues over the last half of the points, with the exponent in brackets: {told}. "
        "Odd degrees from three on have the eigenvalue zero; they are left out of the index.",
        "Norms by degree say which targets lie in the RKHS: polynomials of even degree do, sign(s)|s|^p with "
        "s = x_1^2 - 1/d does for p > (d-1)/2 only, and x_1 |x_1|, though Lipschitz, does not.",
    ]
    tables = [
        table("Eigenvalues against their index", tails, f"{LIMIT} The last eigenvalue of each degree.", law=True),
        table("Entropy of the unit ball against the radius", small["entropy"], f"{LIMIT} Volume bound in L_2.", law=True),
        table("Effective dimension against the ridge mu/n", small["freedom"], LIMIT, law=True),
        table(
            "Least eigenvalue of H against n",
            smallest,
            "Uniform points; as the least distance of two falls.",
            law=True,
            halves=True,
        ),
        _norms(records),
        _opposite(records),
    ]
    return View(tables, _figures(values, entropy, smallest), sentences, plain=False, brief=4)


def _of(record: Record, d: int, x: str, y: str, bound: float) -> Series:
    pairs = sorted(zip(record.metrics[x], record.metrics[y], strict=True))
    kept = [(a, b) for a, b in pairs if b > 0]
    return Series(f"d = {d}", [a for a, _ in kept], [[b] for _, b in kept], bound)


def _head(found: Series) -> Series:
    """The half of the points nearest zero."""
    end = len(found.x) - len(found.x) // 2
    return Series(found.name, found.x[:end], found.samples[:end], found.bound)


def _opposite(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        if record.spec["kind"] == "opposite":
            d, pairs = record.spec["d"], [np.median(record.metrics[key]) for key in ("d", "more")]
            rows.append([Entry(f"d = {d}", d), *(Entry.number(float(value), ".1e") for value in pairs)])
    caption = "Medians. h tells a point from its opposite by its linear part alone, which has d dimensions."
    return Table("Least eigenvalue of opposite pairs", ["dimension", "d pairs", "d + 1 pairs"], rows, caption)


def _norms(records: Sequence[Record]) -> Table:
    """A norm that still grows from degree to degree is infinite, or one that no degree shown can tell."""
    rows, columns = [], ["f", "d"]
    for record in sorted(records, key=lambda r: r.spec["d"]):
        if record.spec["kind"] == "norms":
            degrees = record.metrics["degrees"]
            columns = ["f", "d", *(f"to degree {k}" for k in degrees), "last doubling", "outside, L_2"]
            for name, found in record.metrics.items():
                if name != "degrees":
                    squared, outside = found["squared"], found["outside"]
                    growth = squared[-1] / squared[-2]
                    cells = [Entry.number(value, ".4g") for value in squared]
                    told = [Entry(f"x {growth:.4f}", growth), Entry.number(outside, ".1e")]
                    rows.append([Entry.words(name), Entry.number(record.spec["d"], "d"), *cells, *told])
    caption = (
        "Squared RKHS norms of functions of x_1 up to a degree, s = x_1^2 - 1/d. Polynomials in s end at a degree; "
        "sign(s)|s|^p lies in the RKHS for p > (d-1)/2; x_1 |x_1| is odd and not linear: what is outside no function "
        "of the RKHS has."
    )
    return Table("What lies in the RKHS", columns, rows, caption)


def _figures(values: Sequence[Series], entropy: Sequence[Series], smallest: Sequence[Series]) -> list[Figure]:
    panels = [
        *panel("Eigenvalues", values, "index", "eigenvalue", through=-1),
        *panel("Entropy", entropy, "radius", "entropy (nats)"),
        *panel("Least eigenvalue of H", smallest, "n", "lambda_min"),
    ]
    return [
        Figure("Decay", "Dashes: the exponent of the limit, through the point nearest it; for H through the first.", panels)
    ]
