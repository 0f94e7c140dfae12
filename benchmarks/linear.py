"""Forward and backward of a last linear layer with many classes: square loss without its outputs against cross-entropy.

    python benchmarks/linear.py                  two threads of the CPU, float32; a few minutes
    python benchmarks/linear.py --device cuda    bfloat16, (N, d, K) = (8192, 1024, 128256)

Rivals: `F.cross_entropy(F.linear(h, W, b), y)`; torch's own chunked `F.linear_cross_entropy` where torch has it, and Liger's
where that is installed; square loss on formed outputs; and `linear_square_loss`, which forms none. A round times each once, in
turn (one that takes over 5 s only three times); the table shows medians over rounds. Beside the wall time there is the
processor time of all threads, which busy neighbours change less; where there are such, set OMP_WAIT_POLICY=PASSIVE. Extra
memory is the peak beyond the inputs: of the process on the CPU, each rival in a process of its own, and of the allocator on a
GPU. The gradients alone are N d + K d + K numbers. Bars on the CPU: 5, 8 and 1.5 times as fast as linear + cross-entropy,
and less extra memory than one N x K buffer.
The evidence is in results/benchmarks/linear_cpu.json and linear_cuda.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from _evidence import memory, spread, write
from torch import Tensor

from squareloss import functional
from squareloss.linear import linear_square_loss

SIZES = {
    "cpu": [(2048, 256, 32_000), (4096, 256, 50_000), (1024, 512, 21_841)],
    "cuda": [(8192, 1024, 128_256), (4096, 256, 50_000)],
}
BARS = {(2048, 256, 32_000): 5.0, (4096, 256, 50_000): 8.0, (1024, 512, 21_841): 1.5}
OURS, BASE = "linear_square_loss", "linear + cross_entropy"

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # h, weight, bias, target
Rival = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-of", nargs=2, metavar=("RIVAL", "SIZE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        rival, size = args.memory_of
        print(resident(rivals()[rival], tuple(json.loads(size))))
        return
    rows = [compare(size, args.device, args.rounds, args.threads) for size in SIZES[args.device]]
    out = write(f"linear_{args.device}", rows, dtype="float32" if args.device == "cpu" else "bfloat16", threads=args.threads)
    print(f"wrote {out}")


def rivals() -> dict[str, Rival]:
    """What is compared, by name."""
    known: dict[str, Rival] = {
        BASE: lambda h, w, b, y: F.cross_entropy(F.linear(h, w, b), y),
        OURS: lambda h, w, b, y: linear_square_loss(h, w, b, y),
        "linear + square_loss": lambda h, w, b, y: functional.square_loss(F.linear(h, w, b), y),
    }
    if hasattr(F, "linear_cross_entropy") and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions()
        known["F.linear_cross_entropy, chunked"] = lambda h, w, b, y: F.linear_cross_entropy(
            h, w, y, linear_bias=b, options=options
        )
    try:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        known["Liger fused linear cross-entropy"] = lambda h, w, b, y: liger_fused_linear_cross_entropy(h, w, y, b)
    except ImportError:
        pass
    return known


def inputs(size: tuple[int, int, int], device: str) -> Inputs:
    """h (N, d), weight (K, d), bias (K,) and labels (N,)."""
    n, d, k = size
    generator = torch.Generator().manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    h = torch.randn(n, d, generator=generator).to(device, dtype).requires_grad_()
    weight = (torch.randn(k, d, generator=generator) / d**0.5).to(device, dtype).requires_grad_()
    bias = torch.zeros(k, device=device, dtype=dtype).requires_grad_()
    return h, weight, bias, torch.randint(k, (n,), generator=generator).to(device)


def step(rival: Rival, data: Inputs) -> None:
    for t in data[:3]:
        t.grad = None
    rival(*data).backward()


def compare(size: tuple[int, int, int], device: str, rounds: int, threads: int) -> dict[str, object]:
    """Medians over interleaved rounds in milliseconds, the extra memory in MB, and the ratio to linear + cross-entropy."""
    data, known = inputs(size, device), rivals()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in known}
    begin = time.perf_counter()
    for i in range(-1, rounds):
        for name, rival in known.items():
            if len(times[name]) >= 3 and times[name][0][0] > 5e3:
                continue
            measured = timed(rival, data)
            if i >= 0:  # the first round warms up
                times[name].append(measured)
        left = (time.perf_counter() - begin) / (i + 2) * (rounds - 1 - i)
        print(f"\r{size}: round {i + 1} of {rounds}, {left:.0f} s left   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    entries: dict[str, dict[str, Any]] = {}
    for name, pairs in times.items():
        wall, processor = zip(*pairs, strict=True)
        entries[name] = {"ms": spread(list(wall)), "cpu_ms": spread(list(processor))}
    for name in known:
        entries[name]["extra_mb"] = extra_memory(name, known[name], data, size, device, threads)
        for key, unit in (("times_as_fast", "ms"), ("by_processor_time", "cpu_ms")):
            entries[name][key] = round(entries[BASE][unit]["median"] / entries[name][unit]["median"], 2)
        show(name, entries[name])
    n, d, k = size
    buffer_mb = n * k * data[0].element_size() / 1e6
    print(f"  one N x K buffer: {buffer_mb:.0f} MB; the gradients: {(n * d + k * d + k) * data[0].element_size() / 1e6:.0f} MB")
    ratio, bar = entries[OURS]["times_as_fast"], BARS.get(size)
    met = None if bar is None else bool(ratio >= bar and entries[OURS]["extra_mb"] < buffer_mb)
    return {"size": size, "buffer_mb": buffer_mb, "bar": bar, "met": met, "rivals": entries}


def timed(rival: Rival, data: Inputs) -> tuple[float, float]:
    """Milliseconds of one forward and backward, on the clock and of the processor."""
    if data[0].is_cuda:
        torch.cuda.synchronize()
    begin, processor = time.perf_counter(), time.process_time()
    step(rival, data)
    if data[0].is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3, (time.process_time() - processor) * 1e3


def extra_memory(name: str, rival: Rival, data: Inputs, size: tuple[int, int, int], device: str, threads: int) -> float:
    if device == "cuda":
        for t in data[:3]:
            t.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(rival, data)
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    command = [sys.executable, __file__, "--threads", str(threads), "--memory-of", name, json.dumps(size)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def resident(rival: Rival, size: tuple[int, int, int]) -> float:
    """How much the peak of this process grows beyond the inputs, in MB."""
    step(rival, inputs((8, size[1], 16), "cpu"))  # libraries, threads
    data = inputs(size, "cpu")
    before = memory("VmRSS")
    step(rival, data)
    return memory("VmHWM") - before


def show(name: str, entry: dict[str, Any]) -> None:
    print(
        f"  {name:34} {entry['ms']['median']:9.1f} ms {entry['cpu_ms']['median']:9.1f} ms of processor  "
        f"{entry['times_as_fast']:6.2f} and {entry['by_processor_time']:6.2f} times as fast  {entry['extra_mb']:7.0f} MB extra"
    )


if __name__ == "__main__":
    main()
