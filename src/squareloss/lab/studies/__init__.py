"""The studies: one file per table, figure or theorem of the paper, and `compare`, for data of one's own.

A study is what `lab.runs.Study` asks for, and may say how it is to be shown: `columns` (a list of `report.header.Column`),
`paper` (the paper's values), `claims` (a list of `Claim`) and `baseline`; see `report.header.Header`.
"""

from __future__ import annotations

from importlib import import_module

from squareloss.lab.names import choose
from squareloss.lab.runs import Study

# name -> "module:attribute" of a study; a module is imported only when it is asked for
STUDIES: dict[str, str] = {
    "table1": "squareloss.lab.studies.images.table1:STUDY",
    "gaussian_noise": "squareloss.lab.studies.images.gaussian_noise:STUDY",
    "reliability": "squareloss.lab.studies.images.reliability:STUDY",
    "adversarial_training": "squareloss.lab.studies.images.adversarial_training:STUDY",
    "codings": "squareloss.lab.studies.images.codings:STUDY",
    "beyond_paper": "squareloss.lab.studies.images.beyond_paper:STUDY",
    "spirals": "squareloss.lab.studies.synthetic.spirals:STUDY",
    "sine": "squareloss.lab.studies.synthetic.sine:STUDY",
    "spectrum": "squareloss.lab.studies.theory.spectrum:STUDY",
    "excess_risk": "squareloss.lab.studies.theory.excess_risk:STUDY",
    "separable_rate": "squareloss.lab.studies.theory.separable_rate:STUDY",
    "calibration_rate": "squareloss.lab.studies.theory.calibration_rate:STUDY",
    "margin": "squareloss.lab.studies.theory.margin:STUDY",
    "ntk_equivalence": "squareloss.lab.studies.theory.ntk_equivalence:STUDY",
    "odd_degrees": "squareloss.lab.studies.theory.odd_degrees:STUDY",
    "noise_injection": "squareloss.lab.studies.theory.noise_injection:STUDY",
    "simplex_probability": "squareloss.lab.studies.theory.simplex_probability:STUDY",
}


def get(name: str) -> Study:
    """The study of a name; ValueError with the list of them and the nearest if there is none."""
    module, _, attribute = STUDIES[choose("study", name, STUDIES)].partition(":")
    study: Study = getattr(import_module(module), attribute)
    return study
