"""From a study to its report in one call, for the command line: introduce, execute, write the page, conclude."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from rich.console import Console

from squareloss._checks import choose
from squareloss.lab import report
from squareloss.lab.plain import harmless
from squareloss.lab.report import console as terminal
from squareloss.lab.report.header import Header, read
from squareloss.lab.report.words import nothing_trained
from squareloss.lab.runs import SCALES, Cell, Context, Job, Result, Store, Study
from squareloss.lab.runs.execute import ENGINES, check_device, check_engine, execute
from squareloss.lab.runs.facts import command, cores
from squareloss.lab.runs.live import watch
from squareloss.lab.studies import STUDIES, get


@dataclass(frozen=True)
class Options:
    """How to execute: see `runs.execute`. An engine "auto" is a pool of processes on several cores, this process else."""

    engine: str = "auto"
    workers: int | None = None
    address: str | None = None
    device: str = "auto"
    force: bool = False
    quiet: bool = False
    tensorboard: Path | None = None


def carry_out(study: Study, scale: str, seeds: Sequence[int], header: Header, folder: Path, options: Options) -> int:
    """Run a study into a folder, print and write its report; returns how many jobs failed, and 1 if all of them diverged."""
    engine = _engine(options)
    console = Console()
    store = Store(folder)
    header.write(store)
    terminal.introduce(header, console)
    outcome = execute(
        study, scale, seeds, store, engine, force=options.force, workers=options.workers, address=options.address,
        device=None if options.device == "auto" else options.device, progress=watch(options.quiet, options.tensorboard),
    )  # fmt: skip
    if outcome.failures:
        Console(stderr=True).print(harmless(outcome.message()), markup=False, highlight=False)
    if not outcome.records:
        return len(outcome.failures)
    path = report.write(folder)
    made = report.of(header, store.records(study.name), read(store, study.name))
    terminal.conclude(made, console)
    console.print(f"\nreport: {os.path.relpath(path)}", markup=False, highlight=False, soft_wrap=True)
    nothing = bool(header.baseline) and nothing_trained(made.rows)  # and so nothing to compare
    return len(outcome.failures) or int(nothing)


def _engine(options: Options) -> str:
    """The engine that is asked for, or that fits; raises for options that can't be, before anything is written."""
    engine = choose("engine", options.engine, ("auto", *ENGINES))
    engine = _fitting_engine(options) if engine == "auto" else engine
    check_engine(engine, options.workers, options.address)
    check_device(options.device, elsewhere=engine == "ray")
    if options.tensorboard is not None and options.tensorboard.exists() and not options.tensorboard.is_dir():
        raise ValueError(f"expected --tensorboard to be a folder, got the file {options.tensorboard}")
    return engine


def _fitting_engine(options: Options) -> str:
    if options.address is not None:
        return "ray"
    on_cpu = options.device == "cpu" or (options.device == "auto" and not torch.cuda.is_available())
    return "processes" if on_cpu and cores() > 1 and options.workers != 1 else "local"


def header_of(study: Study, scale: str, seeds: Sequence[int]) -> Header:
    """The header of a study, from what it says of itself."""
    cells, paper, options = _cells(study, scale), getattr(study, "paper", {}), getattr(study, "options", {})
    return Header(
        study=study.name,
        title=f"{study.name}: {study.summary}",
        command=command(),
        seeds=list(seeds),
        rows=study.rows(scale) if hasattr(study, "rows") else [cell.name for cell in cells],
        hashes={cell.name: cell.hash() for cell in cells},
        columns=getattr(study, "columns", ()),
        baseline=getattr(study, "baseline", ""),
        paper=paper(scale) if callable(paper) else paper,
        claims=getattr(study, "claims", ()),
        facts=[
            ("scale", scale),
            *((name, str(getattr(study, name))) for name in options),
            ("cost", study.cost.get(scale, "not known")),
            ("seeds", str(len(seeds))),
        ],
        in_pieces=True,
    )


def _cells(study: Study, scale: str) -> list[Cell]:
    """Of a scale; ValueError with the list of them if there is no such scale."""
    return study.cells(choose("scale", scale, SCALES))


def seeds_of(study: Study, scale: str) -> int:
    """How many seeds a study has at a scale: its own `seeds`, a number by scale, else 3."""
    seeds: int = getattr(study, "seeds", {}).get(choose("scale", scale, SCALES), 3)
    return seeds


def parse_seeds(text: str) -> Sequence[int]:
    """The seeds of "3" (0, 1 and 2), and of a list such as "0,2,4", "2-5" or "7,"."""
    if re.fullmatch(r"[1-9]\d*", text):
        return range(int(text))
    parts = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in text.removesuffix(",").split(",")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    if not all(parts) or not all(ranges) or text.isdigit():
        raise ValueError(f"expected --seeds to be a number of seeds such as 3, or a list such as 0,2,4 or 2-5, got {text!r}")
    return sorted(set().union(*ranges))


@dataclass
class Selection:
    """Some cells of a study, for `execute`."""

    study: Study
    names: frozenset[str]
    name: str
    summary: str
    cost: Mapping[str, str]

    def cells(self, scale: str) -> list[Cell]:
        """Those that were chosen."""
        return [cell for cell in self.study.cells(scale) if cell.name in self.names]

    def run(self, jobs: Sequence[Job], context: Context) -> Iterable[Result]:
        """As the study does."""
        return self.study.run(jobs, context)


def chosen(study: Study, scale: str, patterns: str | None) -> Study:
    """The study with the cells alone whose names match one of "resnet18-*,*-clean"; each pattern must match one."""
    if patterns is None:
        return study
    names = [cell.name for cell in _cells(study, scale)]
    kept: set[str] = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        found = [name for name in names if fnmatchcase(name, pattern)]
        kept.update(found or [choose(f"cell of {study.name} at scale {scale}", pattern, names)])
    if not kept:
        raise ValueError(f"expected --cells to be names or patterns such as '*-clean', got {patterns!r}")
    return Selection(study, frozenset(kept), study.name, study.summary, study.cost)


def with_settings(study: Study, settings: Sequence[str]) -> Study:
    """The study with some of its `options` (fields of its dataclass, each with a help text) set, as in ["lr=0.01"]."""
    options: Mapping[str, str] = getattr(study, "options", {})
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"expected --set NAME=VALUE, got {setting!r}")
        default = getattr(study, choose(f"setting of {study.name}", name, options))
        try:
            values[name] = type(default)(text)
        except ValueError as error:
            raise ValueError(f"expected {name} to be like {default!r}, got {text!r}") from error
    return replace(study, **values) if values else study  # type: ignore[type-var]


def listing(width: int = 100) -> str:
    """All studies, what they are about, what each scale costs and what can be set, in lines of that width, 40 at least."""
    width = max(40, width)
    lines = ["squareloss reproduce NAME --scale smoke|laptop|paper (smoke: seconds)", ""]
    settings: dict[str, list[str]] = {}
    for name in STUDIES:
        study = get(name)
        costs = [f"{scale}: {cost}" for scale, cost in study.cost.items() if (scale, cost) != ("smoke", "seconds")]
        lines += _beside(name, [study.summary, *costs], width)
        for option, told in getattr(study, "options", {}).items():
            settings.setdefault(f"--set {option}={getattr(study, option)}: {told}", []).append(name)
    for setting, names in settings.items():
        lines += ["", *wrap(setting, width, subsequent_indent="    ")]
        lines += wrap(f"in {', '.join(names)}", width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _beside(name: str, texts: Sequence[str], width: int) -> list[str]:
    """A name, and texts in the column to its right; what goes on over a line is indented."""
    column = 21
    lines = [line for i, text in enumerate(texts) for line in wrap(text, width - column, subsequent_indent="  " if i else "")]
    return [f"{name if not i else '':<{column}}{line}" for i, line in enumerate(lines)]
