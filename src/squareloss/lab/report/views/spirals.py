"""The spirals as the paper shows them, and its claims: error against mu, boundaries, training, margins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from squareloss.lab.data.replications import spirals_split
from squareloss.lab.report.fields import unpack_lines
from squareloss.lab.report.figures import NOTHING, Figure, Panel
from squareloss.lab.report.header import Header
from squareloss.lab.report.svg import Plot
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
    by_mu,
    claim,
    claims_table,
    difference,
    entry,
    higher,
    judged,
    lower,
    row_by_mu,
    spread,
    tally,
)  # fmt: skip
from squareloss.lab.runs.store import Record

REACH, SHOWN = 1.5, 1.15  # the box in which boundaries are traced and stored, and what is drawn of it
PAPER_MU = {"SL": 0.1, "CE": 0.01}
MEASURES = {
    "test_error": ("test error", "lower"),
    "sparse_error": ("error where data are sparse", "lower"),
    "margin_support": ("mean distance of the support", "higher"),
    "margin_support_low": ("its 5% quantile", "higher"),
    "margin_train": ("least distance of a training point", "higher"),
    "unrest": ("unrest of the training loss", ""),
}


def view(records: Sequence[Record], header: Header) -> View:
    """Tables, figures and sentences."""
    cells = Cells.of(records)
    if cells.best("SL") is None or cells.best("CE") is None:
        return View(plain=False)
    rows = claims(cells)
    caption = (
        "At the mu of the least mean validation error of each loss. Means (standard deviations) over replications; differences "
        "are paired by replication, with Student's 95% interval and p. A claim holds, or does not, if the interval excludes 0."
    )
    tables = [claims_table(rows, caption), chosen(cells), validation(cells), readings(cells)]
    figures = [by_mu_figure(cells), boundaries(cells), training(cells)]
    return View(tables, figures, [_answer(cells), tally(rows)], plain=False)


def _sides(cells: Cells) -> dict[str, tuple[str, float]]:
    """The paper's three, and the losses beyond it, at their chosen mu."""
    found = [(NAMES[loss], loss, cells.best(loss)) for loss in NAMES]
    found.insert(2, ("CE", "CE", 0.0))
    return {name: (loss, mu) for name, loss, mu in found if mu is not None and cells.records(loss, mu)}


def _three(cells: Cells) -> dict[str, tuple[str, float]]:
    """The paper's three as its figures show them: CE + l2 has a penalty, even where none at all is best."""
    return {
        "SL + l2": ("SL", cells.best("SL") or 0.0),
        "CE + l2": ("CE", cells.best("CE", above=0.0) or 0.0),
        "CE": ("CE", 0.0),
    }


def claims(cells: Cells) -> list[Claim]:
    """The directions of the paper's text."""
    chosen = cells.best("CE") or 0.0
    mu = cells.best("CE", above=0.0) or 0.0  # where no penalty at all is best, the best there is
    at = "" if mu == chosen else f" (at mu = {mu:g})"

    def both(key: str) -> tuple[list[float], list[float]]:
        return cells.side("SL", key), cells.side("CE", key)

    def penalised(key: str) -> tuple[list[float], list[float]]:
        return cells.values("CE", mu, key), cells.values("CE", 0.0, key)

    error, plain = both("test_error"), cells.values("CE", 0.0, "test_error")
    return [
        lower("SL + l2 errs less than CE + l2", "lower", *error),
        lower("SL + l2 errs less than CE", "lower", error[0], plain),
        lower("CE + l2 errs less than CE" + at, "lower", *penalised("test_error")),
        lower("SL + l2 fits best where data are sparse", "lower", *both("sparse_error")),
        higher("SL + l2 has the larger margin to the support", "larger", *both("margin_support")),
        higher("SL + l2 has the larger margin to the training points", "larger", *both("margin_train")),
        best_mu("the best mu of SL + l2", PAPER_MU["SL"], cells, "SL"),
        best_mu("the best mu of CE + l2", PAPER_MU["CE"], cells, "CE"),
        _fitted(cells),
        higher("l2 makes the training of CE oscillate" + at, "more", *penalised("unrest")),
    ]


def _fitted(cells: Cells) -> Claim:
    """The claim that all three networks end with no training error."""
    sides, names = _sides(cells), ("SL + l2", "CE + l2", "CE")
    errors = {name: cells.values(*sides[name], "train_error") for name in names if name in sides}
    zeros = [error == 0 for values in errors.values() for error in values]
    means = ", ".join(f"{name} {np.mean(values):.4f}" for name, values in errors.items())
    ours = f"{means}; zero in {sum(zeros)} of {len(zeros)} networks"
    verdict = FAILS if not all(zeros) else HOLDS if len(errors) == len(names) else OPEN
    return claim("all three reach a training error of 0", "0", ours, math.nan, verdict)


def chosen(cells: Cells) -> Table:
    """Every measure of every loss at its chosen mu, beside CE + l2."""
    sides = _sides(cells)
    base = sides["CE + l2"]
    body = []
    for name, (loss, mu) in sides.items():
        row = [Entry.words(name), Entry.number(mu, "g")]
        for key, (_, better) in MEASURES.items():
            against = cells.values(*base, key) if better else []
            row.append(entry(cells.values(loss, mu, key), against, better))
        body.append(row)
    caption = (
        "Mean (standard deviation) over replications; green is better than CE + l2, red is worse, paired by replication. "
        "Distances are signed: negative on the wrong side. The unrest is the root mean square of the changes of log10 of the "
        "training loss between two notes, over the second half of training. A temperature moves no boundary, so CE with "
        "a temperature has the row of CE."
    )
    return Table("At the chosen mu", ["loss", "mu", *(label for label, _ in MEASURES.values())], body, caption)


def validation(cells: Cells) -> Table:
    """Validation error of every loss and mu."""
    body = [row_by_mu(cells, loss, "validation_error", NAMES[loss]) for loss in cells.losses()]
    caption = "Mean (standard deviation) of the validation error; green: the least mean, which chooses mu."
    return Table("Validation error by mu", ["loss", *(f"mu = {mu:g}" for mu in cells.mus())], body, caption)


def readings(cells: Cells) -> Table:
    """Whether the first claim depends on how the paper is read."""
    body = []
    for change in ["", *cells.changes()]:
        mus = [cells.best(loss, change) for loss in PAIR]
        if None in mus:
            continue
        a, b = (cells.side(loss, "test_error", change) for loss in PAIR)
        margins = [cells.side(loss, "margin_support", change) for loss in PAIR]
        penalised = cells.best("CE", change, above=0.0) or 0.0
        unrest = [cells.values("CE", mu, "unrest", change) for mu in (penalised, 0.0)]
        word = {HOLDS: "SL errs less", FAILS: "CE errs less", OPEN: OPEN}[judged(difference(a, b))]
        body.append(
            [
                Entry(change or "ours"), Entry(str(min(len(a), len(b)))), Entry(", ".join(f"{mu:g}" for mu in mus)),
                Entry(spread(a)), Entry(spread(b)), Entry.words(word),
                Entry(" against ".join(spread(m) for m in margins)), Entry(" against ".join(spread(u, 3) for u in unrest)),
            ]
        )  # fmt: skip
    caption = (
        "Test error and mean distance of the support at the mu that each reading's own validation error chooses; unrest of the "
        "training loss of CE at its best mu above 0, against that at mu = 0."
    )
    head = [
        "reading", "replications", "mu of SL, CE", "error of SL + l2", "error of CE + l2", "so", "margin of SL against CE",
        "unrest of CE + l2 against CE",
    ]  # fmt: skip
    return Table("How much the reading matters", head, body, caption)


def _answer(cells: Cells) -> str:
    sides = _sides(cells)
    told = [
        f"{name} {100 * np.mean(cells.values(*side, 'test_error')):.2f}% (mu = {side[1]:g})" for name, side in sides.items()
    ]
    return f"Mean test error at the chosen mu: {', '.join(told)}."


# figures


def by_mu_figure(cells: Cells) -> Figure:
    """Error bars of the validation error and the margin against mu."""
    panels = [
        by_mu(cells, "validation_error", "Validation error", "validation error", log=True),
        by_mu(cells, "margin_support", "Distance of the support", "mean signed distance"),
    ]
    return Figure("The choice of mu", "Means and one standard deviation over replications.", panels)


def boundaries(cells: Cells) -> Figure:
    """Three panels for each of the first replications: boundary, training points, the sparsest stretch marked."""
    sides = {name: side for name, side in _three(cells).items() if cells.records(*side)}
    count = min(len(cells.records(*side)[0].metrics.get("boundaries", [])) for side in sides.values())
    if not count:
        return NOTHING
    first = cells.records(*sides["SL + l2"])[0]
    data = spirals_split(range(count), first.spec["n"], 2, first.seed).train
    panels = []
    for r in range(count):
        x, y = data.x[r].numpy(), data.y[r].numpy()
        for name, side in sides.items():
            record = cells.records(*side)[0]
            error = record.metrics["test_error"][r]
            svg = boundary_plot(x, y, unpack_lines(record.metrics["boundaries"][r], REACH), f"{name}, replication {r + 1}")
            panels.append(Panel(f"{r + 1}: {name}, mu = {side[1]:g}", svg, note=f"test error {100 * error:.2f}%"))
    caption = (
        "Decision boundaries of the first replications, not selected. Blue: class 0, orange: class 1, training points. The red "
        "ring marks the widest gap between neighbouring training points along a spiral."
    )
    return Figure("Decision boundaries", caption, panels)


def boundary_plot(
    x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], lines: Sequence[Sequence[tuple[float, float]]], title: str
) -> str:
    """One panel."""
    edge = [(-1.0, "-1"), (0.0, "0"), (1.0, "1")]
    plot = Plot("", "", (-SHOWN, SHOWN), (-SHOWN, SHOWN), title, 308, 288, x_ticks=edge, y_ticks=edge)
    for klass in (0, 1):
        plot.dots([(float(a), float(b)) for a, b in x[y == klass]], klass, 3.4)
    for line in lines:
        for piece in inside(line, SHOWN):
            plot.trace(piece, "line c6", 1.8)
    middle, gap = widest_gap(x, y)
    plot.circle(float(middle[0]), float(middle[1]), gap / 2, f"widest gap, {gap:.2f}")
    return plot.svg()


def inside(line: Sequence[tuple[float, float]], reach: float) -> list[list[tuple[float, float]]]:
    """The pieces of a line within [-reach, reach]^2; a piece ends at the first point outside."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for point in line:
        pieces[-1].append(point)
        if max(abs(point[0]), abs(point[1])) > reach:
            pieces.append([point])
    return [piece for piece in pieces if any(max(abs(a), abs(b)) <= reach for a, b in piece) and len(piece) > 1]


def widest_gap(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], float]:
    """Middle and length of the longest step between neighbouring training points along either spiral."""
    found = []
    for klass, sign in ((0, 1.0), (1, -1.0)):
        p = sign * x[y == klass].astype(np.float64) - [0.04, 0.0]  # back on the curve (rho sin theta, rho cos theta)
        angle, radius = np.arctan2(p[:, 0], p[:, 1]) % (2 * np.pi), np.hypot(*p.T)
        turns = np.stack([angle, angle + 2 * np.pi]) / (4 * np.pi)
        arm = np.abs(radius - turns**0.8).argmin(0)
        order = np.take_along_axis(turns, arm[None], 0)[0].argsort()
        mine = x[y == klass].astype(np.float64)[order]
        steps = np.hypot(*np.diff(mine, axis=0).T)
        i = int(steps.argmax())
        found.append(((mine[i] + mine[i + 1]) / 2, float(steps[i])))
    return max(found, key=lambda gap: gap[1])


def training(cells: Cells) -> Figure:
    """Training loss of the first replication, with its unrest."""
    panels = []
    for place, (name, side) in enumerate(_three(cells).items()):
        records = cells.records(*side)
        curve = records[0].metrics.get("curve_of_first") if records else None
        if not curve or not curve["step"]:
            continue
        low = 10.0 ** math.floor(math.log10(max(min(curve["loss"]), 1e-12)))
        high = 10.0 ** math.ceil(math.log10(max(max(curve["loss"]), 10 * low)))
        plot = Plot("iteration", "training loss", (0, 1.02 * curve["step"][-1]), (low, high), name, log="y")
        plot.trace(list(zip(curve["step"], curve["loss"], strict=True)), f"line c{place}", 1.2)
        fitted = next((s for s, e in zip(curve["step"], curve["error"], strict=True) if e == 0), None)
        note = f"training error 0 from iteration {fitted}" if fitted else "training error never 0"
        panels.append(Panel(f"{name}, mu = {side[1]:g}", plot.svg(), note=note))
    caption = "Training loss without the penalty, first replication, noted at even intervals."
    return Figure("Training", caption, panels)
