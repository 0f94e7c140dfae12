"""What a study shows besides the plain tables: one module per study, `view(records, header)`, from the results alone.

Slopes, choices of a penalty over replications, tests of a claim, figures of its own: whatever needs more than means over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from squareloss.lab.report.figures import Figure
from squareloss.lab.report.header import Header
from squareloss.lab.report.tables import Table
from squareloss.lab.runs.store import Record

_OWN = (
    "spirals", "sine", "spectrum", "excess_risk", "separable_rate", "calibration_rate", "margin", "ntk_equivalence",
    "odd_degrees", "noise_injection", "simplex_probability",
)  # fmt: skip
_OF_IMAGES = ("table1", "gaussian_noise", "reliability", "adversarial_training", "codings", "beyond_paper")
# name of a study -> module with its `view`; a module is imported only when its study is shown
VIEWS: dict[str, str] = {name: f"{__name__}.{name}" for name in _OWN} | dict.fromkeys(_OF_IMAGES, f"{__name__}.images")


@dataclass(frozen=True)
class View:
    """What a study adds to its report.

    Arguments:
        tables, figures: shown after the plain ones.
        sentences: the answer in words, shown first.
        plain: show the plain table of results too (means over seeds of every cell); False where cells are points of a curve.
        brief: how many of the tables a terminal shows, from the first.
    """

    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    sentences: Sequence[str] = ()
    plain: bool = True
    brief: int = 2


def view(records: Sequence[Record], header: Header) -> View:
    """The view of a study, without tables and figures that have nothing in them; an empty one if it has none.

    A study may be run in pieces: a view must stand any part of its records.
    """
    if header.study not in VIEWS:
        return View()
    module: Any = import_module(VIEWS[header.study])
    found: View = module.view(records, header)
    tables, figures = [t for t in found.tables if t.rows], [f for f in found.figures if f.panels]
    return replace(found, tables=tables, figures=figures)
