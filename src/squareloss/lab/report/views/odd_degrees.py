"""The view of `odd_degrees`: what a bias coordinate changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squareloss.lab.report.figures import Figure, Panel
from squareloss.lab.report.header import Header
from squareloss.lab.report.svg import Plot
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._rates import by
from squareloss.lab.runs.store import Record

NAMES = {False: "without a bias", True: "with a bias coordinate"}


def view(records: Sequence[Record], header: Header) -> View:
    """Three looks side by side."""
    looks = {look: by(found, lambda spec: spec["bias"]) for look, found in by(records, lambda spec: spec["look"]).items()}
    classes, degrees, networks = (looks.get(look, {}) for look in ("classes", "degrees", "network"))
    ends = {bias: (found[-1].spec["n"], float(np.mean(found[-1].metrics["error"]))) for bias, found in classes.items()}
    told = "; ".join(f"{NAMES[bias]} {100 * error:.3g}% at n = {n}" for bias, (n, error) in ends.items())
    sentences = [
        "What the theory leaves out: h holds linear and even functions only, so it is not positive definite on the whole "
        "sphere, and not every Lipschitz function lies in its RKHS.",
        f"Error on sign(cos 3 theta), separable with a margin: {told or 'none measured yet'}. Any function that is linear plus "
        "even errs on at least 1/6 of it.",
    ]
    if networks:
        sides = "; ".join(f"{NAMES[b]} {100 * float(np.mean(found[0].metrics['error'])):.3g}%" for b, found in networks.items())
        spec = next(iter(networks.values()))[0].spec
        sentences.append(f"Networks of width {spec['width']} trained by descent on {spec['n']} points: {sides}.")
    panels = [draw(groups) for draw, groups in ((_errors, classes), (_degrees, degrees)) if groups]
    figure = Figure("What is out of reach", "Means over replications.", panels)
    return View([_table(classes, networks), _degree_table(degrees)], [figure], sentences, plain=False)


def _errors(groups: dict[bool, list[Record]]) -> Panel:
    ns = [record.spec["n"] for found in groups.values() for record in found]
    x = (min(ns), max(ns))
    plot = Plot("n", "error", x, (0, 0.6), "Error on sign(cos 3 theta)", log="x", percent=True)
    for bias, found in groups.items():
        points = [(r.spec["n"], float(np.mean(r.metrics["error"]))) for r in found]
        plot.line(points, int(bias), NAMES[bias], dots=False)
    plot.rule((x[0], 1 / 6), (x[1], 1 / 6))
    return Panel("Error on sign(cos 3 theta); dashes: 1/6", plot.svg(), [(int(b), NAMES[b], False) for b in groups])


def _degrees(groups: dict[bool, list[Record]]) -> Panel:
    plot = Plot("degree k", "relative error", (1, 6), (0, 1.4), "Noiseless cos k theta")
    for bias, found in groups.items():
        rows = found[0].metrics["relative"]
        plot.line([(k + 1, float(np.mean(row))) for k, row in enumerate(rows)], int(bias), NAMES[bias])
    return Panel("Noiseless cos k theta", plot.svg(), [(int(b), NAMES[b], False) for b in groups])


def _table(classes: dict[bool, list[Record]], networks: dict[bool, list[Record]]) -> Table:
    rows = []
    for who, groups in (("ridge with h", classes), ("network", networks)):
        for bias, found in groups.items():
            for record in found:
                error = float(np.mean(record.metrics["error"]))
                cells = [Entry.words(who), Entry.words(NAMES[bias]), Entry.number(record.spec["n"], "d")]
                rows.append([*cells, Entry.number(error, ".2%")])
    return Table(
        "Error on sign(cos 3 theta)", ["fit", "inputs", "n", "error"], rows, "Share of the support; mu = 1/n for ridge."
    )


def _degree_table(groups: dict[bool, list[Record]]) -> Table:
    rows = []
    for bias, found in groups.items():
        means = [float(np.mean(row)) for row in found[0].metrics["relative"]]
        rows.append([Entry.words(NAMES[bias]), *(Entry.number(mean, ".2g") for mean in means)])
    columns = ["relative error of cos k theta", *(f"k = {k}" for k in range(1, 7))]
    return Table("By degree", columns, rows, "Noiseless, mu = 0.001. At odd k >= 3 the fit without a bias is worse than zero.")
