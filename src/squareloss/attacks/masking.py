"""Signs that an attack fails for the wrong reason: the gradient is hidden, not the boundary far."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from squareloss import _checks
from squareloss.attacks._common import Norm, check_inputs, eps_text, norm_name
from squareloss.attacks._network import Network, Prepared, prepare
from squareloss.attacks._rounds import Options, check_options
from squareloss.attacks.apgd import apgd
from squareloss.attacks.losses import objective
from squareloss.attacks.square_attack import square_attack

STEPS = (5, 10, 20, 40, 80)
_TIE = 0.05  # runners-up closer than this share of the gap to the third place count as tied
_NEARLY = 1e-8


@dataclass
class MaskingReport:
    """What a closer look found; shares are of the points looked at or, of gradients and ties, of those the model gets right.

    Arguments:
        points: how many points were looked at.
        eps, accuracy_by_eps: accuracy as the ball grows; it must go to zero.
        steps, accuracy_by_steps: accuracy at the radius asked for as the attack gets more steps.
        white_box, black_box: accuracy that the gradient attacks leave together, and Square Attack alone.
        only_black_box: the share that Square Attack breaks and no gradient attack does.
        zero_gradient, small_gradient: for each loss, the share of points whose gradient is exactly zero, or nowhere above 1e-8.
        tied: the share where the two best wrong scores tie, so that DLR is blind to the true class.
        tie_gap: the median of (f_(2) - f_(3)) / (f_(1) - f_(3)), the weight of the true class in the gradient of DLR.
    """

    points: int
    eps: list[float]
    accuracy_by_eps: list[float]
    steps: list[int]
    accuracy_by_steps: list[float]
    white_box: float
    black_box: float
    only_black_box: float
    zero_gradient: dict[str, float]
    small_gradient: dict[str, float]
    tied: float
    tie_gap: float

    def signs(self) -> list[str]:
        """What speaks against trusting the numbers; empty if nothing does."""
        found = []
        if self.accuracy_by_eps[-1] > 0:
            found.append(
                f"accuracy stays at {self.accuracy_by_eps[-1]:.1%} at eps {eps_text(self.eps[-1])}, where nothing can stand"
            )
        if self.accuracy_by_steps[-2] - self.accuracy_by_steps[-1] > 0.01:
            before, after = self.accuracy_by_steps[-2:]
            found.append(f"more steps still help: {before:.1%} after {self.steps[-2]}, {after:.1%} after {self.steps[-1]}")
        if self.only_black_box > 0.005:
            found.append(f"the black box breaks {self.only_black_box:.1%} of the points, which gradients leave")
        for loss, share in self.small_gradient.items():
            if share > 0.05:
                found.append(
                    f"the gradient of {loss} is nearly zero on {share:.1%} of the points: scale the scores or use another loss"
                )
        if self.tied > 0.05:
            found.append(f"DLR is blind to the true class on {self.tied:.1%} of the points: the runners-up tie")
        return found

    def __str__(self) -> str:
        lines = [
            f"masking report on {self.points} points",
            f"  eps {' '.join(eps_text(e) for e in self.eps)}: {_row(self.accuracy_by_eps)}",
            f"  steps {' '.join(str(s) for s in self.steps)}: {_row(self.accuracy_by_steps)}",
            f"  white box leaves {self.white_box:.1%}, black box {self.black_box:.1%}, which alone breaks "
            f"{self.only_black_box:.1%}",
            f"  gradient nearly zero: {', '.join(f'{k} {v:.1%}' for k, v in self.small_gradient.items())}",
            f"  runners-up tie on {self.tied:.1%}; median weight of the true class in DLR {self.tie_gap:.3f}",
        ]
        return "\n".join(lines + [f"  sign: {sign}" for sign in self.signs() or ["none"]])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists for JSON."""
        return {**asdict(self), "signs": self.signs()}


def masking_report(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    points: int = 256,
    queries: int = 1000,
    **options: Unpack[Options],
) -> MaskingReport:
    """Five questions that tell a robust network from one that hides its gradient.

    Does accuracy go to zero as eps grows? Do more steps still help? Does the black box beat the white box? How often is the
    gradient nearly zero? Do runners-up tie, so that DLR does not see the true class?

    Arguments:
        model, x, y, eps: as for `pgd`.
        points: how many points to look at, the first ones.
        queries: of Square Attack.
        options: see `Options`; `save` and `parity` are not used.
    """
    check_options(masking_report, options)
    _checks.whole("points", points)
    _checks.whole("queries", queries)
    norm = norm_name(options.get("norm", "linf"))
    check_inputs(model, x, y, eps, norm)
    plain: Options = {**options, "save": None, "parity": False, "progress": False}
    x, y, eps = x[:points], y[:points].long(), float(eps)
    with Prepared(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the gradient was exactly zero")  # it is a line of the report
        return _report(model, x, y, eps, norm, queries, plain)


def _report(model: nn.Module, x: Tensor, y: Tensor, eps: float, norm: Norm, queries: int, plain: Options) -> MaskingReport:
    network = prepare(model, x, y, batch_size=plain.get("batch_size"), precision="float32")
    radii = growing(eps, norm, x[0].numel())
    by_eps = _shrinking(model, x, y, radii, plain)
    broken, by_steps = torch.zeros(len(x), dtype=torch.bool, device=x.device), []
    for steps in STEPS:
        broken |= apgd(model, x, y, eps, loss="margin", steps=steps, **plain).broken
        by_steps.append(float((~broken).double().mean()))
    square = square_attack(model, x, y, eps, queries=queries, **plain)
    zero, small = _flat(network, x, y)
    tied, gap = _ties(network, x, y)
    return MaskingReport(
        points=len(x),
        eps=radii,
        accuracy_by_eps=by_eps,
        steps=list(STEPS),
        accuracy_by_steps=by_steps,
        white_box=by_steps[-1],
        black_box=square.robust_accuracy,
        only_black_box=float((square.broken & ~broken).double().mean()),
        zero_gradient=zero,
        small_gradient=small,
        tied=tied,
        tie_gap=gap,
    )


def growing(eps: float, norm: Norm, dimension: int) -> list[float]:
    """Radii from eps, doubling, to one that reaches every corner of the box."""
    last = 1.0 if norm == "linf" else float(dimension) ** 0.5
    radii = [eps]
    while radii[-1] < last:
        radii.append(min(2 * radii[-1], last))
    return radii


def _shrinking(model: nn.Module, x: Tensor, y: Tensor, radii: list[float], options: Options) -> list[float]:
    """Accuracy at each radius; what breaks in a ball breaks in every larger one."""
    stands = torch.arange(len(x), device=x.device)
    accuracy = []
    for eps in radii:
        if len(stands):
            result = apgd(model, x[stands], y[stands], eps, loss="margin", steps=20, **options)
            stands = stands[~result.broken]
        accuracy.append(len(stands) / len(x))
    return accuracy


def _flat(network: Network, x: Tensor, y: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """For each loss the share of right points with a zero gradient, and with a nearly zero one."""
    zero, small = {}, {}
    x, y = x.to(network.device), y.to(network.device)
    right = network.exact(x).argmax(1) == y
    for name in ("ce", "margin", *(("angle", "dlr") if network.num_classes > 2 else ())):
        largest = network.gradient(x, objective(name), y, y)[2].flatten(1).abs().amax(1)[right]
        zero[name], small[name] = _share(largest == 0), _share(largest < _NEARLY)
    return zero, small


def _ties(network: Network, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The share of right points whose runners-up tie, and the median of their gap; 0 and 1 for two classes."""
    if network.num_classes < 3:
        return 0.0, 1.0
    scores = network.exact(x.to(network.device))
    top = scores[scores.argmax(1) == y.to(scores.device)].topk(3, 1).values
    if len(top) == 0:
        return 0.0, 1.0
    gap = (top[:, 1] - top[:, 2]) / (top[:, 0] - top[:, 2]).clamp_min(1e-12)
    return _share(gap < _TIE), float(gap.median())


def _share(flags: Tensor) -> float:
    return float(flags.double().mean()) if len(flags) else 0.0


def _row(values: list[float]) -> str:
    return " ".join(f"{value:.1%}" for value in values)
