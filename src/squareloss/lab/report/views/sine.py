"""The sine as the paper shows it, and its claims: calibration errors, how they are read, how they fall with n and width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views._replicated import (
    FAILS,
    HOLDS,
    NAMES,
    OPEN,
    PAIR,
    Cells,
    Claim,
    best_mu,
    claims_table,
    difference,
    entry,
    judged,
    lower,
    row_by_mu,
    spread,
    steadier,
    tally,
)  # fmt: skip
from squareloss.lab.report.views._sine_figures import figures
from squareloss.lab.runs.store import Record

PAPER_MU = {"SL": 0.1, "CE": 0.1}
ALIKE = 0.005  # test errors that differ by less count as comparable
ONE_INSTANCE = {
    ("SL", "linf_grid"): 0.188,
    ("CE", "linf_grid"): 0.287,
    ("SL", "test_error"): 0.167,
    ("CE", "test_error"): 0.164,
}
MEASURES = {
    "test_error": "test error",
    "linf_grid": "L_inf, 201 x 201 lattice",
    "linf_test": "L_inf, test points",
    "l1_grid": "L_1, lattice",
    "l1_test": "L_1, test points",
}
# rows of the table at the chosen mu: a loss, and where its calibration errors are read
ROWS = {
    "SL + l2": ("SL", ""),
    "SL + l2, not clipped": ("SL", "also.unclipped."),
    "CE + l2": ("CE", ""),
    "CE + l2, temperature": ("CE", "also.temperature."),
    "squentropy + l2": ("squentropy", ""),
    "smoothed CE + l2": ("smoothed", ""),
    "smoothed CE + l2, undone": ("smoothed", "also.undone."),
}


def view(records: Sequence[Record], header: Header) -> View:
    """Tables, figures and sentences."""
    cells = Cells.of(records)
    if cells.best("SL") is None or cells.best("CE") is None:
        return View(plain=False)
    rows = claims(cells)
    caption = (
        "At the mu of the least mean validation error of each loss. Means (standard deviations) over replications; differences "
        "are paired by replication, with Student's 95% interval and p; spreads by their distances from the median. "
        f"Errors are comparable if the interval of their difference lies within {ALIKE:g} of zero."
    )
    tables = [
        claims_table(rows, caption), instance(cells), chosen(cells), choices(cells), nearest(cells), by_mu_table(cells),
        readings(cells), slopes(cells),
    ]  # fmt: skip
    told = [_answer(cells), _nearest_answer(cells), _temperature(cells), tally(rows)]
    return View(tables, figures(cells), told, plain=False, brief=3)


def claims(cells: Cells) -> list[Claim]:
    """The directions of the paper's text."""
    found = []
    for key, name in (("linf_grid", "L_inf"), ("l1_test", "L_1")):
        sides = cells.side("SL", key), cells.side("CE", key)
        found += [
            lower(f"SL has the smaller mean {name} calibration error", "smaller", *sides),
            steadier(f"SL has the smaller spread of the {name} calibration error", "smaller", *sides),
        ]
    errors = cells.side("SL", "test_error"), cells.side("CE", "test_error")
    return [
        *found,
        lower("the misclassification rates are comparable", "0.167, 0.164", *errors, margin=ALIKE),
        best_mu("the best mu of SL + l2", PAPER_MU["SL"], cells, "SL"),
        best_mu("the best mu of CE + l2", PAPER_MU["CE"], cells, "CE"),
    ]


def instance(cells: Cells) -> Table:
    """The paper's one instance beside our replications."""
    body = []
    for (loss, key), paper in ONE_INSTANCE.items():
        values = cells.side(loss, key)
        within = min(values) <= paper <= max(values)
        word = "within our range" if within else "outside our range"
        label = "L_inf calibration error" if key == "linf_grid" else "test error"
        told = f"{min(values):.3f} to {max(values):.3f}"
        body.append(
            [
                Entry(f"{NAMES[loss]}: {label}"), Entry.number(paper, ".3f"), Entry(spread(values)), Entry(told),
                Entry.words(word, "agrees" if within else "differs"),
            ]
        )  # fmt: skip
    caption = (
        "The paper gives the values of one instance; ours are the mean (standard deviation) and the range over replications."
    )
    return Table("Beside the paper's one instance", ["measure", "the paper's", "ours", "range", "so it is"], body, caption)


def _rows(cells: Cells, mus: Mapping[str, float | None]) -> list[list[Entry]]:
    """Every measure of every line of ROWS at the mu it has there, beside CE + l2."""
    body = []
    base = mus["CE + l2"] or 0.0
    for name, (loss, inside) in ROWS.items():
        mu = mus[name]
        if mu is None:
            continue
        row = [Entry.words(name), Entry.number(mu, "g")]
        for key in MEASURES:
            where = key if key == "test_error" else inside + key
            row.append(entry(cells.values(loss, mu, where), cells.values("CE", base, key)))
        body.append(row)
    return body


def chosen(cells: Cells) -> Table:
    """Every measure of every loss, and of other readings of the same outputs, at the chosen mu."""
    body = _rows(cells, {name: cells.best(loss) for name, (loss, _) in ROWS.items()})
    caption = (
        "Calibration errors are of |p - eta|: largest (L_inf) and mean (L_1). p is (1 + f)/2 brought to [0, 1] for SL, the "
        "sigmoid else; the temperature is fitted on the validation points; undone takes the smoothing back out of the "
        "probability. Mean (standard deviation) over replications; green is better than CE + l2, red is worse, paired."
    )
    return Table("At the chosen mu", ["loss", "mu", *MEASURES.values()], body, caption)


def nearest(cells: Cells) -> Table:
    """The same with the mu that is best for the L_inf error of each line."""
    body = _rows(cells, {name: cells.best(loss, key=f"{inside}linf_grid") for name, (loss, inside) in ROWS.items()})
    caption = (
        "As the table at the chosen mu, but each line at the mu of its own least mean L_inf error on the lattice: what a loss "
        "can reach, not what one would get, since that mu takes eta to find. It is found on the replications shown. Green is "
        "better than CE + l2, red is worse, paired."
    )
    return Table("At the mu best for L_inf", ["loss", "mu", *MEASURES.values()], body, caption)


def choices(cells: Cells) -> Table:
    """The claims on the calibration error by how mu is chosen: by validation, for the least L_inf error, the same for both."""
    pairs = {
        "least validation error": (cells.best("SL"), cells.best("CE")),
        "least L_inf": (cells.best("SL", key="linf_grid"), cells.best("CE", key="linf_grid")),
    }
    pairs |= {f"the same, {mu:g}": (mu, mu) for mu in cells.mus("SL") if mu in cells.mus("CE")}
    body = []
    for name, (square, cross) in pairs.items():
        if square is None or cross is None:
            continue
        linf, l1 = ((cells.values("SL", square, key), cells.values("CE", cross, key)) for key in ("linf_grid", "l1_grid"))
        row = [Entry(name), Entry(f"{square:g}, {cross:g}")]
        for _, _, told, verdict in (lower("", "", *linf), steadier("", "", *linf), lower("", "", *l1)):
            row += [told, verdict]
        body.append(row)
    caption = (
        "Mean and spread of the L_inf error and mean of the L_1 error, both on the lattice, tested as the claims are. The "
        "paper has mu = 0.1 for both losses."
    )
    so = "SL's is smaller"
    head = ["mu by", "mu of SL, CE", "L_inf, SL against CE", so, "its spread", so, "L_1, SL against CE", so]
    return Table("How the choice of mu matters", head, body, caption)


def by_mu_table(cells: Cells) -> Table:
    """Validation error and L_inf calibration error of every loss and mu."""
    keys = {"validation_error": "validation error", "linf_grid": "L_inf"}
    body = [row_by_mu(cells, loss, key, f"{NAMES[loss]}: {label}") for loss in cells.losses() for key, label in keys.items()]
    caption = "Mean (standard deviation) over replications; green: the mu of the least mean validation error."
    return Table("By mu", ["measure", *(f"mu = {mu:g}" for mu in cells.mus())], body, caption)


def _reading(cells: Cells, change: str, mus: Mapping[str, float | None]) -> list[Entry]:
    """Both losses under one reading, at these mu; nothing where there are no results."""
    sides = {
        key: [cells.values(loss, mu or 0.0, key, change) for loss, mu in mus.items()]
        for key in ("test_error", "linf_grid", "l1_grid")
    }
    a, b = sides["linf_grid"]
    if None in mus.values() or not a or not b:
        return []
    word = {HOLDS: "SL is nearer eta", FAILS: "CE is nearer eta", OPEN: OPEN}[judged(difference(a, b))]
    means = [Entry(" against ".join(spread(values, 3) for values in pair)) for pair in sides.values()]
    told = f"{mus['SL']:g}, {mus['CE']:g}"
    return [Entry(change or "ours"), Entry(str(min(len(a), len(b)))), Entry(told), Entry.words(word), *means]


def readings(cells: Cells) -> Table:
    """Whether the first claim depends on how the paper is read."""
    others = [c for c in cells.changes() if not c.startswith(("n=", "width="))]
    rows = [_reading(cells, change, {loss: cells.best(loss, change) for loss in PAIR}) for change in ["", *others]]
    alone = {mus[0] for change in others if len(mus := cells.mus("SL", change)) == 1}
    rows[1:1] = [_reading(cells, "", {"SL": mu, "CE": mu}) for mu in sorted(alone)]  # like for like
    body = [row for row in rows if row]
    pairs = [f"{name}, SL against CE" for name in ("test error", "L_inf", "L_1")]
    head = ["reading", "replications", "mu of SL, CE", "by L_inf", *pairs]
    caption = (
        "Other readings of eta and of the learning rate at one mu, with fewer replications (ours at that mu too, to compare); "
        "the penalty beside the mean loss at the mu that its own validation error chooses. Bayes errors: affine 0.165, "
        "clipped 0.079, absolute 0.193, half 0.160."
    )
    return Table("How much the reading matters", head, body, caption)


def slope(points: Mapping[float, Sequence[float]]) -> list[float]:
    """The slope of log measure against log size by least squares, one per replication."""
    logs = np.log(np.array(list(points), dtype=float))
    values = np.log(np.maximum(np.array(list(points.values()), dtype=float), 1e-12))  # (sizes, replications)
    return [float(s) for s in np.polyfit(logs, values, 1)[0]]


def slopes(cells: Cells) -> Table:
    """How calibration errors fall with the number of points and with the width."""
    whats, keys = {"n": "points n", "width": "width"}, {"linf_grid": "L_inf", "l1_grid": "L_1"}
    body = []
    for what, loss, key in product(whats, PAIR, keys):
        points = cells.curve(loss, what, key)
        if len(points) > 1:
            theory = "-1/10" if (what, loss, key) == ("n", "SL", "linf_grid") else ""
            body.append([Entry(f"{NAMES[loss]}: {keys[key]} by {whats[what]}"), *_slope_entries(points, theory)])
    caption = (
        "Least-squares slope of the logarithm of the error against that of the size, mean over replications with Student's 95% "
        "interval. Theorem 4 bounds the L_inf error of square loss on the sphere; with a bias coordinate d = 3, and its "
        "exponent is 1/10."
    )
    return Table("Slopes", ["measure", "slope", "95% interval", "Theorem 4", "error"], body, caption)


def _slope_entries(points: Mapping[float, Sequence[float]], theory: str) -> list[Entry]:
    """Slope, interval, what theory says, and the error at both ends."""
    found = slope(points)
    d = difference(found, [0.0] * len(found))
    interval = "–" if d is None else d.interval("{:+.3f}".format) or "–"
    ends = ", ".join(f"{np.mean(points[size]):.3f} at {size:g}" for size in (min(points), max(points)))
    mean = float(np.mean(found))
    return [Entry.number(mean, "+.3f"), Entry(interval), Entry(theory), Entry(ends)]


def _answer(cells: Cells) -> str:
    told = []
    for loss in PAIR:
        linf, error = (np.mean(cells.side(loss, key)) for key in ("linf_grid", "test_error"))
        told.append(f"{NAMES[loss]} is off by at most {linf:.3f} and errs {100 * error:.2f}% (mu = {cells.best(loss):g})")
    return f"Means over replications at the chosen mu: {'; '.join(told)}."


def _nearest_answer(cells: Cells) -> str:
    mus = {loss: cells.best(loss, key="linf_grid") or 0.0 for loss in PAIR}
    a, b = (cells.values(loss, mu, "linf_grid") for loss, mu in mus.items())
    told = [f"{NAMES[loss]} by {np.mean(values):.3f} (mu = {mus[loss]:g})" for loss, values in zip(mus, (a, b), strict=True)]
    word = {HOLDS: "square loss is nearer", FAILS: "cross-entropy is nearer", OPEN: OPEN}[judged(difference(a, b))]
    return f"With mu chosen for the L_inf error itself, off by at most: {'; '.join(told)}: {word}."


def _temperature(cells: Cells) -> str:
    own, scaled = (cells.side("CE", key) for key in ("linf_grid", "also.temperature.linf_grid"))
    words = {HOLDS: "square loss is still nearer", FAILS: "nearer than square loss", OPEN: "not to be told from square loss"}
    word = words[judged(difference(cells.side("SL", "linf_grid"), scaled))]
    return f"A temperature takes cross-entropy's L_inf error from {np.mean(own):.3f} to {np.mean(scaled):.3f}: {word}."
