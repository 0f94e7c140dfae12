"""The view of `noise_injection`: exact over stated, the boundary's limit, and the rate of the error by margin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import FEW, Series, by, failing, panel, slope, table
from squareloss.lab.runs.store import Record


def view(records: Sequence[Record], header: Header) -> View:
    """Lemma, plane, boundary and rate."""
    looks = {look: found[0].metrics for look, found in by(records, lambda spec: spec["look"]).items()}
    gaps = by(records, lambda spec: spec.get("gap"))
    drawn = [_rate(gap, failing(found)) for gap, found in gaps.items()]
    tails = [_rate(gap, failing(found, 0.5)) for gap, found in gaps.items()]
    rows = [found for found in tails if len(set(found.x)) > 1]  # an n stands there once for each seed
    sentences = [
        "Statement (lemma): with noise v on classes at distance 2 gamma, P(|2 eta - 1| < t) is at most C v^2/gamma "
        "exp(-gamma^2/(2 v^2)) t.",
        *(tell(looks[look]) for look, tell in (("lemma", _lemma), ("xor", _xor), ("boundary", _boundary)) if look in looks),
        "Statement (theorem): the excess risk falls as exp(-n gamma/7); the proof's own steps give exp(-n gamma^2/6). "
        + _rates(rows),
    ]
    caption = (
        "Slope of log(mean error) against n; the bound is -gamma/7, gamma = sin(gap) half the distance of two arcs. Over "
        f"those n at which at most half of the replications err, and at least {FEW} (or a tenth) do: the curves bend before."
    )
    tables = [table("Rate of the error by margin", rows, caption, exponential=True), _comparison(rows), _errors(gaps)]
    return View(tables, _figures(looks, drawn), sentences, plain=False)


def _lemma(lemma: Mapping[str, Any]) -> str:
    stated, mended = lemma["over-stated-t0.2"], lemma["over-corrected-t0.2"]
    grows = "no constant will do, the factor is v/gamma" if stated[-1] > 2 * stated[0] else "a constant may do"
    holds = "holds" if max(mended) <= 1 else "fails"
    return (
        f"Exact over stated at t = 0.2 (C = 1, gamma = 1): {stated[0]:.3g} at v = {lemma['noise'][0]:g}, {stated[-1]:.3g} "
        f"at v = {lemma['noise'][-1]:g}: {grows}. Over sqrt(2/pi) (v/gamma) "
        f"exp(-gamma^2/(2 v^2)) artanh(t)/sqrt(1 - t^2) it is {min(mended):.3g} to {max(mended):.3g}: that bound {holds}."
    )


def _xor(xor: Mapping[str, Any]) -> str:
    fails = "fails" if xor["xor"][-1] > xor["xor"][0] else "stands"
    return (
        f"In the plane the reduction to two points {fails}: for XOR, P/t goes from {xor['xor'][0]:.3g} at t = {xor['t'][0]:g} "
        f"to {xor['xor'][-1]:.3g} at t = {xor['t'][-1]:g}, the same step for each decade, against {xor['two-points'][-1]:.3g} "
        "for two points."
    )


def _boundary(boundary: Mapping[str, Any]) -> str:
    return (
        f"The noisy boundary tends to the middle of the gap: it is off by {abs(boundary['boundary'][0]):.3g} at v = "
        f"{boundary['noise'][0]:g} and by {abs(boundary['boundary'][-1]):.2g} at v = {boundary['noise'][-1]:g}."
    )


def _rate(gap: float, records: Sequence[Record]) -> Series:
    """Mean errors by n."""
    means, spreads = ([record.metrics[key] for record in records] for key in ("error", "spread"))
    return Series(f"gap {gap:g}", [r.spec["n"] for r in records], [[mean] for mean in means], -math.sin(gap) / 7, spreads)


def _rates(rows: Sequence[Series]) -> str:
    found = [(-slope(s, exponential=True).value, -7 * (s.bound or 0.0)) for s in rows]
    if len(found) < 2:
        return "Too few points for a slope."
    rates, gammas = np.array(found).T
    power = np.polyfit(np.log(gammas), np.log(rates), 1)[0]
    return (
        f"Measured rates go from {rates[0]:.3f} at gamma = {gammas[0]:.3f} to {rates[-1]:.3f} at {gammas[-1]:.3f}, all above "
        f"both; over these margins they grow about as gamma^{power:.1f}."
        if (rates > np.maximum(gammas / 7, gammas**2 / 6)).all()
        else f"Measured rates: {', '.join(f'{rate:.3f}' for rate in rates)}; not all are above both."
    )


def _comparison(rows: Sequence[Series]) -> Table:
    lines = []
    for found in rows:
        rate, gamma = -slope(found, exponential=True).value, -7 * (found.bound or 0.0)
        values = [gamma, gamma / 7, gamma**2 / 6, rate]
        lines.append([Entry.words(found.name), *(Entry.number(value, ".4f") for value in values)])
    columns = ["setting", "gamma", "gamma/7, as stated", "gamma^2/6, as the proof gives", "measured rate"]
    return Table("Rates by margin", columns, lines, "c in exp(-c n).")


def _errors(gaps: Mapping[float, Sequence[Record]]) -> Table:
    rows = []
    for gap, found in gaps.items():
        for record in found:
            n, m = record.spec["n"], record.metrics
            share = m["failures"] / record.spec["replications"]
            values = [Entry.number(m["error"], ".3g"), Entry.number(m["spread"], ".1g")]
            rows.append([Entry(f"gap {gap:g}", gap), Entry.number(n, "d"), *values, Entry.number(share, ".3g")])
    columns = ["setting", "n", "mean error", "its standard error", "P(any error)"]
    return Table("All margins", columns, rows, "Shares of the support, and of the replications that err anywhere on it.")


def _figures(looks: Mapping[str, Mapping[str, Any]], rows: Sequence[Series]) -> list[Figure]:
    def lines(look: str, x: str, names: Mapping[str, str]) -> list[Series]:
        found = looks.get(look)
        return [] if found is None else [_single(name, found[x], found[key]) for key, name in names.items()]

    ratios = {"over-stated-t0.2": "exact over stated", "over-corrected-t0.2": "exact over corrected"}
    plane = {"xor": "XOR in the plane", "two-points": "two points"}
    edge = {"boundary": "boundary from the middle", "largest": "largest error of eta on the classes"}
    panels = [
        *panel("The lemma's constant, t = 0.2", lines("lemma", "noise", ratios), "noise v, gamma = 1", "ratio"),
        *panel("P(|2 eta - 1| < t) / t", lines("xor", "t", plane), "t", "ratio"),
        *panel("As the noise vanishes", lines("boundary", "noise", edge), "noise v", "distance, error"),
    ]
    drawn = panel("Error by n", [found for found in rows if found.x], "n", "mean error", exponential=True)
    return [
        Figure("Noise", "Closed forms.", panels),
        Figure("Rate", "Kernel ridge, mu = 1/n, eight arcs. Dashes: exp(-n gamma/7).", drawn),
    ]


def _single(name: str, x: Sequence[float], y: Sequence[float]) -> Series:
    """|y| by x; what is rounding alone is zero, and not drawn."""
    pairs = sorted((a, abs(b) if abs(b) > 1e-12 else 0.0) for a, b in zip(x, y, strict=True))
    return Series(name, [a for a, _ in pairs], [[b] for _, b in pairs])
