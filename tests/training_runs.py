"""Small runs for the tests of training: images of 8 x 8 pixels in three classes, and a ResNet that learns them in seconds."""

import torch

from squareloss import SquareLoss
from squareloss.lab.training.loop import Run
from squareloss.lab.training.recipes import Recipe
from squareloss.models import ResNet

SMALL = Recipe(epochs=2, batch_size=16, lr=0.05, precision="float32")


def images(n=100, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    x = torch.randint(0, 80, (n, 3, 8, 8), generator=g) + 60 * y[:, None, None, None]
    return x.to(torch.uint8), y


def tiny(seed=0):  # width under 8, oneDNN writes past its memory on CPUs without AVX-512 (oneDNN issue 6035)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ResNet("resnet8", 3, width=8)


def run(network=None, loss=None, recipe=SMALL, seed=0, **kwargs):
    x, y = images()
    return Run(network or tiny(), loss or SquareLoss(), recipe, seed, x, y, **kwargs)


class Stop(Exception):
    """What `stop` raises."""


def stop(row):
    """End a training after its second epoch, as a crash would."""
    if row.epoch == 1:
        raise Stop


def same_weights(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
