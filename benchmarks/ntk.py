"""Kernel ridge with the NTK: exact fits, paths of mu and fits beyond memory, beside NumPy and scikit-learn.

    python benchmarks/ntk.py                   two threads of the CPU; about ten minutes
    python benchmarks/ntk.py --device cuda     exact to n = 100,000, iterative to n = 1,000,000
    python benchmarks/ntk.py --quick           a tenth of every n: to see that it runs; writes nothing

Points are Gaussian in ten dimensions, put on the sphere with a bias coordinate; labels are +1 or -1 by the sign of x_1 x_2, one
in ten wrong. The rival forms the kernel matrix in NumPy and calls `KernelRidge(kernel="precomputed")`; all is in float64.

    exact       fit at n = 5,000 and predict 1,000 points. Bar: 1.3 times as fast, half the peak memory
    path        20 values of mu from 1e-3 to 1e2, fitted and predicted; the rival forms its matrices once.
                Bar: 1.5 times as fast. Beside it: 20 factorisations of ours, and one eigendecomposition
    iterative   n = 50,000 and mu = 1 to a relative residual of 1e-6. Bar: a peak of 2 GB for the process

Rounds are interleaved, tables show medians. Peak memory is that of a process of its own beyond its inputs; for `iterative`, all
of the process. On a GPU: times against n; for n = 100,000 the bar is 100 GB, and every residual is computed anew by products.
The evidence is in results/benchmarks/ntk_cpu.json and ntk_cuda.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from _evidence import memory, spread, write
from sklearn.kernel_ridge import KernelRidge
from threadpoolctl import threadpool_limits
from torch import Tensor

from squareloss.ntk import NTK, Spectral, conjugate_gradients, ridge, ridge_path, to_sphere
from squareloss.ntk.cholesky import Factor

DIMENSION, TEST, MU = 10, 1000, 1.0
MUS = np.logspace(-3, 2, 20).tolist()
EXACT, PATH, ITERATIVE = 5000, 5000, 50_000
CUDA_EXACT = [10_000, 20_000, 50_000, 100_000]
CUDA_ITERATIVE = [(50_000, 2000), (200_000, 5000), (1_000_000, 5000)]  # n, rank
BARS = {"exact": 1.3, "exact_memory": 0.5, "path": 1.5, "iterative_gb": 2.0, "cuda_exact_gb": 100.0}

Data = tuple[Tensor, Tensor, Tensor]  # points (n, d + 1), labels (n,), points to predict (TEST, d + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--parts", nargs="+", choices=["exact", "path", "iterative"], default=["exact", "path", "iterative"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", nargs=2, metavar=("WHAT", "N"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with threadpool_limits(args.threads):
        if args.alone:
            print(json.dumps(alone(args.alone[0], int(args.alone[1]))))
            return
        share = 10 if args.quick else 1

        def keep(rows: dict[str, Any]) -> None:
            if not args.quick:
                write(f"ntk_{args.device}", rows, threads=args.threads, bars=BARS)

        rows = (
            on_cuda(args.parts, share, keep) if args.device == "cuda" else on_cpu(args.parts, share, args.rounds, args.threads)
        )
        keep(rows)


def data(n: int, device: str = "cpu", seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + TEST, DIMENSION, generator=generator, dtype=torch.float64)
    y = torch.sign(x[:, 0] * x[:, 1]) * (1 - 2 * (torch.rand(n + TEST, generator=generator) < 0.1).double())
    sphere = to_sphere(x).to(device)
    return sphere[:n], y[:n].to(device), sphere[n:]


def numpy_kernel(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    u = np.clip(x @ z.T, -1, 1)
    return u * (np.pi - np.arccos(u)) / (2 * np.pi)


def rival_exact(x: Tensor, y: Tensor, z: Tensor) -> np.ndarray:
    model = KernelRidge(kernel="precomputed", alpha=MU).fit(numpy_kernel(x.numpy(), x.numpy()), y.numpy())
    return model.predict(numpy_kernel(z.numpy(), x.numpy()))


def rival_path(x: Tensor, y: Tensor, z: Tensor) -> np.ndarray:
    matrix, cross = numpy_kernel(x.numpy(), x.numpy()), numpy_kernel(z.numpy(), x.numpy())
    return np.stack([KernelRidge(kernel="precomputed", alpha=mu).fit(matrix, y.numpy()).predict(cross) for mu in MUS])


def our_exact(x: Tensor, y: Tensor, z: Tensor) -> np.ndarray:
    return ridge(x, y, MU)(z).numpy()


def our_path(x: Tensor, y: Tensor, z: Tensor) -> np.ndarray:
    duals = torch.stack([solution.dual for solution in ridge_path(x, y, MUS)], 1)
    return NTK().product(z, x, duals).T.numpy()


def our_fits(x: Tensor, y: Tensor, z: Tensor) -> np.ndarray:
    matrix, duals = NTK().matrix(x), []
    room = torch.empty_like(matrix)
    for mu in MUS:
        duals.append(Factor.of(room.copy_(matrix), mu).solve(y.unsqueeze(1)))
    return NTK().product(z, x, torch.cat(duals, 1)).T.numpy()


def our_eigen(x: Tensor, y: Tensor, z: Tensor) -> np.ndarray:
    spectral = Spectral.of(x, y)
    return NTK().product(z, x, torch.stack([spectral.ridge(mu).dual for mu in MUS], 1)).T.numpy()


Rival = Callable[[Tensor, Tensor, Tensor], np.ndarray]
EXACT_RIVALS: dict[str, Rival] = {"NumPy + KernelRidge": rival_exact, "ridge": our_exact}
PATH_RIVALS: dict[str, Rival] = {
    "NumPy + 20 KernelRidge": rival_path,
    "ridge_path": our_path,
    "20 factorisations": our_fits,
    "one eigendecomposition": our_eigen,
}


def on_cpu(parts: list[str], share: int, rounds: int, threads: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    if "exact" in parts:
        rows["exact"] = compare("exact", EXACT_RIVALS, EXACT // share, rounds, threads)
    if "path" in parts:
        rows["path"] = compare("path", PATH_RIVALS, PATH // share, max(1, rounds // 2), threads)
    if "iterative" in parts:
        rows["iterative"] = [apart("iterative", ITERATIVE // share // part, threads) for part in (5, 2, 1)]
        for row in rows["iterative"]:
            row["met"] = row["peak_gb"] <= BARS["iterative_gb"]
            print("  " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    return rows


def compare(part: str, rivals: dict[str, Rival], n: int, rounds: int, threads: int) -> dict[str, Any]:
    """Medians over interleaved rounds; a rival that is slower than the first by half is timed once only."""
    problem, times, answers = data(n), {name: [] for name in rivals}, {}
    base, ours = list(rivals)[:2]
    for i in range(rounds + 1):
        for name, rival in rivals.items():
            if i > 1 and times[name][0][0] > 1.5 * times[base][0][0]:
                continue
            begin, processor = time.perf_counter(), time.process_time()
            answers[name] = rival(*problem)
            if i or rounds == 1:  # the first round warms up
                times[name].append((time.perf_counter() - begin, time.process_time() - processor))
            print(f"\r{part}, n = {n:,}: round {i} of {rounds}, {name}      ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    entries: dict[str, Any] = {}
    for name, pairs in times.items():
        wall, processor_times = zip(*pairs, strict=True)
        entries[name] = {
            "seconds": spread(list(wall)),
            "cpu_seconds": spread(list(processor_times)),
            "times_as_fast": round(float(np.median([w for w, _ in times[base]]) / np.median(wall)), 2),
            "by_processor_time": round(float(np.median([c for _, c in times[base]]) / np.median(processor_times)), 2),
            "difference": float(np.abs(answers[name] - answers[base]).max()),
            "peak_mb": apart(name, n, threads)["peak_mb"],
        }
        show(name, entries[name])
    fast = entries[ours]["times_as_fast"]
    memory = entries[ours]["peak_mb"] / entries[base]["peak_mb"]
    met = fast >= BARS[part] and (part != "exact" or memory <= BARS["exact_memory"])
    return {"n": n, "dimension": DIMENSION, "times_as_fast": fast, "memory": round(memory, 3), "met": met, "rivals": entries}


def show(name: str, entry: dict[str, Any]) -> None:
    print(
        f"  {name:24} {entry['seconds']['median']:7.2f} s {entry['cpu_seconds']['median']:7.2f} s of processor  "
        f"{entry['times_as_fast']:5.2f} and {entry['by_processor_time']:5.2f} times as fast  {entry['peak_mb']:6.0f} MB  "
        f"differs by {entry['difference']:.1e}"
    )


def apart(what: str, n: int, threads: int) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--threads", str(threads), "--alone", what, str(n)]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return answer


def alone(what: str, n: int) -> dict[str, Any]:
    if what == "iterative":
        problem = data(n)
        row = iterative(problem, None)
        return {**row, "peak_gb": memory("VmHWM") / 1e3}
    rival = {**EXACT_RIVALS, **PATH_RIVALS}[what]
    rival(*data(50))  # libraries, threads
    problem = data(n)
    before = memory("VmRSS")
    rival(*problem)
    return {"peak_mb": memory("VmHWM") - before}


def iterative(problem: Data, rank: int | None) -> dict[str, Any]:
    """Fit and predict in float32 products, refined; seconds, iterations and the true residual."""
    x, y, z = problem
    begin = time.perf_counter()
    solution = conjugate_gradients(x, y, MU, tolerance=1e-6, rank=rank, dtype=torch.float32, progress=True)
    correct = float((solution(z).sign() == truth(z)).double().mean())
    return {
        "n": len(x),
        "seconds": time.perf_counter() - begin,
        "iterations": solution.iterations,
        "residual": solution.residual,
        "accuracy": correct,
    }


def truth(z: Tensor) -> Tensor:
    return torch.sign(z[:, 0] * z[:, 1])


def on_cuda(parts: list[str], share: int, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All parts, small problems first; `keep` is called with what there is after each row."""
    rows: dict[str, Any] = {}
    small = data(500, "cuda")
    ridge(*small[:2], MU)  # libraries
    iterative(small, 50)
    for n in CUDA_EXACT if "exact" in parts else []:
        row = cuda_exact(n // share)
        rows.setdefault("exact", []).append(row | ({"met": row["peak_gb"] <= BARS["cuda_exact_gb"]} if n == 100_000 else {}))
        keep(rows)
    if "path" in parts:
        rows["path"] = cuda_path(PATH // share)
        keep(rows)
    for n, rank in CUDA_ITERATIVE if "iterative" in parts else []:
        rows.setdefault("iterative", []).append(cuda_iterative(n // share, rank // share))
        keep(rows)
    return rows


def cuda_exact(n: int) -> dict[str, Any]:
    """One fit: matrix, factorisation and substitution timed by themselves, and the residual of the answer."""
    x, y, _ = data(n, "cuda")
    begin_memory()
    matrix, seconds_matrix = timed(NTK().matrix, x)
    factor, seconds_factor = timed(Factor.of, matrix, MU)
    dual, seconds_solve = timed(factor.solve, y.unsqueeze(1))
    peak = torch.cuda.max_memory_allocated() / 1e9
    del matrix, factor
    product, seconds_product = timed(NTK().product, x, None, dual)
    residual = y.unsqueeze(1) - product - MU * dual
    row = {
        "n": n,
        "matrix_seconds": seconds_matrix,
        "factor_seconds": seconds_factor,
        "solve_seconds": seconds_solve,
        "product_seconds": seconds_product,
        "tflops": n**3 / 3 / seconds_factor / 1e12,
        "peak_gb": peak,
        "residual": float(residual.norm() / y.norm()),
    }
    print("  exact      " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    return row


def cuda_path(n: int) -> dict[str, Any]:
    x, y, _ = data(n, "cuda")
    begin_memory()
    solutions, seconds = timed(ridge_path, x, y, MUS)
    _, one = timed(ridge, x, y, MU)
    _, eigen = timed(Spectral.of, x, y)
    worst = max(s.residual or 0.0 for s in solutions)
    row = {"n": n, "path_seconds": seconds, "one_fit_seconds": one, "eigen_seconds": eigen, "residual": worst}
    print("  path       " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    return row


def cuda_iterative(n: int, rank: int) -> dict[str, Any]:
    problem = data(n, "cuda")
    begin_memory()
    row, _ = timed(iterative, problem, rank)
    thin = problem[1].unsqueeze(1)
    _, single = timed(partial(NTK().product, dtype=torch.float32), problem[0], None, thin)
    _, double = timed(NTK().product, problem[0], None, thin)
    peak = torch.cuda.max_memory_allocated() / 1e9
    row = {**row, "rank": rank, "float32_product_seconds": single, "float64_product_seconds": double, "peak_gb": peak}
    print("  iterative  " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    return row


def begin_memory() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What the work gives, and its seconds on the GPU."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    answer = work(*arguments)
    torch.cuda.synchronize()
    return answer, time.perf_counter() - begin


if __name__ == "__main__":
    main()
