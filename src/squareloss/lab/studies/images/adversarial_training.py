"""Adversarial training by PGD-3 and PGD-7 at 8/255: ResNet-18, CIFAR-10, cross-entropy against square loss (angle attack).

    squareloss reproduce adversarial_training --scale smoke                    seconds
    squareloss reproduce adversarial_training --scale paper --set recipe=short --cells '*-adv7-*' --seeds 1 --out runs/images
    squareloss reproduce adversarial_training --scale paper --set attack=eval --cells '*-adv3-*' --seeds 1 --out runs/images

Expected (the paper, AutoAttack at 8/255): 37.08 (CE) and 40.46 (SL) for PGD-3, 41.88 and 44.76 for PGD-7; clean 86.87, 87.31,
84.50, 84.52. 200 epochs of PGD-7 take long, eight passes a step; `recipe=short` has the paper's schedule, four times shorter,
and `attack=eval` saves the sums of batch norm in the attack's passes. Ours are in docs/results.md.
"""

from __future__ import annotations

from squareloss.lab.studies.images.plan import TABLE, Line
from squareloss.lab.studies.images.study import ImageStudy
from squareloss.lab.studies.images.table1 import ATTACKS, PROBABILITIES

STUDY = ImageStudy(
    "adversarial_training",
    "image networks trained on adversarial examples, square loss against cross-entropy",
    tuple(
        Line("resnet18", "cifar10", loss, adversary=steps, kinds=(*TABLE, "readings"), levels=(8,))
        for steps in (3, 7)
        for loss in ("CE", "SL")
    ),
    {
        "smoke": "seconds",
        "laptop": "some minutes on 2 cores; needs CIFAR-10",
        "paper": "about two hours of an H200 for one seed (docs/images.md); needs CIFAR-10",
    },
    columns=PROBABILITIES + tuple(column for column in ATTACKS if column.key.endswith("_8")),
    seeds={"smoke": 1, "laptop": 1, "paper": 1},
)
