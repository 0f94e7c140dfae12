"""Fetch the official CIFAR archives: resumed where they stopped, verified before they are unpacked, put in place at once."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squareloss._checks import nearest
from squareloss.lab.data import cifar
from squareloss.lab.data.sources import default_root

Report = Callable[[int, int | None], None]  # bytes so far, bytes in all if known

_TIMEOUT = 60  # seconds without a byte
_PIECE = 1 << 18


@dataclass(frozen=True)
class Archive:
    """Where a data set comes from: its address, its MD5, and the layout it unpacks to."""

    url: str
    md5: str
    layout: cifar.Layout


_SITE = "https://www.cs.toronto.edu/~kriz/"
ARCHIVES = {
    "cifar10": Archive(_SITE + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", cifar.LAYOUTS["cifar10"][0]),
    "cifar100": Archive(_SITE + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", cifar.LAYOUTS["cifar100"][0]),
}


def get(name: str, root: str | Path | None = None, *, progress: bool = False) -> Path:
    """Fetch "cifar10" or "cifar100" into `root` (`default_root()` if None) and return the folder `load` reads.

    A broken download is kept as a .part file and resumed, here as long as each attempt brings something and later by calling
    again. The archive is checked by its MD5 and each file in it by its own sum before anything is put in place. Data that
    are there and whole are left alone; damaged ones are replaced.
    """
    if name not in ARCHIVES:
        raise ValueError(
            f"Unknown data {name!r}. Available: {', '.join(ARCHIVES)} (digits need no download){nearest(name, ARCHIVES)}"
        )
    archive = ARCHIVES[name]
    folder = Path(root) if root is not None else default_root()
    target = folder / archive.layout.folder
    if target.is_dir() and _whole(archive, target):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (archive.url.rpartition("/")[2] + ".part")
    with _bar(name, progress) as report:
        fetch(archive.url, part, report)
    _verify(part, archive)
    _install(archive, part, target)
    part.unlink()
    return target


def fetch(url: str, part: Path, report: Report | None = None) -> None:
    """Download `url` into `part`, going on from the bytes it holds already if the server can."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _attempt(url, part, before, report or (lambda done, total: None)):
                return
            problem = "the connection closed"
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"{url}: the server answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        after = part.stat().st_size if part.exists() else 0
        if after <= before:
            raise OSError(f"{url}: could not download it: {problem}, {after} bytes so far; run it again to resume")


def _attempt(url: str, part: Path, start: int, report: Report) -> bool:
    """One request for the bytes from `start`; whether the file is complete after it."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise
        # nothing lies beyond `start`: either all is here, or the file is longer than the server's and must begin anew
        error.close()
        if _total(error.headers.get("Content-Range")) == start:
            return True
        part.unlink()
        return _attempt(url, part, 0, report)
    with response:
        resumed = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")
        done = start if resumed else 0  # a server without ranges sends everything again
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if resumed else "wb") as out:
            # read1 brings what is there: read would wait for a whole piece, and lose it when the connection falls silent
            while piece := response.read1(_PIECE):
                out.write(piece)
                done += len(piece)
                report(done, total)
    return total is None or done == total


def _total(content_range: str | None) -> int | None:
    size = (content_range or "").rpartition("/")[2]
    return int(size) if size.isdigit() else None


def _verify(part: Path, archive: Archive) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with part.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    if digest.hexdigest() != archive.md5:
        size = part.stat().st_size
        part.unlink()  # or every later call would go on from bytes that are wrong
        raise ValueError(
            f"{archive.url}: expected MD5 {archive.md5}, got {digest.hexdigest()} of {size} bytes: the archive is truncated or "
            "has been tampered with; it was deleted, run it again to start over"
        )


def _install(archive: Archive, packed: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as scratch:
        unpack(packed, Path(scratch))
        fresh = Path(scratch, archive.layout.folder)
        cifar.read(archive.layout, fresh)  # raises unless every file is there and has its sum
        if target.exists():
            target.rename(Path(scratch, "replaced"))
        fresh.rename(target)


def unpack(packed: Path, folder: Path) -> None:
    """Unpack a .tar.gz, by python's own filter where there is one (3.10.12 and later): it writes nothing outside `folder`."""
    try:
        with tarfile.open(packed, "r:gz") as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(folder)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{packed}: could not unpack it: {error}") from error


def _whole(archive: Archive, folder: Path) -> bool:
    try:
        cifar.read(archive.layout, folder)
    except (ValueError, OSError):
        return False
    return True


@contextmanager
def _bar(name: str, progress: bool) -> Iterator[Report | None]:
    if not progress:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns: list[Any] = [TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
    with Progress(*columns) as shown:
        task = shown.add_task(name, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
