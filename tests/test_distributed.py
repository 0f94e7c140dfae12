"""Two processes under DistributedDataParallel on gloo give the gradients and the steps of one process."""

import os

import pytest
import torch
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel

from squareloss import CrossEntropy, OneHot, Simplex, SquareLoss
from squareloss.models import MLP

LOSSES = {
    "simplex": SquareLoss(),
    "reduced": SquareLoss(Simplex(reduced=True)),
    "onehot": SquareLoss(OneHot(k=5, M=15), scale=0.01),
    "cross-entropy": CrossEntropy(),
}


def data():
    g = torch.Generator().manual_seed(0)
    return torch.randn(24, 6, generator=g, dtype=torch.float64), torch.randint(0, 4, (24,), generator=g)


def train(name, rows, wrap):
    """The first gradient and the parameters after three steps on the given rows."""
    criterion, (x, y) = LOSSES[name], data()
    width = 3 if name == "reduced" else 4
    network = MLP(6, (8,), width, generator=torch.Generator().manual_seed(1)).double()
    model = wrap(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    first = None
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        first = [p.grad.clone() for p in network.parameters()] if first is None else first
        optimizer.step()
    return first, [p.detach().clone() for p in network.parameters()]


def worker(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {name: train(name, slice(rank, None, 2), DistributedDataParallel) for name in LOSSES}
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    multiprocessing.spawn(worker, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_equal_one(name, two_processes):
    expected = train(name, slice(None), lambda network: network)
    half = train(name, slice(0, None, 2), lambda network: network)
    for result in two_processes:
        torch.testing.assert_close(result[name], expected, atol=1e-13, rtol=1e-12)
    assert (half[0][0] - expected[0][0]).abs().max() > 1e-3, "half the data must not suffice"
