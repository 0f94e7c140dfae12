"""Attacks beside pyautoattack, the published AutoAttack code: seconds, robust accuracy, verdicts.

    python benchmarks/attacks.py                                   digits on two CPU threads; a few minutes
    python benchmarks/attacks.py --device cuda --data DIR --normal NET --adversarial NET
    python benchmarks/attacks.py --device cuda --data DIR --adversarial NET --parity 2000
    python benchmarks/attacks.py --device cuda --data DIR --losses NET [NET ...]

NET is a folder written by `Classifier.save`; DIR holds cifar-10-batches-bin. On the CPU the two run in turn, several times, and
the table shows medians; its last three columns are the share of points with pyautoattack's verdict by our fast mode, by our
parity mode, which draws the same random numbers, and by pyautoattack with another seed. On CUDA pyautoattack runs as its users
run it: a float32 model, PyTorch's defaults, images channels first among them, the batch size that is best for it; with
`--parity` on our network as it is, which puts images channels last by itself. Bars: on the CPU 3 times faster on the normally
trained network, 1.5 times on the adversarially trained one; on an H200 5 times and 4 times at a robust accuracy within 0.3
points, and PGD-100 on 10,000 images in 15 s. `--parity` compares verdicts; `--losses` prints what each attack loss leaves, and
what `worst_case` and `autoattack` leave and spend.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyautoattack
import torch
from _evidence import write
from torch import Tensor, nn

from squareloss import Classifier, attacks
from squareloss.codings import Coding
from squareloss.lab.data import load
from squareloss.models.resnet import ResNet

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
BATCHES = (250, 500, 1000)  # that pyautoattack may choose from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of the CPU comparison")
    parser.add_argument("--data", help="folder with cifar-10-batches-bin")
    parser.add_argument("--normal")
    parser.add_argument("--adversarial")
    parser.add_argument("--parity", type=int, metavar="IMAGES")
    parser.add_argument("--losses", nargs="+", metavar="NET")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=1000, help="of our attacks on CUDA")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.device == "cpu":
        return digits_table(arguments.rounds)
    if arguments.losses:
        return losses_table(arguments)
    return parity(arguments) if arguments.parity else cuda_table(arguments)


def images(arguments: argparse.Namespace, count: int) -> tuple[Tensor, Tensor]:
    """The first test images of CIFAR-10 in [0, 1], and their labels, on the GPU."""
    x, y = load("cifar10", root=arguments.data, validation=0).test
    return x[:count].cuda().float() / 255, y[:count].cuda()


# digits on the CPU


def digits_table(rounds: int) -> None:
    from attack_nets import digits, trained

    _, _, x, y = digits()
    rows = []
    print(
        f"{'network':>12} {'norm':>5} {'published':>10} {'ours':>8} {'ratio':>6} {'left':>11} {'same verdict':>13} "
        f"{'parity mode':>12} {'its seeds 0, 1':>15}",
        flush=True,
    )
    for kind in ("normal", "adversarial"):
        for norm, eps in (("Linf", 0.15), ("L2", 0.75)):
            row = compare(trained(kind), x, y, norm, eps, rounds)
            rows.append({"network": kind, "norm": norm, "eps": eps, **row})
            print(
                f"{kind:>12} {norm:>5} {row['published_seconds']:9.2f}s {row['seconds']:7.2f}s {row['ratio']:6.2f} "
                f"{row['published_robust']:5.1%} {row['robust']:5.1%} {row['same']:12.1%} "
                f"{row['same_in_parity_mode']:12.1%} {row['published_with_another_seed']:15.1%}",
                flush=True,
            )
    print(f"wrote {write('attacks_cpu', rows, threads=torch.get_num_threads(), images=len(x))}")


def compare(model: nn.Module, x: Tensor, y: Tensor, norm: str, eps: float, rounds: int) -> dict[str, Any]:
    """Both suites in turn; medians over the rounds, the ratio of each round, and the verdicts of the last."""
    pairs = []
    for _ in range(rounds):
        theirs, broken = timed(lambda: published(model, x, y, norm, eps, 250))
        ours, result = timed(lambda: attacks.autoattack(model, x, y, eps, norm=norm))
        pairs.append((theirs, ours))
    alike = attacks.autoattack(model, x, y, eps, norm=norm, parity=True, batch_size=250).broken
    other = published(model, x, y, norm, eps, 250, seed=1)
    return {
        "same_in_parity_mode": float((alike == broken).double().mean()),
        "published_with_another_seed": float((other == broken).double().mean()),
        "published_seconds": statistics.median(a for a, _ in pairs),
        "seconds": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
        "ratios": [a / b for a, b in pairs],
        **verdicts(broken, result),
    }


def verdicts(broken: Tensor, result: attacks.AttackResult) -> dict[str, float]:
    """Robust accuracy of both, and the share of points with the same verdict."""
    return {
        "published_robust": 1 - float(broken.double().mean()),
        "robust": result.robust_accuracy,
        "same": float((broken == result.broken).double().mean()),
    }


def published(
    model: nn.Module, x: Tensor, y: Tensor, norm: str, eps: float, batch: int, names: list[str] | None = None, seed: int = 0
) -> Tensor:
    """Which points pyautoattack breaks, clean errors among them."""
    suite = pyautoattack.AutoAttack(model, norm=norm, eps=eps, seed=seed, device=str(x.device))
    if names is not None:
        suite.attacks_to_run = names
    x_adv, _ = suite.run_standard_evaluation(x, y, batch_size=batch)
    with torch.no_grad():
        return torch.cat([model(part).argmax(1) for part in x_adv.split(batch)]) != y


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and what came of it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


# ResNet-18 on CIFAR-10, on CUDA


def cuda_table(arguments: argparse.Namespace) -> None:
    rows = []
    x, y = images(arguments, 10_000)
    some, labels = x[: arguments.images], y[: arguments.images]
    for kind in ("normal", "adversarial"):
        if getattr(arguments, kind) is None:
            continue
        model = Classifier.load(getattr(arguments, kind)).eval().cuda()
        if kind == "normal":
            seconds, result = timed(lambda model=model: attacks.pgd(model, x, y, 8 / 255, batch_size=arguments.batch_size))
            rows.append(
                {"network": kind, "attack": "pgd-100", "images": len(x), "seconds": seconds, "robust": result.robust_accuracy}
            )
            print(f"PGD-100 on {len(x)} images: {seconds:.1f} s, {result.robust_accuracy:.2%} left (bar: 15 s)", flush=True)
            write("attacks_cuda", rows, batch_size=arguments.batch_size)
        rows.append({"network": kind, "attack": "autoattack", "images": len(some), **one_suite(model, some, labels, arguments)})
        row = rows[-1]
        print(
            f"AutoAttack, {kind}: published {row['published_seconds']:.1f} s (batch {row['published_batch']}), "
            f"ours {row['seconds']:.1f} s, ratio {row['ratio']:.2f}; left {row['published_robust']:.2%} and "
            f"{row['robust']:.2%}, {row['same']:.2%} the same verdict",
            flush=True,
        )
        print(f"wrote {write('attacks_cuda', rows, batch_size=arguments.batch_size)}", flush=True)


def one_suite(model: nn.Module, x: Tensor, y: Tensor, arguments: argparse.Namespace) -> dict[str, Any]:
    """Our suite and theirs on the same points; the first call of each warms up on a few of them."""
    run = lambda: attacks.autoattack(model, x, y, 8 / 255, batch_size=arguments.batch_size)
    attacks.apgd(model, x[:32], y[:32], 8 / 255, steps=2)
    ours, result = timed(run)
    print(f"ours: {ours:.1f} s, {result}", flush=True)
    model = channels_first(model)
    trials = {b: timed(lambda b=b: published(model, x, y, "Linf", 8 / 255, b, ["apgd-ce"]))[0] for b in BATCHES}
    batch = min(trials, key=lambda b: trials[b])
    theirs, broken = timed(lambda: published(model, x, y, "Linf", 8 / 255, batch))
    spent = {"forwards": int(result.forwards.sum()), "backwards": int(result.backwards.sum()), "by": result.by_loss()}
    return {
        "published_seconds": theirs,
        "published_batch": batch,
        "published_apgd_ce_seconds": trials,
        "seconds": ours,
        "ratio": theirs / ours,
        **verdicts(broken, result),
        **spent,
    }


def channels_first(model: nn.Module) -> nn.Module:
    """A copy that leaves images in PyTorch's default layout, as most people's networks do; ours puts them channels last."""

    class ChannelsFirst(ResNet):
        def features(self, x: Tensor) -> Tensor:
            out = torch.relu(self.bn1(self.conv1(x)))
            return self.blocks(out).mean((2, 3))  # type: ignore[no-any-return]

    twin = copy.deepcopy(model).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    twin.network.__class__ = ChannelsFirst
    with torch.no_grad():
        x = torch.rand(8, 3, 32, 32, device=next(twin.parameters()).device)
        torch.testing.assert_close(twin(x), model(x), rtol=1e-2, atol=1e-2)
    return twin  # type: ignore[no-any-return]


def parity(arguments: argparse.Namespace) -> None:
    """Verdicts on many images: ours on all of them, then theirs, a thousand at a time, each written at once."""
    x, y = images(arguments, arguments.parity)
    model = Classifier.load(arguments.adversarial).eval().cuda()
    ours, result = timed(lambda: attacks.autoattack(model, x, y, 8 / 255, batch_size=arguments.batch_size))
    print(f"ours: {ours:.1f} s, {result}", flush=True)
    theirs, broken = 0.0, torch.zeros(0, dtype=torch.bool, device=x.device)
    for part, labels in zip(x.split(1000), y.split(1000), strict=True):
        seconds, found = timed(lambda part=part, labels=labels: published(model, part, labels, "Linf", 8 / 255, 1000))
        theirs, broken = theirs + seconds, torch.cat([broken, found])
        done = len(broken)
        row = {
            "images": done,
            "seconds": ours * done / len(x),  # ours of all of them, shared out
            "published_seconds": theirs,
            "published_robust": 1 - float(broken.double().mean()),
            "robust": 1 - float(result.broken[:done].double().mean()),
            "same": float((broken == result.broken[:done]).double().mean()),
        }
        print(row, flush=True)
        print(f"wrote {write('attacks_parity_cuda', [row], batch_size=arguments.batch_size)}", flush=True)


def losses_table(arguments: argparse.Namespace) -> None:
    """What PGD-100 leaves with each loss, and what the two suites leave and spend, at 2, 4 and 8/255."""
    x, y = images(arguments, arguments.images)
    rows = []
    for path in arguments.losses:
        model = Classifier.load(path).eval().cuda()
        names = [f"pgd-{loss}" for loss in attacks.losses.UNTARGETED]
        names += ["pgd-angle_targeted", "pgd-margin_targeted", "apgd-ce", "apgd-ce@eta", "apgd-t", "autoattack", "worst_case"]
        coding = model.link if isinstance(model.link, Coding) else None
        names = [n for n in names if coding is not None or not n.endswith("@eta")]
        table = attacks.evaluate(
            model,
            x,
            y,
            [2 / 255, 4 / 255, 8 / 255],
            attacks=names,
            coding=coding,
            batch_size=arguments.batch_size,
            progress=sys.stderr.isatty(),
        )
        print(f"{Path(path).name}\n{table}", flush=True)
        for eps in table.eps:
            worst, auto = (table.results[name, eps].passes for name in ("worst_case", "autoattack"))
            print(
                f"  passes at {eps * 255:.0f}/255: worst_case {worst}, autoattack {auto}, ratio {worst / auto:.3f}", flush=True
            )
        report = attacks.masking_report(model, x, y, 2 / 255, batch_size=arguments.batch_size)
        print(report, flush=True)
        rows.append({"network": Path(path).name, **table.to_dict(), "masking": report.to_dict()})
        write("attacks_losses_cuda", rows)


if __name__ == "__main__":
    main()
