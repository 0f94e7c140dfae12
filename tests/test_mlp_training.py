"""The hand-written training step is held to autograd and to torch's optimiser."""

from __future__ import annotations

import pytest
import torch

from squareloss import CrossEntropy, Focal, OneHot, Simplex, SquareLoss, Squentropy
from squareloss._mlp_training import Samples, Trainer, enough_threads
from squareloss.losses import Loss
from squareloss.models import MLP

K, D, N = 4, 6, 30
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 3.0])
LOSSES = [
    SquareLoss(reduction="none"),
    SquareLoss(Simplex(radius=2.0), scale=1.0, reduction="none"),
    SquareLoss(OneHot(k=5, M=15), reduction="none"),
    SquareLoss(Simplex(reduced=True), reduction="none"),
    SquareLoss(label_smoothing=0.2, reduction="none"),
    SquareLoss(weight=WEIGHT, reduction="none"),
    SquareLoss(weight=WEIGHT, label_smoothing=0.2, reduction="none"),
    CrossEntropy(weight=WEIGHT, reduction="none"),
    Squentropy(reduction="none"),
    Focal(reduction="none"),
]


def set_up(loss: Loss, hidden: tuple[int, ...]) -> tuple[MLP, Samples]:
    generator = torch.Generator().manual_seed(0)
    width = K - 1 if getattr(loss.link, "reduced", False) else K
    network = MLP(D, hidden, width, generator=generator).double()
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    y = torch.randint(K, (N,), generator=generator)
    return network, Samples(x, y, torch.rand(N, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("hidden", [(), (7,), (8, 5)], ids=str)
def test_the_backward_pass_is_autograds(loss: Loss, hidden: tuple[int, ...]) -> None:
    network, batch = set_up(loss, hidden)
    trainer = Trainer(network, loss, learning_rate=0.1)
    with torch.no_grad():
        outputs = trainer.backward(batch.x, *trainer.objective.prepare(batch.y, batch.weight))
    expected = network(batch.x)
    (loss(expected, batch.y) * batch.weight).sum().backward()
    torch.testing.assert_close(outputs, expected.detach())
    gradients = torch.cat([p.grad.reshape(-1) for p in network.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(trainer.grad, gradients)


def test_class_weights_may_be_of_another_dtype() -> None:
    curves = []
    for weight in (WEIGHT, WEIGHT.double()):
        loss = SquareLoss(weight=weight, reduction="none")
        network, samples = set_up(loss, (7,))
        trainer = Trainer(network.float(), loss, learning_rate=0.01)
        narrow = Samples(samples.x.float(), samples.y, samples.weight.float())
        curves.append(trainer.epoch(narrow, torch.arange(N), batch_size=8))
    assert curves[0] == curves[1]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_an_epoch_is_one_of_a_plain_loop_with_adamw(weight_decay: float) -> None:
    loss = SquareLoss(reduction="none")
    network, samples = set_up(loss, (8, 5))
    trainer = Trainer(network, loss, learning_rate=0.01, weight_decay=weight_decay)
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=weight_decay)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        trained = trainer.epoch(samples, order, batch_size=8)
        losses = []
        for index in order.split(8):
            losses.append(loss(network(samples.x[index]), samples.y[index]) * samples.weight[index])
            optimiser.zero_grad()
            (losses[-1].sum() / 8).backward()
            optimiser.step()
        assert trained == pytest.approx(torch.cat(losses).mean().item())
    flat = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    torch.testing.assert_close(trainer.flat, flat)


def test_the_network_changes_only_when_asked() -> None:
    loss = SquareLoss(reduction="none")
    network, samples = set_up(loss, (8,))
    before = [p.clone() for p in network.parameters()]
    trainer = Trainer(network, loss, learning_rate=0.01)
    trainer.epoch(samples, torch.arange(N), batch_size=8)
    assert all(torch.equal(p, old) for p, old in zip(network.parameters(), before, strict=True))
    trainer.write_back()
    mean = (loss(network(samples.x), samples.y) * samples.weight).sum() / samples.weight.sum()
    assert trainer.mean_loss(samples) == pytest.approx(mean.item())


def test_moments_let_training_go_on() -> None:
    loss = SquareLoss(reduction="none")
    network, samples = set_up(loss, (8,))
    whole = Trainer(network, loss, learning_rate=0.01)
    for _ in range(2):
        whole.epoch(samples, torch.arange(N), batch_size=8)
    first = Trainer(network, loss, learning_rate=0.01)
    first.epoch(samples, torch.arange(N), batch_size=8)
    first.write_back()
    second = Trainer(network, loss, learning_rate=0.01, moments=first.moments)
    second.epoch(samples, torch.arange(N), batch_size=8)
    assert torch.equal(second.flat, whole.flat)


def test_small_networks_take_one_thread_and_give_the_rest_back() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with enough_threads(MLP(10, (10,), 2), batch_size=32):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with enough_threads(MLP(1000, (1000,), 10), batch_size=200):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
