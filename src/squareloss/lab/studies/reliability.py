"""Calibration: reliability diagrams and ECE of ResNet-18 on CIFAR-10 and ResNet-50 on CIFAR-100.

    squareloss reproduce reliability --scale paper --out runs/images    nothing is trained that table1 has trained there

Expected (the paper's ECE): .028 (CE) and .0097 (SL) on CIFAR-10, .094 and .068 on CIFAR-100. The rows with "+temperature" are
what practitioners ask for: each half of the test set read by a temperature fitted on the other half.
"""

from __future__ import annotations

from dataclasses import replace

from squareloss.lab.report.header import Column
from squareloss.lab.studies.images.study import ImageStudy
from squareloss.lab.studies.table1 import LINES, PROBABILITIES

STUDY = ImageStudy(
    "reliability",
    "calibration of image networks, as trained and after a temperature",
    tuple(replace(line, kinds=("clean",)) for line in LINES if line.network in ("resnet18", "resnet50")),
    {
        "smoke": "seconds",
        "laptop": "some minutes on 2 cores; needs CIFAR-10",
        "paper": "nothing, in the folder (--out) of table1",
    },
    columns=(*PROBABILITIES, Column("nll", "NLL", "lower", shared=False), Column("temperature", "temperature", digits=3)),
    readings=True,
)
