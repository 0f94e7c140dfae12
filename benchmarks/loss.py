"""Forward and backward of `SquareLoss()` against `nn.CrossEntropyLoss()`, side by side.

    python benchmarks/loss.py                  two threads of the CPU; about a minute
    python benchmarks/loss.py --device cuda    eager with a full queue, and replayed as a CUDA graph

Batches of 1024 (256 for 21841 classes), float32 outputs, class indices; the gradient is set to None before each call.
A round times a few calls of one loss and then of the other; the table shows medians over rounds. Bars, as the time of square
loss over that of cross-entropy: on the CPU 1.2, 0.8, 0.5, 0.5 for 10, 100, 1000, 21841 classes; on an H200 1.1 at each. Beside
them `bare`, the default loss as the shortest autograd function one can write: no checks, no ignored labels, no care for digits.
The evidence is in results/benchmarks/loss_cpu.json and loss_cuda.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import _evidence
import torch
from torch import Tensor, nn

import squareloss

SIZES = [(10, 1024), (100, 1024), (1000, 1024), (21841, 256)]  # classes, samples
BARS = {"cpu": {10: 1.2, 100: 0.8, 1000: 0.5, 21841: 0.5}, "cuda": {10: 1.1, 100: 1.1, 1000: 1.1, 21841: 1.1}}

Timer = Callable[[], float]  # seconds per call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    modes = {"eager": eager_timer} if args.device == "cpu" else {"eager": eager_timer, "graph": graph_timer}
    rows = []
    print(
        f"{'mode':>6} {'K':>6} {'N':>5} {'cross-entropy':>13} {'square loss':>12} {'ratio':>6} {'bar':>5} {'bare':>6}",
        flush=True,
    )
    for mode, timer in modes.items():
        for k, n in SIZES:
            rows.append({"mode": mode, **compare(k, n, args.device, timer, args.rounds)})
            show(rows[-1])
    print(f"wrote {_evidence.write(f'loss_{args.device}', rows, threads=args.threads, unit='microseconds per call')}")


def compare(k: int, n: int, device: str, timer: Callable[[nn.Module, Tensor, Tensor], Timer], rounds: int) -> dict[str, Any]:
    """The median time of both losses over interleaved rounds, in microseconds, and their ratio."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(n, k, generator=generator).to(device).requires_grad_()
    labels = torch.randint(k, (n,), generator=generator).to(device)
    timers = [timer(loss, outputs, labels) for loss in (nn.CrossEntropyLoss(), squareloss.SquareLoss(), Bare())]
    for t in timers * 3:  # warm up
        t()
    times: list[list[float]] = [[], [], []]
    for i in range(rounds):
        for which in (0, 1, 2) if i % 2 else (2, 1, 0):
            times[which].append(timers[which]() * 1e6)
    ce, sl, bare = ({name: round(value, 2) for name, value in _evidence.spread(t).items()} for t in times)
    ratio, bar = sl["median"] / ce["median"], BARS[device][k]
    row = {"classes": k, "samples": n, "cross_entropy": ce, "square_loss": sl, "bare": bare}
    return {
        **row,
        "ratio": round(ratio, 3),
        "bare_ratio": round(bare["median"] / ce["median"], 3),
        "bar": bar,
        "met": ratio <= bar,
    }


class Bare(nn.Module):
    """`SquareLoss()` without all that makes it a drop-in."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss."""
        return _BareSquare.apply(outputs, labels)  # type: ignore[no-any-return, no-untyped-call]


class _BareSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, f: Tensor, labels: Tensor) -> Tensor:
        (n, k), flat = f.shape, f.reshape(-1)
        ctx.save_for_backward(f, labels)
        total = torch.dot(flat, flat) + 2 * f.sum() - 2 * k * f.gather(1, labels[:, None]).sum()
        return total * (0.5 / (n * k)) + 0.5 * (k - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        f, labels = ctx.saved_tensors
        n, k = f.shape
        slopes = (f + 1).mul_(grad / (n * k))
        return slopes.scatter_add_(1, labels[:, None], (-grad / n).expand(n, 1)), None


def call(loss: nn.Module, outputs: Tensor, labels: Tensor) -> None:
    outputs.grad = None
    loss(outputs, labels).backward()


def eager_timer(loss: nn.Module, outputs: Tensor, labels: Tensor) -> Timer:
    """Wall-clock time per call; on a GPU the queue is kept full and emptied once at the end."""
    repeats = 100 if outputs.is_cuda else max(1, 2_000_000 // outputs.numel())

    def timer() -> float:
        synchronise(outputs)
        start = time.perf_counter()
        for _ in range(repeats):
            call(loss, outputs, labels)
        synchronise(outputs)
        return (time.perf_counter() - start) / repeats

    return timer


def graph_timer(loss: nn.Module, outputs: Tensor, labels: Tensor) -> Timer:
    """Time per call of a CUDA graph that holds 20 calls: what the kernels cost, without Python."""
    repeats = 20
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compile and allocate before the capture
        for _ in range(3):
            call(loss, outputs, labels)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call(loss, outputs, labels)
    outputs.grad = None

    def timer() -> float:
        synchronise(outputs)
        start = time.perf_counter()
        for _ in range(5):
            graph.replay()
        synchronise(outputs)
        return (time.perf_counter() - start) / (5 * repeats)

    return timer


def synchronise(outputs: Tensor) -> None:
    if outputs.is_cuda:
        torch.cuda.synchronize()


def show(row: dict[str, Any]) -> None:
    ce, sl = (f"{row[name]['median']:.1f} us" for name in ("cross_entropy", "square_loss"))
    met = "" if row["met"] else "  missed"
    sizes = f"{row['mode']:>6} {row['classes']:>6} {row['samples']:>5}"
    ratios = f"{row['ratio']:>6} {row['bar']:>5} {row['bare_ratio']:>6}"
    print(f"{sizes} {ce:>13} {sl:>12} {ratios}{met}", flush=True)


if __name__ == "__main__":
    main()
