"""Recipes: how long, how fast and with what a network is trained. Plain frozen values that check themselves."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from squareloss._checks import choose

OPTIMISERS = ("sgd", "rmsprop")
SCHEDULES = ("step", "cosine", "linear", "constant")
PRECISIONS = ("bfloat16", "float32")
MODES = ("train", "eval")


@dataclass(frozen=True)
class Adversary:
    """PGD inside the training step (Madry et al. 2018): l_inf, random start, inputs kept in [0, 1].

    Arguments:
        steps: gradient steps on each batch.
        eps: radius of the ball.
        step_size: length of a step; the paper's is taken to be 4/255 for 3 steps and 2/255 for 7.
        mode: of the network while it is attacked. In "train" batch norm normalises by the batch, as in the step that follows;
            in "eval" by its running statistics, as the network will be attacked and used later, which takes less time.
    """

    steps: int
    eps: float = 8 / 255
    step_size: float = 2 / 255
    mode: str = "train"

    def __post_init__(self) -> None:
        choose("mode", self.mode, MODES)
        if self.steps < 0 or not (0 < self.eps <= 1 and self.step_size > 0):
            raise ValueError(
                f"expected steps >= 0, 0 < eps <= 1 and step_size > 0, got {self.steps}, {self.eps} and {self.step_size}; "
                "inputs lie in [0, 1], so a radius of 8 levels is 8/255"
            )


@dataclass(frozen=True)
class Recipe:
    """One way to train.

    Arguments:
        epochs, batch_size, lr: an epoch has floor(n / batch_size) steps; the rest of its shuffled samples are left out.
        optimiser: "sgd" (plain gradient descent with momentum 0) or "rmsprop".
        momentum, nesterov, weight_decay: of SGD; weight decay of RMSProp too.
        schedule: "step" (times `gamma` every `step_size` epochs), "cosine" or "linear" to zero, "constant".
        warmup: epochs over which the learning rate rises linearly from zero.
        augment: random crop with 4 pixels of zero padding and horizontal flip with probability 1/2; images only.
        mixup: alpha of the Beta distribution; 0 is off.
        precision: "bfloat16" (autocast) or "float32".
        adversary: train on adversarial examples, made anew in each step.
    """

    epochs: int
    batch_size: int
    lr: float
    optimiser: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "step"
    step_size: int = 50
    gamma: float = 0.1
    warmup: float = 0.0
    augment: bool = True
    mixup: float = 0.0
    precision: str = "bfloat16"
    adversary: Adversary | None = None

    def __post_init__(self) -> None:
        choose("optimiser", self.optimiser, OPTIMISERS)
        choose("schedule", self.schedule, SCHEDULES)
        choose("precision", self.precision, PRECISIONS)
        for name in ("epochs", "batch_size", "lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"expected {name} > 0, got {getattr(self, name)}")

    def plain(self) -> dict[str, Any]:
        """Plain values, from which specs and checkpoints know it; an adversary's mode only if it is not "train"."""
        values = asdict(self)
        if self.adversary is not None and self.adversary.mode == "train":
            del values["adversary"]["mode"]  # as from before it could be chosen
        return values

    def lr_at(self, epoch: float) -> float:
        """The learning rate after so many epochs, fractions included."""
        if epoch < self.warmup:
            return self.lr * epoch / self.warmup
        done = (epoch - self.warmup) / max(self.epochs - self.warmup, 1e-12)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        if self.schedule == "linear":
            return self.lr * max(1 - done, 0.0)
        return self.lr * self.gamma ** int(epoch // self.step_size) if self.schedule == "step" else self.lr

    def lrs(self, epoch: int, steps: int) -> list[float]:
        """The learning rate of each of the `steps` steps of an epoch; "step" changes between epochs only."""
        return [self.lr_at(epoch + (i + 0.5) / steps) for i in range(steps)]


# the paper's: 200 epochs, StepLR 50, momentum .9, weight decay 5e-4, and the better of two (lr, batch) pairs. Its loss for
# images is SquareLoss(Simplex(radius=K), scale=1.0)
PAPER = Recipe(epochs=200, batch_size=32, lr=0.01)
PAPER_128 = Recipe(epochs=200, batch_size=128, lr=0.1)

# ours, not the paper's: the shortest schedule we found that brings ResNet-18 on CIFAR-10 to 94%, with either loss
FAST = Recipe(epochs=48, batch_size=256, lr=0.3, nesterov=True, schedule="linear", warmup=4.0)

RECIPES = {"paper": PAPER, "paper_128": PAPER_128, "fast": FAST}
