"""Two spirals, separable: does square loss err less, and keep the wider margin? (Section 5.1 and its appendix.)

    squareloss reproduce spirals --scale laptop                       6 minutes on 2 cores
    squareloss reproduce spirals --scale paper --device cuda          75 s of jobs on an H200 (results/synthetic)
    squareloss reproduce spirals --set lr=0.01 --set penalty=mean     other readings of what the paper leaves open

Networks 2-500-500-1, 100 + 100 training points, RMSProp, 10,000 iterations, mu in {0, .001, .01, .1, 1}, 40 replications. To
expect at the mu of the least validation error: an error of .010 for square loss, .017 for cross-entropy with l2.
A network counts as chosen by the mean validation error over replications. Within a replication all cells have the same data
and initial weights, so that differences are paired. Distances are measured from the boundary f = 0 in the box [-1.5, 1.5]^2,
traced as `boundary` says; TF32 products in training on a GPU, float32 in all that is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from squareloss._checks import choose, positive
from squareloss.lab.data.replications import Splits, spirals_split
from squareloss.lab.report.fields import pack_lines
from squareloss.lab.report.views.spirals import REACH
from squareloss.lab.runs import Cell, Context, Job, Result
from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.synthetic import boundary
from squareloss.lab.studies.synthetic.one_output import LOSSES
from squareloss.lab.studies.synthetic.replicated import DIGITS, OPTIONS, PENALTIES, Trained, read_otherwise, trained

MUS = (0.0, 0.001, 0.01, 0.1, 1.0)
FARTHEST = 0.4  # distances beyond are cut off: the support ends that far from the edge of the box
INSTANCES = 6  # whose boundaries are kept
DRAWN = ("SL", "CE")  # losses whose curves and boundaries are kept


@dataclass(frozen=True)
class Size:
    """How large a scale is: `few` replications for other readings, `side` points of the lattice in each direction."""

    width: int
    steps: int
    replications: int
    few: int
    mus: tuple[float, ...] = MUS
    held_out: int = 10_000
    side: int = 201
    every: int = 100


SIZES = {
    "smoke": Size(16, 40, 2, 2, (0.0, 0.01), 200, 31, 10),
    "laptop": Size(100, 5000, 8, 4, every=50),
    "paper": Size(500, 10_000, 40, 10),
}


@dataclass(frozen=True)
class Spirals:
    """The study. `penalty` and `lr` are readings; each other reading has cells of its own beside the main ones."""

    penalty: str = "sum"
    lr: float = 0.001
    name: str = "spirals"
    summary: str = "separable classes: error, boundary and margin of square loss and cross-entropy"
    cost: Mapping[str, str] = field(
        default_factory=lambda: {"smoke": "seconds", "laptop": "6 minutes on 2 cores", "paper": "a minute or two on an H200"}
    )
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 1, "paper": 1}  # replications are inside a cell
    options: ClassVar[Mapping[str, str]] = OPTIONS

    def __post_init__(self) -> None:
        choose("penalty", self.penalty, PENALTIES)
        positive("lr", self.lr)

    def cells(self, scale: str) -> list[Cell]:
        """Every loss and mu, and both of the paper's losses under each other reading."""
        size = SIZES[scale]
        found = [self._cell(scale, loss, mu, size.replications, {}) for loss in LOSSES for mu in size.mus]
        for other in read_otherwise(self.penalty, self.lr):
            mus = [mu for mu in size.mus if mu or "lr" in other]  # without a penalty its reading does not matter
            found += [self._cell(scale, loss, mu, size.few, other) for loss in DRAWN for mu in mus]
        return found

    def _cell(self, scale: str, loss: str, mu: float, replications: int, other: Mapping[str, Any]) -> Cell:
        size = SIZES[scale]
        spec = {
            "task": "spirals", "loss": loss, "mu": mu, "penalty": self.penalty, "lr": self.lr, **other, "n": 200,
            "width": size.width, "steps": size.steps, "replications": replications, "held_out": size.held_out,
            "side": size.side, "every": size.every, "changed": next(iter(other), ""),
        }  # fmt: skip
        suffix = "".join(f"-{key}={value}" for key, value in other.items())
        paper = scale == "paper"
        return Cell(f"{loss}-mu{mu:g}{suffix}", spec, "all" if paper else "", gpus=1 if paper else 0)

    def run(self, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        """Train all networks of the jobs, then measure job by job."""
        for networks in trained(jobs, context, data_of, products="tf32", every=jobs[0].cell.spec["every"]):
            yield networks.result(measured)


def data_of(job: Job) -> Splits:
    """The data of a job's replications."""
    spec = job.cell.spec
    return spirals_split(range(spec["replications"]), spec["n"], spec["held_out"], job.seed)


def measured(networks: Trained) -> dict[str, Any]:
    """Errors, margins and the unrest of training, as lists over replications; curve and boundaries of the first ones."""
    spec, data = networks.job.cell.spec, networks.data
    found: dict[str, Any] = {
        "train_error": networks.error(data.train),
        "validation_error": networks.error(data.validation),
        "test_error": networks.error(data.test),
        "sparse_error": sparse_error(networks),
        "unrest": rounded(unrest(torch.stack(networks.losses)), DIGITS) if networks.losses else [],
    }
    keep = spec["loss"] in DRAWN and not spec["changed"]
    margins, lines = traced(networks, spec["side"], INSTANCES if keep else 0)
    found |= margins
    if keep:
        found["boundaries"] = lines
        found["curve_of_first"] = {
            "step": networks.steps,
            "loss": rounded([float(loss[0]) for loss in networks.losses], 3),
            "error": rounded([float(error[0]) for error in networks.errors], 3),
        }
    return found


def sparse_error(networks: Trained) -> list[float]:
    """The error where training data are sparse: on the tenth of the test points farthest from one of their class."""
    train, test = networks.data.train, networks.data.test
    wrong = (networks.outputs(test.x) > 0) != (test.y > 0)
    found = []
    for r in range(len(networks)):
        gaps = torch.cdist(test.x[r], train.x[r])
        gaps = gaps.masked_fill(test.y[r][:, None] != train.y[r], torch.inf).min(1).values
        farthest = gaps.topk(max(1, len(gaps) // 10)).indices
        found.append(float(wrong[r][farthest].float().mean()))
    return rounded(found, DIGITS)


def unrest(losses: Tensor) -> Tensor:
    """How much the training loss jumps late: root mean square of the changes of its log10 between notes, second half (R,).

    Arguments:
        losses: noted at even intervals, (notes, R).
    """
    late = losses[len(losses) // 2 :].clamp_min(1e-12).log10()
    return late.diff(dim=0).square().mean(0).sqrt()


def support(count: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Points (6 count, 2) of the true support, along the middle and both edges of either spiral, and their labels."""
    turn = (torch.arange(count, device=device) + 0.5) / count
    theta, rho = 4 * math.pi * turn, turn**0.8 + torch.tensor([[-0.03], [0.0], [0.03]], device=device)
    x = torch.stack([rho * torch.sin(theta) + 0.04, rho * torch.cos(theta)], dim=-1).flatten(0, 1)
    return torch.cat([x, -x]), torch.arange(2, device=device).repeat_interleave(len(x))


def traced(networks: Trained, side: int, instances: int) -> tuple[dict[str, list[float]], list[str]]:
    """Margins of all networks, and the boundaries of the first ones as texts.

    margin_support: mean signed distance of the support to the boundary, negative where it is on the wrong side;
    margin_support_low: its 5% quantile; margin_train: the least signed distance of a training point.
    """
    device = networks.parameters[0].device
    lattice = boundary.lattice(REACH, side, device)
    values = networks.outputs(lattice.view(-1, 2)).view(-1, side, side)
    points, labels = support(side, device)
    found: dict[str, list[float]] = {"margin_support": [], "margin_support_low": [], "margin_train": []}
    lines = []
    for r in range(len(networks)):
        f, train = networks.one(r), networks.data.train
        segments = boundary.segments(values[r], lattice, f)
        to_support = signed(f, points, labels, segments)
        found["margin_support"].append(float(to_support.mean()))
        found["margin_support_low"].append(float(to_support.quantile(0.05)))
        found["margin_train"].append(float(signed(f, train.x[r], train.y[r], segments).min()))
        if r < instances:
            lines.append(pack_lines(boundary.chains(segments, 0.004), REACH))
    return {key: rounded(margins, DIGITS) for key, margins in found.items()}, lines


def signed(f: boundary.Function, points: Tensor, labels: Tensor, segments: Tensor) -> Tensor:
    """Distance (m,) of points (m, 2) to the boundary, negative where they are classified wrong, at most `FARTHEST`."""
    right = (f(points) > 0) == (labels > 0)
    return boundary.distances(points, segments, FARTHEST) * torch.where(right, 1.0, -1.0)


STUDY = Spirals()
