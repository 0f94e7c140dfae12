"""Scaled one-hot coding against simplex coding, at the two learning rates of the paper, and what its text says besides.

    squareloss reproduce codings --scale smoke                                        seconds
    squareloss reproduce codings --scale paper --cells 'resnet18-*' --seeds 1 --out runs/images

Expected (the paper, clean accuracy): ResNet-18, CIFAR-10, (.01, 32): 94.95 one-hot, 95.04 simplex; at (.1, 128) neither learns.
The rows of simplex coding at (.01, 32) are those of Table 1, and are not trained again in the same folder. Not in the paper:
ResNet-50 with two losses of docs/many_classes.md, one-hot (K/5, 5) and squentropy.
"""

from __future__ import annotations

from squareloss.lab.report.header import Column
from squareloss.lab.studies.images.plan import Line
from squareloss.lab.studies.images.study import ImageStudy

_NETWORKS = (
    ("resnet18", "cifar10", "OH1"),
    ("wrn16_10", "cifar10", "OH1"),
    ("resnet50", "cifar100", "OH5"),
    ("wrn16_10", "cifar100", "OH5"),
)

STUDY = ImageStudy(
    "codings",
    "one-hot against simplex coding on image networks, at two learning rates",
    (
        *(
            Line(network, data, loss, batch=batch, kinds=("clean",))
            for network, data, one_hot in _NETWORKS
            for batch in (32, 128)
            for loss in (one_hot, "SL")
        ),
        Line("wrn16_10", "cifar100", "CE", batch=128, kinds=("clean",)),
        *(Line("resnet50", "cifar100", loss, kinds=("clean", "readings")) for loss in ("OHK", "squentropy")),
    ),
    {
        "smoke": "seconds",
        "laptop": "some minutes on 2 cores; needs CIFAR-10",
        "paper": "about two and a half hours of an H200 for one seed, less what table1 has; needs CIFAR-10 and CIFAR-100",
    },
    columns=(
        Column("accuracy", "accuracy", "higher", percent=True),
        Column("train_accuracy", "accuracy on training batches", percent=True),
        Column("ece", "ECE", "lower", shared=False),
        Column("ece_clipped", "ECE of clipped eta", "lower", shared=False),
    ),
    seeds={"smoke": 1, "laptop": 1, "paper": 1},
)
