"""Accuracy under Gaussian noise of standard deviation .1 to .4, in standardised space: the networks of Table 1.

    squareloss reproduce gaussian_noise --scale paper --out runs/images    nothing is trained that table1 has trained there

Expected (the paper, ResNet-18, CIFAR-10): 90.03 69.71 41.08 24.66 (CE), 90.07 70.16 42.13 25.38 (SL).
"""

from __future__ import annotations

from dataclasses import replace

from squareloss.lab.report.header import Column
from squareloss.lab.report.views.paper_images import STDS
from squareloss.lab.studies.images.study import ImageStudy
from squareloss.lab.studies.images.table1 import LINES

STUDY = ImageStudy(
    "gaussian_noise",
    "accuracy of image networks under Gaussian noise",
    tuple(replace(line, kinds=("clean",)) for line in LINES),
    {
        "smoke": "seconds",
        "laptop": "some minutes on 2 cores; needs CIFAR-10",
        "paper": "nothing, in the folder (--out) of table1",
    },
    columns=(
        Column("accuracy", "accuracy", "higher", percent=True),
        *(Column(f"noise_{std:g}", f"accuracy under noise {std:g}", "higher", percent=True) for std in STDS),
    ),
)
