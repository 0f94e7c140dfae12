"""Calibration: reliability diagrams and ECE of the networks of table1.

    squareloss reproduce reliability --scale paper --out runs/images    nothing is trained that table1 has trained there

Expected (the paper's ECE): .028 (CE) and .0097 (SL) of ResNet-18 on CIFAR-10, .094 and .068 of ResNet-50 on CIFAR-100. After a
temperature, `Asinh` or isotonic regression is what practitioners ask for: each half of the test set is read by what was fitted
on the other half. The cells "readings" have the last two and, of square loss, eta clipped and renormalised, not projected.
"""

from __future__ import annotations

from dataclasses import replace

from squareloss.lab.report.header import Column
from squareloss.lab.studies.images.study import ImageStudy
from squareloss.lab.studies.images.table1 import PROBABILITIES
from squareloss.lab.studies.images.table1 import STUDY as TABLE_1

STUDY = ImageStudy(
    "reliability",
    "calibration of image networks, as trained, by two readings of eta, and calibrated on held-out images",
    tuple(replace(line, kinds=("clean", "readings")) for line in TABLE_1.lines),
    {
        "smoke": "seconds",
        "laptop": "some minutes on 2 cores; needs CIFAR-10",
        "paper": "seconds a network, in the folder (--out) of table1",
    },
    columns=(*PROBABILITIES, Column("nll", "NLL", "lower", shared=False), Column("temperature", "temperature", digits=3)),
    readings=True,
)
