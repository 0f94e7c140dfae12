"""From records to the rows of a report: one per cell, or per reading of a cell's probabilities, over its seeds."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from squareloss.lab.report.header import Column, Header
from squareloss.lab.report.statistics import Difference, Summary, bootstrapped, paired, summarise
from squareloss.lab.runs.store import Record

REPLICATES = "replicates.safetensors"  # artefact of bootstrap replicates, for intervals when there is only one seed


@dataclass(frozen=True)
class Row:
    """One row: the metrics of each seed, those of its reading among them.

    Arguments:
        name: of the row, the cell's with the reading's suffix.
        cell: of which it is a reading.
        metrics: by seed.
        replicates: bootstrap replicates by key, if there is one seed and it has some.
        diverged: seeds whose training gave no network.
    """

    name: str
    cell: str
    metrics: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    replicates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    diverged: Sequence[int] = ()

    def values(self, key: str) -> dict[int, float]:
        """The scalar `key` by seed, where there is one."""
        found = {seed: metrics.get(key) for seed, metrics in self.metrics.items()}
        return {seed: float(value) for seed, value in found.items() if isinstance(value, numbers.Real)}

    def summary(self, key: str) -> Summary:
        """Mean and standard deviation of a scalar, to ten digits, since 1 - 0.9 is not quite 0.1."""
        return summarise([float(f"{value:.10g}") for value in self.values(key).values()])

    def parts(self, key: str) -> list[Mapping[str, Any]]:
        """What each seed has for figures under `key`."""
        return [metrics[key] for metrics in self.metrics.values() if isinstance(metrics.get(key), Mapping)]


def one_per_cell(rows: Sequence[Row]) -> list[Row]:
    """The first row of each cell."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row.cell, row)
    return list(found.values())


def asked_for(records: Sequence[Record], header: Header) -> list[Record]:
    """Those of the header's study, cells and seeds; a header that names no cells, or no seeds, asks for all."""
    mine = [r for r in records if r.study == header.study and (not header.hashes or header.hashes.get(r.cell) == r.hash)]
    return [r for r in mine if not header.seeds or header.in_pieces or r.seed in header.seeds]


def rows_of(records: Sequence[Record], header: Header) -> list[Row]:
    """The rows of a study, in the order of the header; a row without results is there, but empty."""
    kept = asked_for(records, header)
    names = list(header.rows) or list(dict.fromkeys(name for r in kept for name in _names(r)))
    cells = {r.cell for r in kept}
    return [_row(name, name if name in cells else name.partition("+")[0], kept) for name in names]


def columns_of(rows: Sequence[Row], header: Header) -> list[Column]:
    """The columns that have a value somewhere; without a header's list, every scalar there is."""
    if header.columns:
        return [column for column in header.columns if any(row.values(column.key) for row in rows)]
    keys = dict.fromkeys(key for row in rows for metrics in row.metrics.values() for key in metrics)
    return [Column(key, key.replace("_", " ")) for key in keys if any(row.values(key) for row in rows)]


def difference(row: Row, other: Row, column: Column, overlap: float) -> Difference | None:
    """row - other in a column: paired by seed, or of one seed by the bootstrap of its test points.

    Not of calibration errors, whose differences such intervals hold far too seldom (docs/calibration.md).
    """
    found = paired(row.values(column.key), other.values(column.key), overlap)
    mine, theirs = row.replicates.get(column.key), other.replicates.get(column.key)
    if found is None or found.low is not None or mine is None or theirs is None or "ece" in column.key.split("_"):
        return found
    (a,), (b,) = (r.values(column.key).values() for r in (row, other))
    return bootstrapped(a, b, mine, theirs, medians=column.key == "margin")  # of the points' distances


def _names(record: Record) -> list[str]:
    return [record.cell + suffix for suffix in record.metrics.get("readings", {"": None})]


def _row(name: str, cell: str, records: Sequence[Record]) -> Row:
    mine = [r for r in records if r.cell == cell]
    done = [r for r in mine if r.status == "done"]
    suffix = name.removeprefix(cell)
    metrics = {r.seed: {**r.metrics, **r.metrics.get("readings", {}).get(suffix, {})} for r in done}
    replicates = _replicates(done[0], suffix) if len(done) == 1 else {}
    return Row(name, cell, metrics, replicates, [r.seed for r in mine if r.status == "diverged"])


def _replicates(record: Record, suffix: str) -> dict[str, Sequence[float]]:
    """Replicates by key, those of the reading in place of the shared ones."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if REPLICATES not in record.artefacts:
        return {}
    try:
        found = {key: values.tolist() for key, values in load_file(record.artefact(REPLICATES)).items()}
    except (OSError, SafetensorError):
        return {}  # no interval then; the numbers stand
    return found | {key.removesuffix(suffix): values for key, values in found.items() if key.endswith(suffix)}
