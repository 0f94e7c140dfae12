"""How fast an image network trains at a small batch: our captured engine beside the eager loop that everyone writes.

    python benchmarks/train_images.py [--network resnet18] [--batch 32] [--side-by-side 1 8]
    python benchmarks/train_images.py --batch 128 --pgd 7 --side-by-side 1 2 --steps 50      adversarial training
    python benchmarks/train_images.py --batch 32 --pgd 3 --mode eval --side-by-side 2        attacked in eval mode, by both

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
from squareloss.lab.training.recipes import MODES, Adversary, Recipe
from squareloss.models import build

IMAGES = 50_000
EPS, SIZE = 8 / 255, 2 / 255  # of PGD


def plain_step_seconds(network: str, batch: int, pgd: int, mode: str, steps: int, repeats: int) -> list[float]:
    """Seconds per step of the usual loop: autocast, zero_grad, backward, step; before it, so many steps of PGD in a mode."""
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
        images = (x[rows].float() / 255).to(memory_format=torch.channels_last)
        images = images.flip(-1) if torch.rand(()) < 0.5 else images
        loss = loss_of(attacked(images, y[rows]) if pgd else images, y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return criterion(net((images - mean) / std), labels)

    def attacked(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if mode == "eval":
            net.eval()
        moved = (images + torch.empty_like(images).uniform_(-EPS, EPS)).clamp(0, 1)
        for _ in range(pgd):
            moved.requires_grad_()
            (gradient,) = torch.autograd.grad(loss_of(moved, labels), moved)
            moved = moved.detach() + SIZE * gradient.sign()
            moved = torch.minimum(torch.maximum(moved, images - EPS), images + EPS).clamp(0, 1)
        if mode == "eval":
            net.train()
        return moved

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


def captured_step_seconds(network: str, batch: int, pgd: int, mode: str, count: int, steps: int, repeats: int) -> dict:
    """Seconds per step and replication of `count` runs side by side; memory; seconds until the first step."""
    g = torch.Generator().manual_seed(0)
    n = batch * steps
    x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (n,), generator=g)
    adversary = Adversary(pgd, EPS, SIZE, mode) if pgd else None
    recipe = Recipe(epochs=repeats + 1, batch_size=batch, lr=0.01, adversary=adversary)
    runs = [
        Run(build({"name": network, "outputs": 10}), SquareLoss(Simplex(radius=10), scale=1.0), recipe, s, x, y,
            preprocess=Standardize([0.5] * 3, [0.25] * 3))
        for s in range(count)
    ]  # fmt: skip
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    curves = captured.train(runs, "cuda")
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
    parser.add_argument("--pgd", type=int, default=0, help="train on adversarial examples of so many steps")
    parser.add_argument("--mode", choices=MODES, default="train", help="of the network while it is attacked")
    parser.add_argument("--side-by-side", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    *what, steps, repeats = (getattr(arguments, n) for n in ("network", "batch", "pgd", "mode", "steps", "repeats"))
    network, batch, pgd, mode = what
    in_mode = " in eval mode" if mode == "eval" else ""
    name = f"{network}, PGD-{pgd}{in_mode}" if pgd else network
    rows = []
    for count in [0, *arguments.side_by_side]:  # 0: the plain loop
        if count:
            row = captured_step_seconds(*what, count, steps, repeats)
            row = {"engine": "captured, compiled", "replications": count, **row}
        else:
            seconds = spread(plain_step_seconds(*what, steps, repeats))
            row = {"engine": "plain loop", "replications": 1, "step": seconds}
        median = row["step"]["median"]
        rows.append({**row, "epoch_seconds": median * IMAGES / batch, "ratio": (rows or [row])[0]["step"]["median"] / median})
        print(
            f"{row['engine']:20s} x{row['replications']:<3d} {median * 1e3:7.3f} ms a step, "
            f"{rows[-1]['epoch_seconds']:6.2f} s an epoch each, {rows[-1]['ratio']:5.2f}x",
            flush=True,
        )
        ending = f"_pgd{pgd}" + ("_eval" if mode == "eval" else "") if pgd else ""
        path = write(f"train_images_{network}_{batch}{ending}", rows, network=name, batch=batch, steps=steps)
    print(path)


if __name__ == "__main__":
    main()
