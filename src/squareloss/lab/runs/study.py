"""What an experiment is: a study lists cells, a cell with a seed is a job, and a job ends in one result."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from squareloss._checks import choose

SCALES = ("smoke", "laptop", "paper")
STATUSES = ("done", "diverged")
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]{0,99}")
_TAKEN = ("json", "json.corrupt", "log")  # what lies beside the artefacts of a job
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Cell:
    """One thing to run, with as many seeds as one likes: the unit that is scheduled, resumed and stored.

    Arguments:
        name: readable, unique within its study and safe as a file name, such as "simplex" or "resnet18-cifar10-SL".
        spec: plain JSON values: everything that determines the result but the seed. Its entry "task" names what is done
            ("train-images", "spirals"); cells of two studies with equal specs are one, and share their results.
        group: cells with the same non-empty group may be run together, in one call of `Study.run`.
        cpus, gpus: what one job needs; parts of a GPU (0.25) share it. A job that asks for a GPU where there is none runs on
            the CPU, but a Ray cluster keeps it waiting for a node that has one.
        weight: about how long a job takes beside the others of its study, in any unit; the time left goes by it.
    """

    name: str
    spec: Mapping[str, Any] = field(hash=False)
    group: str = ""
    cpus: float = 1
    gpus: float = 0
    weight: float = 1

    def __post_init__(self) -> None:
        check_name(self.name, "a cell's name")
        if not isinstance(self.spec, Mapping) or not isinstance(self.spec.get("task"), str):
            raise ValueError(
                f"expected cell {self.name!r} to have a spec with a 'task' (what is done, such as 'train-images'), got "
                f"{self.spec!r}; results are shared by equal specs, so the spec must say all"
            )
        # tuples become lists, numpy scalars numbers: what is hashed is what a reader of the file sees
        object.__setattr__(self, "spec", plain(self.spec, f"spec of cell {self.name!r}"))
        if self.cpus < 0 or self.gpus < 0:
            raise ValueError(f"expected cpus and gpus of cell {self.name!r} not to be negative, got {self.cpus}, {self.gpus}")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"expected the weight of cell {self.name!r} to be a number > 0, got {self.weight}")
        object.__setattr__(self, "_hash", hash_of(self.spec))

    def hash(self) -> str:
        """`hash_of` its spec."""
        return self._hash  # type: ignore[attr-defined, no-any-return]


def hash_of(spec: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of a spec's canonical JSON: keys sorted, 1.0 written as 1."""
    text = json.dumps(finite(_integral(spec)), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Job:
    """A cell and a seed: one independent run."""

    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        """Readable and unique within its study: "simplex/seed0"."""
        return f"{self.cell.name}/seed{self.seed}"

    @property
    def key(self) -> str:
        """Unique in a results folder, and the same for equal cells of two studies: "1f0c...-seed0"."""
        return f"{self.cell.hash()}-seed{self.seed}"


Artefact = bytes | Mapping[str, Tensor]


@dataclass(frozen=True)
class Result:
    """What a job ends in.

    Arguments:
        job: the job.
        metrics: plain JSON values; numpy and torch numbers are converted, NaN and infinities are kept.
        status: "done" or "diverged"; both are final.
        seconds: what it took; None means the time since the previous result of the same call of `Study.run`.
        artefacts: file name to content, written beside the JSON file: bytes, or tensors by name (for a name that ends in
            ".safetensors").
        machine: versions and hardware; filled in where the job runs.
    """

    job: Job
    metrics: Mapping[str, Any]
    status: str = "done"
    seconds: float | None = None
    artefacts: Mapping[str, Artefact] = field(default_factory=dict)
    machine: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"Unknown status {self.status!r} of {self.job.name}. Available: {', '.join(STATUSES)}")
        if hash_of(self.job.cell.spec) != self.job.cell.hash():
            raise ValueError(
                f"expected the spec of {self.job.name} as it was planned, got one that the study has changed; change a copy"
            )
        object.__setattr__(self, "metrics", plain(self.metrics, f"metrics of {self.job.name}"))
        for name in self.artefacts:
            check_name(name, "an artefact's file name")
            if name.lower() in _TAKEN:
                raise ValueError(f"expected another file name for an artefact of {self.job.name} than {name!r}, which is taken")


@dataclass(frozen=True)
class Context:
    """What a job may use while it runs.

    Arguments:
        device: where to compute, "cpu" or "cuda" or "cuda:1".
        root: folder that holds the scratch folders.
        on_report: called by `report`.
    """

    device: str = "cpu"
    root: Path = Path(".scratch")
    on_report: Callable[[Job, float, float, dict[str, float]], None] | None = None

    def scratch(self, job: Job) -> Path:
        """The job's own folder for checkpoints. It outlives a killed run, so the next one can go on; a result removes it."""
        folder = self.root / job.key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def report(self, job: Job, step: float, total: float, **values: float) -> None:
        """Say how far a job is: `context.report(job, epoch, epochs, loss=0.3)`. Cheap enough for every epoch."""
        if self.on_report is not None:
            self.on_report(job, float(step), float(total), {name: float(value) for name, value in values.items()})


class Study(Protocol):
    """One table, figure or theorem, or one comparison. It must survive pickling: workers get a copy.

    `cost` says in words what each scale takes: {"smoke": "seconds", "laptop": "6 minutes on 2 cores", "paper": "..."}.
    """

    name: str
    summary: str
    cost: Mapping[str, str]

    def cells(self, scale: str) -> list[Cell]:
        """The cells of a scale: "smoke", "laptop" or "paper"."""

    def run(self, jobs: Sequence[Job], context: Context) -> Iterable[Result]:
        """Run jobs: one, or several of the same group. Yields each result as soon as it is there, in any order."""


def expand(study: Study, scale: str, seeds: Sequence[int]) -> list[Job]:
    """Every cell with every seed, cell by cell; raises if two have the same name, the same spec or the same seed."""
    choose("scale", scale, SCALES)
    if len(set(seeds)) < len(seeds) or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise ValueError(f"expected seeds that differ and are integers from 0, got {list(seeds)}")
    cells = study.cells(scale)
    for what, values in {"name": [c.name for c in cells], "spec": [c.hash() for c in cells]}.items():
        twice = sorted({c.name for c, value in zip(cells, values, strict=True) if values.count(value) > 1})
        if twice:
            raise ValueError(
                f"expected each cell of {study.name!r} to have its own {what}, got the same for {', '.join(twice)}"
            )
    return [Job(cell, seed) for cell in cells for seed in seeds]


def check_name(name: str, what: str) -> None:
    """Raise unless a name is safe as a file name everywhere."""
    if not SAFE.fullmatch(name):
        raise ValueError(
            f"expected {what} to be at most 100 letters, digits and ._+=,- that begin with a letter or digit, got {name!r}"
        )


def plain(value: Any, where: str) -> Any:
    """The same in plain JSON types: tuples to lists, numpy and torch numbers and arrays to numbers and lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"expected names as keys in the {where}, got {wrong[0]!r}; use str()")
        return {key: plain(entry, where) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry, where) for entry in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"expected plain JSON values in the {where}, got {type(value).__name__}; convert it to numbers or text")


def finite(value: Any) -> Any:
    """The same with NaN and infinities as the words "NaN", "Infinity" and "-Infinity": JSON has no such numbers."""
    # json.dumps has python's own words for them
    return _each(value, lambda leaf: json.dumps(leaf) if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def unfinite(value: Any) -> Any:
    """The inverse of `finite`."""
    return _each(value, lambda leaf: _NON_FINITE.get(leaf, leaf) if isinstance(leaf, str) else leaf)


def _integral(value: Any) -> Any:
    """The same with 1.0 as 1."""
    return _each(value, lambda leaf: int(leaf) if isinstance(leaf, float) and leaf.is_integer() else leaf)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value of plain JSON types with every number, word and None in it changed."""
    if isinstance(value, dict):
        return {key: _each(entry, change) for key, entry in value.items()}
    if isinstance(value, list):
        return [_each(entry, change) for entry in value]
    return change(value)
