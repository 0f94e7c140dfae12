"""A results folder: one small JSON file per cell and seed, written atomically, with heavier artefacts beside it.

folder/<study>/<cell>-<hash>/seed0.json             the record
folder/<study>/<cell>-<hash>/seed0.<artefact name>  what the job left besides, if anything
folder/<study>/<cell>-<hash>/seed0.log              why it failed, if it did
folder/<study>/header-<hash>.json                   what a report needs to know besides, for each set of cells that was run
folder/.scratch/, folder/.leases/                   of runs in progress
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from squareloss._warnings import warn
from squareloss.lab.runs import facts
from squareloss.lab.runs.study import SAFE, Artefact, Job, Result, check_name, finite, hash_of, unfinite

FORMAT = 1
_REASONS = {
    errno.ENOENT: "the folder was deleted or moved meanwhile; start again",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "this folder is not yours to write to; choose another one, or change its permissions",
    errno.EPERM: "this folder is not yours to write to; choose another one, or change its permissions",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would exceed the size limit of this process; raise it (ulimit -f)",
}


class StoreError(OSError):
    """A results folder can't be written, or a file in it can't be read; the message says which and what to do."""


class Damaged(StoreError):
    """A file that should be a result is none: cut short, edited, or of something else."""


@dataclass(frozen=True)
class Record:
    """A result as it lies in the folder: the entries of its JSON file, and `path`, the file."""

    study: str
    cell: str
    spec: Mapping[str, Any]
    hash: str
    seed: int
    status: str
    metrics: Mapping[str, Any]
    seconds: float
    command: str
    commit: str | None
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    date: str
    artefacts: list[str] = field(default_factory=list)
    path: Path = Path()

    def artefact(self, name: str) -> Path:
        """Where an artefact of this result lies."""
        if name not in self.artefacts:
            raise ValueError(f"Unknown artefact {name!r} of {self.path}. Available: {', '.join(self.artefacts) or 'none'}")
        return self.path.with_name(f"{self.path.stem}.{name}")


_TYPES: dict[str, type | tuple[type, ...]] = {
    "study": str, "cell": str, "spec": dict, "hash": str, "seed": int, "status": str, "metrics": dict, "seconds": (int, float),
    "command": str, "commit": (str, type(None)), "versions": dict, "hardware": dict, "date": str, "artefacts": list,
}  # fmt: skip


_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:")
_FILE = re.compile(r"seed\d+\.json")


class Store:
    """A results folder.

    Arguments:
        folder: its path; made if it is not there, unless `create` is False: then it must be there.
    """

    def __init__(self, folder: str | Path, create: bool = True) -> None:
        self.folder = Path(folder).absolute()
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"expected a results folder at {folder}, got a file; pass a folder")
        if create:
            with explained(f"make the results folder {folder}"):
                self.folder.mkdir(parents=True, exist_ok=True)
        elif not self.folder.exists():
            raise StoreError(
                f"expected a results folder at {folder}, found none; run `squareloss compare` or `reproduce` first"
            )

    def path(self, study: str, job: Job) -> Path:
        """Where the record of a job lies, or will lie."""
        return self.folder / study / f"{job.cell.name}-{job.cell.hash()}" / f"seed{job.seed}.json"

    def done(self, study: str, job: Job) -> bool:
        """Whether the job has a result that can be read."""
        try:
            self.read(study, job)
        except (FileNotFoundError, Damaged):
            return False
        return True

    def read(self, study: str, job: Job) -> Record:
        """The record of a job; FileNotFoundError if there is none, Damaged if it is no result."""
        return read(self.path(study, job), job.cell.hash())

    def studies(self) -> list[str]:
        """The names of the studies that have results here."""
        return sorted({path.parts[-3] for path in self.folder.glob("[!.]*/*/seed*.json") if _FILE.fullmatch(path.name)})

    def records(self, study: str | None = None) -> list[Record]:
        """Every record, or those of one study, by study, cell and seed. A damaged file is named in a warning and left out."""
        found = []
        for name in self.studies() if study is None else [study]:
            for path in (self.folder / name).glob("*/seed*.json"):
                if not _FILE.fullmatch(path.name):  # an artefact
                    continue
                try:
                    found.append(read(path))
                except StoreError as error:
                    warn(f"{error}; it is left out")
        return sorted(found, key=lambda r: (r.study, r.cell, r.hash, r.seed))

    def write(self, study: str, result: Result) -> Path:
        """Store a result: its artefacts first, then the record, so that a record that is there is complete."""
        check_name(study, "a study's name")
        path, machine = self.path(study, result.job), result.machine or facts.machine()
        with explained(f"write {path}"):
            for name, content in result.artefacts.items():
                write_atomically(path.with_name(f"{path.stem}.{name}"), encode(name, content))
            record = Record(
                study, result.job.cell.name, result.job.cell.spec, result.job.cell.hash(), result.job.seed, result.status,
                result.metrics, round(result.seconds or 0.0, 3), facts.command(), facts.commit(), machine["versions"],
                machine["hardware"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), sorted(result.artefacts),
            )  # fmt: skip
            _write_record(path, record)
        shutil.rmtree(self.scratch / result.job.key, ignore_errors=True)
        return path

    def adopt(self, study: str, job: Job, other: Record) -> Path:
        """Take over the result of an equal cell of another study: same numbers, this study's and cell's name."""
        path = self.path(study, job)
        with explained(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            for name in other.artefacts:
                _link(other.artefact(name), path.with_name(f"{path.stem}.{name}"))
            _write_record(path, Record(**{**vars(other), "study": study, "cell": job.cell.name, "path": path}))
        return path

    def find_elsewhere(self, study: str, job: Job) -> Record | None:
        """The record of an equal cell of another study, if there is one that can be read."""
        end, file = f"-{job.cell.hash()}", f"seed{job.seed}.json"
        others = [folder for folder in self.folder.glob("[!.]*") if folder.name != study]  # none if the folder was deleted
        for folder in filter(Path.is_dir, others):
            for cell in os.listdir(folder):  # plain names: this is done for every job
                if cell.endswith(end):
                    with suppress(FileNotFoundError, StoreError):
                        return read(folder / cell / file, job.cell.hash())
        return None

    def write_log(self, study: str, job: Job, text: str) -> Path:
        """Keep why a job failed beside the place of its result."""
        path = self.path(study, job).with_suffix(".log")
        with explained(f"write {path}"):
            write_atomically(path, text.encode())
        return path

    def set_aside(self, study: str, job: Job) -> Path:
        """Rename a damaged record to *.corrupt, out of the way but not lost."""
        path = self.path(study, job)
        with explained(f"rename {path}"):
            return path.rename(path.with_suffix(".json.corrupt"))

    @property
    def scratch(self) -> Path:
        """Where jobs keep checkpoints while they run."""
        return self.folder / ".scratch"

    def check_writable(self) -> None:
        """Raise a StoreError unless files can be written here."""
        with explained(f"write to the results folder {self.folder}"), tempfile.TemporaryFile(dir=self.folder) as file:
            file.write(b"\0" * 4096)


def read(path: Path, expected_hash: str | None = None) -> Record:
    """The record in a file; FileNotFoundError if there is none, Damaged if it is no result."""
    try:
        content = json.loads(path.read_bytes(), parse_int=_integer)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"could not read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"expected JSON in {path}, got something else ({error})") from error
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise StoreError(f"{path} has format {version}, this version of squareloss reads up to {FORMAT}; upgrade squareloss")
    wrong = (
        [k for k, kind in _TYPES.items() if not isinstance(content.get(k), kind)] if isinstance(version, int) else ["format"]
    )
    if not wrong and not _DATE.match(content["date"]):
        wrong = ["date"]
    if not wrong and not all(isinstance(name, str) and SAFE.fullmatch(name) for name in content["artefacts"]):
        wrong = ["artefacts"]
    if wrong:
        raise Damaged(f"expected a result in {path}, got one without a valid {wrong[0]!r}")
    if expected_hash not in (None, content["hash"]):
        raise Damaged(f"expected the result of cell {expected_hash} in {path}, got that of {content['hash']}")
    try:
        entries = {key: content[key] for key in _TYPES} | {key: unfinite(content[key]) for key in ("spec", "metrics")}
        planned = hash_of(entries["spec"])
    except RecursionError as error:
        raise Damaged(f"expected a result in {path}, got lists within lists without end") from error
    if planned != entries["hash"]:
        raise Damaged(f"expected the spec of cell {entries['hash']} in {path}, got another")
    return Record(**entries, path=path)


def _integer(text: str) -> int:
    """An integer as JSON has it, of any number of digits; ValueError for one that no float can hold."""
    if not math.isfinite(float(text)):
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def encode(name: str, content: Artefact) -> bytes:
    """An artefact as the bytes of its file: tensors by name become safetensors."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    if not name.endswith(".safetensors"):
        raise ValueError(f"expected a name that ends in .safetensors for an artefact of tensors, got {name!r}")
    from safetensors.torch import save

    return save({key: tensor.detach().cpu().contiguous() for key, tensor in content.items()})


def write_atomically(path: Path, content: bytes, sync: bool = True) -> None:
    """Write a file so that a reader sees the old one or the new one, never half; with `sync`, after a loss of power too.

    What is no file, such as a pipe, /dev/stdout or /dev/null, is written to as it stands.
    """
    if is_stream(path):
        with path.open("ab") as stream:
            stream.write(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_stream(path: Path) -> bool:
    """A device or a pipe; or a way to a file that is open already, as /dev/stdout is where a shell sends it to a file.

    /dev/stdout is a link into /proc, /dev/fd/1 a link there.
    """
    opened = path.is_symlink() and any(at.is_relative_to("/proc") for at in (path.readlink(), path.parent.resolve()))
    return opened or (path.exists() and not path.is_file() and not path.is_dir())


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an OSError within into a StoreError that says what could not be done, why, and that the rest is safe."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(f"could not {what}: {reason}. Results written before are intact.") from error


def _write_record(path: Path, record: Record) -> None:
    """A sync takes some 10 ms: a result that took much less is not worth it, and if cut short is seen to be and done again."""
    entries = {"format": FORMAT, **asdict(record)}
    del entries["path"]
    text = json.dumps(finite(entries), indent=1, allow_nan=False)
    write_atomically(path, text.encode() + b"\n", sync=record.seconds > 0.1)
    path.with_suffix(".log").unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    """A hard link where the file system has them, else a copy, put in place at once; nothing if the source was deleted."""
    temporary = _beside(target)
    try:
        try:
            os.link(source, temporary)
        except FileNotFoundError:
            return
        except OSError:
            return write_atomically(target, source.read_bytes())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)  # where both are links to one file already, replacing leaves it


def _beside(path: Path) -> Path:
    """A hidden name of its own in the same folder, for a file that is to take the place of another."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
