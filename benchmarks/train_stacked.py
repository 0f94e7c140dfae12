"""Two hundred spiral networks at once: stacked training beside the plain loop, one network after the other.

    python benchmarks/train_stacked.py [--device cuda] [--networks 200] [--steps 10000]

Networks 2-500-500-1 on 200 points, full-batch RMSProp, float32 (TF32 products on a GPU). The plain loop is timed for 200 steps
of one network and scaled; on a CPU both are timed on fewer networks and steps, interleaved.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from _evidence import spread, write

from squareloss.lab.training import stacked
from squareloss.lab.training.stacked import Stack, square
from squareloss.models import MLP

WIDTHS, POINTS = (2, 500, 500, 1), 200


def plain_seconds(device: str, steps: int) -> float:
    """Seconds per step of one network in the usual loop."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(POINTS, 2, generator=g).to(device)
    y = torch.randint(0, 2, (POINTS,), generator=g).to(device).float()
    net = MLP(2, WIDTHS[1:-1], 1, generator=g).to(device)
    optimiser = torch.optim.RMSprop(net.parameters(), lr=0.001)

    def step() -> None:
        penalty = sum(layer.weight.square().sum() for layer in net.layers)
        loss = square(net(x), y).mean() + 0.01 / POINTS * penalty
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    for _ in range(10):
        step()
    _wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(device)
    return (time.perf_counter() - start) / steps


def stacked_seconds(device: str, networks: int, steps: int) -> tuple[float, float]:
    """Seconds of training a stack, without and with its preparation (compilation and capture)."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(networks, POINTS, 2, generator=g)
    y = torch.randint(0, 2, (networks, POINTS), generator=g)
    mu = torch.full((networks,), 0.01)
    stack = Stack(WIDTHS, range(networks), device=device)
    marks = []
    start = time.perf_counter()
    stacked.train(
        stack, x, y, mu, square, steps=steps, products="tf32",
        progress=lambda done: marks.append((done, time.perf_counter())),
    )  # fmt: skip
    end = time.perf_counter()
    (first, at), (last, then) = marks[0], marks[-1]
    rate = (then - at) / (last - first) if last > first else (end - start) / steps
    return rate * steps, end - start


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", type=int, nargs="+")
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    cuda = arguments.device == "cuda"
    rows = []
    for networks in arguments.networks or ([200] if cuda else [4]):
        steps = arguments.steps or (10_000 if cuda else 200)
        ours, plain, whole = [], [], []
        for _ in range(3 if cuda else 5):
            plain.append(plain_seconds(arguments.device, 200 if cuda else 100) * networks * steps)
            seconds, total = stacked_seconds(arguments.device, networks, steps)
            ours.append(seconds)
            whole.append(total)
        memory = torch.cuda.max_memory_allocated() / 1e9 if cuda else None
        row = {
            "networks": networks,
            "steps": steps,
            "stacked": spread(ours),
            "with_setup": spread(whole),
            "plain": spread(plain),
        }
        row |= {"ratio": spread([p / o for p, o in zip(plain, ours, strict=True)]), "memory_gb": memory}
        rows.append(row)
        print(
            f"{networks} networks, {steps} steps: stacked {row['stacked']['median']:.2f} s (with set-up {min(whole):.2f} to "
            f"{max(whole):.2f}), plain loop {row['plain']['median']:.1f} s, {row['ratio']['median']:.2f}x", flush=True,
        )  # fmt: skip
    print(write(f"train_stacked_{arguments.device}", rows, cores=len(os.sched_getaffinity(0))))


if __name__ == "__main__":
    main()
