"""The studies: one file per table, figure or theorem of the paper, and `compare`, for data of one's own.

A study is what `lab.runs.Study` asks for, and may say how it is to be shown: `columns` (a list of `report.header.Column`),
`paper` (the paper's values), `claims` (a list of `Claim`) and `baseline`; see `report.header.Header`.
"""

from __future__ import annotations

from importlib import import_module

from squareloss._checks import choose
from squareloss.lab.runs import Study

_FOLDERS = {
    "images": ("table1", "gaussian_noise", "reliability", "adversarial_training", "codings", "beyond_paper"),
    "synthetic": ("spirals", "sine"),
    "theory": (
        "spectrum", "excess_risk", "separable_rate", "calibration_rate", "margin", "ntk_equivalence", "odd_degrees",
        "noise_injection", "simplex_probability",
    ),
}  # fmt: skip
# name -> "module:attribute" of a study; a module is imported only when it is asked for
STUDIES: dict[str, str] = {name: f"{__name__}.{folder}.{name}:STUDY" for folder, names in _FOLDERS.items() for name in names}


def get(name: str) -> Study:
    """The study of a name; ValueError with the list of them and the nearest if there is none."""
    module, _, attribute = STUDIES[choose("study", name, STUDIES)].partition(":")
    study: Study = getattr(import_module(module), attribute)
    return study
