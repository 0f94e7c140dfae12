"""How fast an image network trains at a small batch: our captured engine beside the eager loop that everyone writes.

    python benchmarks/train_images.py [--network resnet18] [--batch 32] [--side-by-side 1 8]

Both in bfloat16 with channels_last, on the same GPU in one run, on 50,000 random images that already lie on the GPU (so the
plain loop is spared its data loader). Seconds per epoch of 50,000 images and per replication; the ratio is to the plain loop.
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch
from _evidence import spread, write

from squareloss import SquareLoss
from squareloss.classifier import Standardize
from squareloss.codings import Simplex
from squareloss.lab.training import captured
from squareloss.lab.training.loop import Run
from squareloss.lab.training.recipes import Recipe
from squareloss.models import build

IMAGES = 50_000


def plain_step_seconds(network: str, batch: int, steps: int, repeats: int) -> list[float]:
    """Seconds per step of the usual loop: autocast, zero_grad, backward, step."""
    device = "cuda"
    x = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, device=device)
    y = torch.randint(0, 10, (IMAGES,), device=device)
    mean, std = torch.full((3, 1, 1), 0.5, device=device), torch.full((3, 1, 1), 0.25, device=device)
    net = build({"name": network, "outputs": 10}).to(device, memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    criterion = torch.nn.CrossEntropyLoss()
    torch.backends.cudnn.benchmark = True

    def step() -> None:
        rows = torch.randint(0, IMAGES, (batch,), device=device)
        images = ((x[rows].float() / 255 - mean) / std).to(memory_format=torch.channels_last)
        images = images.flip(-1) if torch.rand(()) < 0.5 else images
        with torch.autocast("cuda", torch.bfloat16):
            loss = criterion(net(images), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    for _ in range(20):
        step()
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / steps)
    return seconds


def captured_step_seconds(network: str, batch: int, count: int, steps: int, repeats: int, compiled: bool) -> dict:
    """Seconds per step and replication of `count` runs side by side; memory; seconds until the first step."""
    g = torch.Generator().manual_seed(0)
    n = batch * steps
    x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (n,), generator=g)
    recipe = Recipe(epochs=repeats + 1, batch_size=batch, lr=0.01)
    runs = [
        Run(build({"name": network, "outputs": 10}), SquareLoss(Simplex(radius=10), scale=1.0), recipe, s, x, y,
            preprocess=Standardize([0.5] * 3, [0.25] * 3))
        for s in range(count)
    ]  # fmt: skip
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    curves = captured.train(runs, "cuda", compiled=compiled)
    total = time.perf_counter() - start
    ends = [max(curve[e].seconds for curve in curves) for e in range(repeats + 1)]
    seconds = [(b - a) / steps / count for a, b in itertools.pairwise(ends)]
    return {
        "step": spread(seconds),
        "setup_seconds": total - ends[-1],
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side-by-side", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--eager-graph", action="store_true", help="also time the graph without compilation")
    arguments = parser.parse_args()
    network, batch, steps, repeats = arguments.network, arguments.batch, arguments.steps, arguments.repeats
    epoch = IMAGES / batch
    plain = spread(plain_step_seconds(network, batch, steps, repeats))
    rows = [{"engine": "plain loop", "replications": 1, "step": plain, "epoch_seconds": plain["median"] * epoch, "ratio": 1.0}]
    for compiled in [True, False] if arguments.eager_graph else [True]:
        for count in arguments.side_by_side:
            row = captured_step_seconds(network, batch, count, steps, repeats, compiled)
            median = row["step"]["median"]
            engine = "captured, compiled" if compiled else "captured"
            rows.append(
                {
                    "engine": engine,
                    "replications": count,
                    **row,
                    "epoch_seconds": median * epoch,
                    "ratio": plain["median"] / median,
                }
            )
            print(rows[-1], flush=True)
    for row in rows:
        print(
            f"{row['engine']:20s} x{row['replications']:<3d} {row['step']['median'] * 1e3:7.3f} ms a step, "
            f"{row['epoch_seconds']:6.2f} s an epoch each, {row['ratio']:5.2f}x"
        )
    print(write(f"train_images_{network}_{batch}", rows, network=network, batch=batch, steps=steps))


if __name__ == "__main__":
    main()
