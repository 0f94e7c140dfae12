"""Adversarial examples inside the training step: l_inf PGD on cross-entropy, or on the angle for square loss.

With two classes the angle is 0 or pi, whatever the outputs, and has no gradient; square loss is attacked by the margin then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from squareloss.attacks import losses
from squareloss.attacks._random import GOLDEN, fraction
from squareloss.codings import Coding, Link
from squareloss.lab.training.recipes import Adversary


def perturb(
    forward: Callable[[Tensor], Tensor],
    link: Link,
    adversary: Adversary,
    x: Tensor,
    y: Tensor,
    keys: Tensor,
    *,
    compiled: Callable[[Callable[..., Tensor]], Callable[..., Tensor]] = lambda function: function,
) -> Tensor:
    """Inputs (N, ...) in [0, 1], moved by PGD to where the network errs.

    Arguments:
        forward: outputs of inputs, of the network as it is within `attacked`.
        link: of the loss: a coding is attacked by its angle (of two classes by the margin), softmax by cross-entropy.
        x, y: the batch.
        keys: one integer per sample, for the random start; the same key gives the same start on every device.
        compiled: makes faster functions of ours, such as `torch.compile`.
    """
    start, uphill, move = compiled(_start), compiled(_uphill), compiled(_move)
    adversarial = start(x, keys, adversary.eps)
    for _ in range(adversary.steps):
        outputs = forward(adversarial.requires_grad_())
        (gradient,) = torch.autograd.grad(outputs, adversarial, uphill(link, outputs.detach(), y))
        adversarial = move(adversarial.detach(), gradient, x, adversary.step_size, adversary.eps)
    return adversarial


def _start(x: Tensor, keys: Tensor, eps: float) -> Tensor:
    """A random point of the ball around each input."""
    noise = (2 * uniform(keys, x[0].numel()) - 1).view(x.shape).to(x.dtype)
    return (x + eps * noise).clamp(0, 1)


def _uphill(link: Link, outputs: Tensor, y: Tensor) -> Tensor:
    """The gradient by the outputs of what the attack climbs."""
    loss = losses.ce
    if isinstance(link, Coding):
        loss = losses.angle if link.num_classes(outputs.shape[1]) > 2 else losses.margin
    gradient: Tensor = torch.func.grad(lambda f: loss(link.scores(f).float(), y).sum())(outputs)
    return gradient


def _move(adversarial: Tensor, gradient: Tensor, x: Tensor, size: float, eps: float) -> Tensor:
    """A step up the sign of the gradient, within the ball around x."""
    moved = adversarial + size * gradient.sign()
    return torch.minimum(torch.maximum(moved, x - eps), x + eps).clamp(0, 1)


@contextmanager
def attacked(network: nn.Module, mode: str) -> Iterator[None]:
    """Within it, a network is in the mode of its adversary, and batch norm leaves its running statistics as they are."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    training = network.training
    network.train(mode == "train")
    for m in norms:
        m.track_running_stats = False  # in eval mode the statistics that it has are still taken
    try:
        yield
    finally:
        network.train(training)
        for m in norms:
            m.track_running_stats = True


def start_keys(seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """A key per sample, by run, epoch and place in the data set, so that a resumed run draws the same starts."""
    return (torch.full_like(index, seed) * 1_000_003 + epoch) * 1_000_003 + index


def uniform(keys: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1), (N, count), from integer keys (N,) by hashing (splitmix64)."""
    return fraction((keys[:, None] * count + torch.arange(count, device=keys.device)) * GOLDEN)
