"""Table 1: clean accuracy, PGD-100 and AutoAttack of eight networks on CIFAR, square loss against cross-entropy.

    squareloss reproduce table1 --scale smoke                                   seconds: stand-in images, a tiny ResNet
    squareloss reproduce table1 --scale laptop                                  minutes: 2000 images of CIFAR-10
    squareloss reproduce table1 --scale paper --cells 'resnet18-cifar10-*' --seeds 0-1 --out runs/images
    squareloss reproduce table1 --scale paper --set recipe=fast --cells 'resnet18-cifar10-*' --seeds 2 --out runs/images

Cost on an H200: docs/images.md. Expected (the paper, ResNet-18, CIFAR-10): clean 95.15 (CE), 95.04 (SL); PGD-100 at 2/255 8.81,
30.53; AutoAttack at 2/255 2.74, 4.10. Beside them stand the worst case over adaptive attacks, which is what counts, ECE as
trained and after a temperature, and the least over all attacks. "SLr1" is square loss at radius 1.
"""

from __future__ import annotations

from squareloss.lab.report.header import Column
from squareloss.lab.report.views.paper_images import LEVELS
from squareloss.lab.studies.images.plan import Line
from squareloss.lab.studies.images.study import ImageStudy

LINES = (
    Line("resnet18", "cifar10", "CE"),
    Line("resnet18", "cifar10", "SL"),
    Line("wrn16_10", "cifar10", "CE"),
    Line("wrn16_10", "cifar10", "SL"),
    Line("resnet50", "cifar100", "CE"),
    Line("resnet50", "cifar100", "SL"),
    Line("wrn16_10", "cifar100", "CE"),
    Line("wrn16_10", "cifar100", "SL", batch=128),
)
PROBABILITIES = (
    Column("accuracy", "accuracy", "higher", percent=True),
    Column("ece", "ECE", "lower", shared=False),
    Column("ece_clipped", "ECE of clipped eta", "lower", shared=False),
    Column("smooth_ece", "smooth ECE", "lower", shared=False),
    Column("brier", "Brier score", "lower", shared=False),
)
ATTACKS = tuple(
    Column(f"{key}_{level}", f"{label} at {level}/255", "higher", percent=True)
    for key, label in (
        ("pgd", "PGD"),
        ("pgd_least", "PGD, least over losses"),
        ("autoattack", "AutoAttack"),
        ("autoattack_eta", "AutoAttack on eta"),
        ("worst", "worst case"),
        ("least", "least over all"),
    )
    for level in LEVELS
)
STUDY = ImageStudy(
    "table1",
    "accuracy and robustness of image networks, square loss against cross-entropy",
    (*LINES, Line("resnet18", "cifar10", "SLr1")),
    {
        "smoke": "seconds",
        "laptop": "some minutes on 2 cores; needs CIFAR-10",
        "paper": "about nine hours of an H200, in pieces (docs/images.md); needs CIFAR-10 and CIFAR-100",
    },
    columns=PROBABILITIES + ATTACKS,
)
