"""A sine on the square, not separable: whose probabilities are nearer the truth? (Section 5.1 and its appendix.)

    squareloss reproduce sine --scale laptop                  about 10 minutes on 2 cores
    squareloss reproduce sine --scale paper --device cuda     229 s of jobs on an H200 (results/synthetic)
    squareloss reproduce sine --set reading=clipped           another reading; also penalty=mean and lr=0.01

Networks 2-500-500-1, n = 8000 on [-1, 1]^2, RMSProp, 2000 iterations, mu in {0, .001, .01, .1, 1}, 40 replications. To expect
at the mu of the least validation error: an error of .166 for square loss and .167 for cross-entropy with l2, an L_inf
calibration error of .22 and .45 (.30 for cross-entropy at the mu best for it). Beyond the paper, at mu = .01 and with 5
replications: n from 500 to 32,000 and widths from 50 to 4000, whose two cells of width 4000 take 51 s of the whole.
Within a replication all cells have the same data and initial weights, so that differences are paired. On a GPU hidden layers
are bfloat16 in training (--set products=tf32 for TF32); weights, inputs, outputs and all that is measured are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from squareloss._checks import choose, positive
from squareloss.lab.data.replications import Splits, sine_split
from squareloss.lab.data.synthetic import READINGS, sine_eta
from squareloss.lab.report.fields import pack
from squareloss.lab.report.views._sine_figures import BINS, COARSE, WIDEST
from squareloss.lab.runs import Cell, Context, Job, Result
from squareloss.lab.studies.common import rounded
from squareloss.lab.studies.synthetic.boundary import lattice
from squareloss.lab.studies.synthetic.one_output import LOSSES, other_readings, probabilities, temperatures
from squareloss.lab.studies.synthetic.replicated import DIGITS, OPTIONS, PENALTIES, Trained, read_otherwise, trained
from squareloss.lab.training.stacked import PRODUCTS

MUS = (0.0, 0.001, 0.01, 0.1, 1.0)
SIDE = 201  # lattice points in each direction
PAIR = ("SL", "CE")  # the paper's losses: other readings, slopes and figures are for these
BEST = 0.01  # mu of readings and slopes: at or near the best for both


@dataclass(frozen=True)
class Size:
    """How large a scale is: `few` replications for other readings, `fewest` for slopes over `ns` and `widths`."""

    n: int
    width: int
    steps: int
    replications: int
    few: int
    fewest: int
    ns: tuple[int, ...]
    widths: tuple[int, ...]
    mus: tuple[float, ...] = MUS
    held_out: int = 10_000


SIZES = {
    "smoke": Size(60, 8, 20, 2, 2, 2, (30,), (4,), (0.0, 0.01), 200),
    "laptop": Size(2000, 100, 2000, 5, 3, 3, (500, 1000), (25, 50)),
    "paper": Size(8000, 500, 2000, 40, 10, 5, (500, 1000, 2000, 4000, 16_000, 32_000), (50, 100, 250, 1000, 2000, 4000)),
}


@dataclass(frozen=True)
class Sine:
    """The study. `reading`, `penalty` and `lr` are readings; each other one has cells of its own beside the main ones."""

    reading: str = "affine"
    penalty: str = "sum"
    lr: float = 0.001
    products: str = "bfloat16"
    name: str = "sine"
    summary: str = "classes that overlap: calibration error of square loss and cross-entropy against the true probability"
    cost: Mapping[str, str] = field(
        default_factory=lambda: {"smoke": "seconds", "laptop": "10 minutes on 2 cores", "paper": "4 minutes on an H200"}
    )
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 1, "paper": 1}  # replications are inside a cell
    options: ClassVar[Mapping[str, str]] = {
        "reading": f"of eta = sin(sqrt2 pi |x|), which turns negative: {', '.join(READINGS)}",
        **OPTIONS,
        "products": "of training on a GPU: bfloat16, tf32 or float32; it does not matter on a CPU",
    }

    def __post_init__(self) -> None:
        choose("reading", self.reading, READINGS)
        choose("penalty", self.penalty, PENALTIES)
        positive("lr", self.lr)
        choose("products", self.products, PRODUCTS)

    def cells(self, scale: str) -> list[Cell]:
        """Every loss and mu; the paper's two losses under other readings, with other numbers of points and other widths."""
        size = SIZES[scale]
        found = [self._cell(scale, loss, mu, size.replications, {}) for loss in LOSSES for mu in size.mus]
        readings = [{"reading": reading} for reading in READINGS if reading != self.reading]
        for other in [*readings, *read_otherwise(self.penalty, self.lr)]:
            mus = [mu for mu in size.mus if mu] if "penalty" in other else [BEST]  # the reading changes what mu means
            found += [self._cell(scale, loss, mu, size.few, other) for loss in PAIR for mu in mus]
        slopes = [{"n": n} for n in size.ns] + [{"width": width} for width in size.widths]
        return found + [self._cell(scale, loss, BEST, size.fewest, other) for other in slopes for loss in PAIR]

    def _cell(self, scale: str, loss: str, mu: float, replications: int, other: Mapping[str, Any]) -> Cell:
        size = SIZES[scale]
        spec: dict[str, Any] = {
            "task": "sine", "loss": loss, "mu": mu, "reading": self.reading, "penalty": self.penalty, "lr": self.lr,
            "n": size.n, "width": size.width, "steps": size.steps, "replications": replications, "held_out": size.held_out,
            "changed": next(iter(other), ""), **other, **({} if self.products == "bfloat16" else {"products": self.products}),
        }  # fmt: skip
        suffix = "".join(f"-{key}={value}" for key, value in other.items())
        paper = scale == "paper"
        group = f"n{spec['n']}-width{spec['width']}" if paper else ""
        return Cell(f"{loss}-mu{mu:g}{suffix}", spec, group, gpus=1 if paper else 0)

    def run(self, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        """Train all networks of the jobs, then measure job by job."""
        for networks in trained(jobs, context, data_of, products=self.products):
            yield networks.result(measured)


def data_of(job: Job) -> Splits:
    """The data of a job's replications."""
    spec = job.cell.spec
    return sine_split(range(spec["replications"]), spec["n"], spec["held_out"], spec["reading"], job.seed)


def measured(networks: Trained) -> dict[str, Any]:
    """Errors and calibration errors as lists over replications, for every reading of the outputs; fields for figures."""
    spec, data = networks.job.cell.spec, networks.data
    loss, test = spec["loss"], data.test
    grid = lattice(1.0, SIDE, test.x.device).view(-1, 2)
    truth = sine_eta(grid, spec["reading"])
    f_validation, f_test, f_grid = (networks.outputs(x) for x in (data.validation.x, test.x, grid))
    scale = temperatures(f_validation, data.validation.y)
    p_test, p_grid = probabilities(loss, f_test), probabilities(loss, f_grid)
    found: dict[str, Any] = {
        "validation_error": networks.error(data.validation, f_validation),
        "test_error": networks.error(test, f_test),
        **calibration(p_test - test.eta, p_grid - truth),
        "also": {},
    }
    others = other_readings(loss, f_grid, scale)
    for name, p in other_readings(loss, f_test, scale).items():
        found["also"][name] = calibration(p - test.eta, others[name] - truth)
    if loss == "CE":
        found["temperature"] = rounded(scale, DIGITS)
    if loss in PAIR and not spec["changed"]:
        found["figures"] = pictures(p_test[0] - test.eta[0], p_grid, truth)
    return found


def calibration(at_test: Tensor, on_grid: Tensor) -> dict[str, list[float]]:
    """Largest and mean |p - eta| by replication, over the test points (R, n) and over the lattice (R, m)."""
    return {
        "linf_grid": rounded(on_grid.abs().amax(-1), DIGITS),
        "linf_test": rounded(at_test.abs().amax(-1), DIGITS),
        "l1_grid": rounded(on_grid.abs().mean(-1), DIGITS),
        "l1_test": rounded(at_test.abs().mean(-1), DIGITS),
    }


def pictures(errors: Tensor, p_grid: Tensor, truth: Tensor) -> dict[str, Any]:
    """The first replication's histogram of p - eta at the test points and its p on a coarse lattice; mean |p - eta| of all."""

    every = (SIDE - 1) // (COARSE - 1)

    def thin(field: Tensor) -> Tensor:
        return field.view(SIDE, SIDE)[::every, ::every].cpu()

    return {
        "histogram": torch.histc(errors.clamp(-WIDEST, WIDEST).cpu(), BINS, -WIDEST, WIDEST).int().tolist(),
        "surface": pack(thin(p_grid[0])),
        "error": pack(thin((p_grid - truth).abs().mean(0))),
    }


STUDY = Sine()
