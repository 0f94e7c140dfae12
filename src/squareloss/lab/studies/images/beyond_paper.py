"""Beyond the paper, ResNet-18 on CIFAR-10: other losses, neural collapse, images of CIFAR-100, examples that carry over.

    squareloss reproduce beyond_paper --scale smoke                                   seconds
    squareloss reproduce beyond_paper --scale paper --seeds 2 --out runs/images       after table1 in that folder

Squentropy and label-smoothed cross-entropy with every measure of Table 1; for all four losses NC1 to NC4 on the training
images, the AUROC of telling CIFAR-100's test images from CIFAR-10's, and the accuracy on examples made on the other network.
"""

from __future__ import annotations

from squareloss.lab.report.header import Column
from squareloss.lab.report.views.paper_images import LEVELS
from squareloss.lab.studies.images.plan import TABLE, Line
from squareloss.lab.studies.images.study import ImageStudy
from squareloss.lab.studies.images.table1 import ATTACKS, PROBABILITIES

STUDY = ImageStudy(
    "beyond_paper",
    "other losses, neural collapse, out-of-distribution detection and transfer of adversarial examples",
    (
        Line("resnet18", "cifar10", "CE", kinds=("beyond", "transfer"), sources=("SL",)),
        Line("resnet18", "cifar10", "SL", kinds=("beyond", "transfer"), sources=("CE",)),
        Line("resnet18", "cifar10", "CEsmooth", kinds=(*TABLE, "beyond", "readings")),
        Line("resnet18", "cifar10", "squentropy", kinds=(*TABLE, "beyond", "readings")),
    ),
    {
        "smoke": "seconds",
        "laptop": "some minutes on 2 cores; needs CIFAR-10 and CIFAR-100",
        "paper": "about an hour of an H200 for two seeds beside table1; needs CIFAR-10 and CIFAR-100",
    },
    columns=(
        *PROBABILITIES,
        *ATTACKS,
        Column("auroc_probability", "AUROC, CIFAR-100, by probability", "higher"),
        Column("auroc_score", "AUROC, CIFAR-100, by score", "higher"),
        Column("nc1", "NC1", digits=5),
        Column("nc2_norms", "NC2, norms"),
        Column("nc2_angles", "NC2, angles"),
        Column("nc3", "NC3"),
        Column("nc4", "NC4", percent=True),
        *(Column(f"transfer_{level}", f"stand examples of the other, {level}/255", percent=True) for level in LEVELS),
    ),
    seeds={"smoke": 1, "laptop": 1, "paper": 2},
)
