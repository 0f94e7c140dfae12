"""What a report needs to know of a study besides its results: kept beside them, a file for each of its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from squareloss._warnings import warn
from squareloss.lab.runs.store import Store, StoreError, explained, write_atomically


@dataclass(frozen=True)
class Column:
    """A measure: a scalar of that key in the metrics of each result.

    Arguments:
        key: its name in the metrics.
        label: what people call it.
        better: "higher", "lower", or "" where neither is.
        percent: a share, shown times 100.
        shared: it does not depend on how probabilities are read, so rows of one network have the same value.
        digits: after the point, as shown.
    """

    key: str
    label: str
    better: str = ""
    percent: bool = False
    shared: bool = True
    digits: int = 4

    def show(self, value: float | None, signed: bool = False) -> str:
        """A value as text; a dash where there is none."""
        if value is None or value != value:
            return "–"
        digits = 2 if self.percent else self.digits
        return f"{100 * value if self.percent else value:{'+' if signed else ''}.{digits}f}"

    @property
    def heading(self) -> str:
        """The label, with the unit."""
        return f"{self.label} (%)" if self.percent else self.label


@dataclass(frozen=True)
class Claim:
    """A direction that the paper claims: row `better` beats row `worse` in the column `key`."""

    key: str
    better: str
    worse: str
    text: str = ""


@dataclass(frozen=True)
class Header:
    """A study with some settings, which its cells stand for, as a report shows it.

    Arguments:
        study: its name, under which the results lie.
        title: one line.
        command: that gave the results, in full.
        seeds: that were asked for.
        rows: what is compared, in order: cells, or cells with the suffix of a reading ("ce+temperature").
        hashes: the spec hash of each cell, so that results of other cells and settings in the folder stay out; empty takes all.
        columns: what is shown; empty shows every scalar there is.
        baseline: the row that differences are taken to; "" for none.
        overlap: test samples per training sample where each seed draws its own split, else 0: see `statistics.paired`.
        paper: the paper's values, by row and key, as [mean, std, number of runs]; std and number may be None.
        claims: directions the paper claims.
        facts: names and values that describe the setting.
        cut: what was cut to save time, one sentence each.
        notes: what else one should know, one sentence each.
        in_pieces: the seeds that earlier and other runs have of these cells are shown too.
        date: when it was written.
    """

    study: str
    title: str
    command: str = ""
    seeds: Sequence[int] = ()
    rows: Sequence[str] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[Column] = ()
    baseline: str = ""
    overlap: float = 0.0
    paper: Mapping[str, Mapping[str, Sequence[float | None]]] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    facts: Sequence[tuple[str, str]] = ()
    cut: Sequence[str] = ()
    notes: Sequence[str] = ()
    in_pieces: bool = False
    date: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("seeds", "rows", "columns", "claims", "facts", "cut", "notes"):  # ranges and lists too
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def key(self) -> str:
        """The same for the same cells: twelve hexadecimal digits."""
        return hashlib.sha256(json.dumps(sorted(self.hashes.items())).encode()).hexdigest()[:12]

    def write(self, store: Store) -> Path:
        """Keep it in the results folder, in place of the one before of the same cells."""
        path = store.folder / self.study / f"header-{self.key}.json"
        content = asdict(self) | {"date": datetime.now(timezone.utc).isoformat(timespec="microseconds")}
        with explained(f"write {path}"):
            write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
        return path


def read(store: Store, study: str) -> list[Header]:
    """The headers of a study, the last written first, one for the same cells; a damaged one is left out with a warning."""
    found = list[Header]()
    for path in (store.folder / study).glob("header-*.json"):
        try:
            found.append(_read(path))
        except StoreError as error:
            warn(f"{error}; it is left out")
    last: dict[str, Header] = {}
    for header in sorted(found, key=lambda header: header.date, reverse=True):
        last.setdefault(header.key, header)
    return list(last.values())


def _read(path: Path) -> Header:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if not isinstance(content["hashes"], dict) or not isinstance(content.get("date", ""), str):
            raise TypeError("'hashes' or 'date' is of another type")
        columns, claims = content.pop("columns"), content.pop("claims")
        facts = [(str(name), str(value)) for name, value in content.pop("facts")]
        return Header(
            columns=[Column(**column) for column in columns],
            claims=[Claim(**claim) for claim in claims],
            facts=facts,
            **content,
        )
    except OSError as error:
        raise StoreError(f"could not read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"expected the description of a study in {path}, got something else ({error})") from error
