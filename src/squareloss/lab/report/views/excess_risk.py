"""The view of `excess_risk`: slopes beside the theorem's exponent and the rates that the paper compares with."""

from __future__ import annotations

from collections.abc import Sequence

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import GUIDE, Series, by, late, panel, series, slope, table, tally
from squareloss.lab.runs.store import Record


def view(records: Sequence[Record], header: Header) -> View:
    """Excess risk and squared error by dimension and exponent."""
    groups = by(records, lambda spec: (spec["d"], spec["kappa"]))
    keys = sorted(groups)
    risk = {(d, k): series(f"d = {d}, kappa = {k:g}", groups[d, k], "excess", -bound(d, k)) for d, k in keys}
    error = {(d, k): series(f"d = {d}, kappa = {k:g}", groups[d, k], "squared", -d / (2 * d - 1)) for d, k in keys}
    sentences = [
        "Statement: if eta lies in the RKHS of h and has Tsybakov exponent kappa, then with mu of the order n^((d-1)/(2d-1)) "
        "the excess risk is at most of the order n^(-d(kappa+1)/((2d-1)(kappa+2))).",
        f"At least as steep as the bound, over all n: {tally(list(risk.values()))}; over the last half of n: "
        f"{tally([late(found) for found in risk.values()])}.",
        f"The squared error falls at least as fast as n^(-d/(2d-1)), over all n: {tally(list(error.values()))}; over the last "
        f"half: {tally([late(found) for found in error.values()])}. Both are of kernel ridge, which stands for the network.",
        _fast(risk),
    ]
    return View(_tables(risk, error), [_figure("Excess risk", risk), _figure("Squared error", error)], sentences, plain=False)


def bound(d: int, kappa: float) -> float:
    """The theorem's exponent."""
    return d * (kappa + 1) / ((2 * d - 1) * (kappa + 2))


def _fast(risk: dict[tuple[int, float], Series]) -> str:
    """Where the bound is below n^(-1/2), and what came there."""
    told = [f"{found.name}: {slope(found)} (bound {found.bound:.3f})" for (d, k), found in risk.items() if k > 2 * d - 2]
    return (
        f"The bound beats n^(-1/2) only for kappa > 2d - 2: of these settings, {'; '.join(told) or 'none'}. At kappa = 2d - 2 "
        "it is -1/2 itself."
    )


def _tables(risk: dict[tuple[int, float], Series], error: dict[tuple[int, float], Series]) -> list[Table]:
    caption = (
        "Least squares in log-log over all n; 95% intervals by resampling replications. A bound is an upper bound. "
        "Slopes that change over the last half are not yet those of the limit."
    )
    return [
        table("Excess risk against n", list(risk.values()), caption, halves=True),
        table(
            "Squared error of f in L_2(P) against n",
            list(error.values()),
            "The exponent is -d/(2d-1), for every kappa.",
            halves=True,
        ),
        _others(risk),
    ]


def _others(risk: dict[tuple[int, float], Series]) -> Table:
    """The measured slope beside the exponents the paper compares with."""
    rows = []
    for (d, k), measured in risk.items():
        exponents = [bound(d, k), d * (k + 1) / (d * k + 4 * d - 2), (k + 1) / (k + 3 + d), 0.5]
        rates = [Entry.number(-e, ".3f") for e in exponents]
        rows.append([Entry.words(measured.name), *rates, slope(measured).entry()])
    columns = [
        "setting",
        "this theorem",
        "optimal for eta in the RKHS",
        "plug-in kernel, Lipschitz eta",
        "n^(-1/2)",
        "measured",
    ]
    return Table("Other rates", columns, rows, "Exponents of n; the plug-in rate and n^(-1/2) rest on other assumptions.")


def _figure(heading: str, found: dict[tuple[int, float], Series]) -> Figure:
    panels = []
    for d in dict.fromkeys(d for d, _ in found):
        rows = [series for (dimension, _), series in found.items() if dimension == d]
        panels += panel(f"d = {d}", rows, "n", heading.lower())
    return Figure(heading, f"Means over replications, with twice the standard error. {GUIDE}", panels)
