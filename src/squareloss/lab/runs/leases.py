"""Leases: processes that share a results folder, on one machine or on many, never do the same job at the same time.

A lease is a small file, made with O_EXCL, that names its holder; while the holder lives, a thread touches it every few seconds.
A lease is void if its holder is known to be dead (same machine, no such process) or has been silent for long (any other
machine): by the time of its file, or, should a clock have been set back, by ours since we first saw that time. Then it is taken
over, and two processes that try this at once must not both succeed. So nothing is renamed or overwritten: files are numbered,
the highest number counts, and lease n is taken over by making file n + 1, again with O_EXCL.

    .leases/<job key>.0    held by a process that was killed
    .leases/<job key>.1    took over
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from squareloss.lab.runs.interrupts import whole
from squareloss.lab.runs.store import explained

HEARTBEAT = 10.0  # seconds between two touches
EXPIRY = 120.0  # seconds of silence that void a lease of another machine: network file systems may show times a minute late


class Leases:
    """The leases of one process in a folder. Use it as a context manager: leaving it gives back all that are held.

    Arguments:
        folder: where the files lie.
        heartbeat, expiry: seconds between two touches, and of silence that void a lease.
    """

    def __init__(self, folder: Path, heartbeat: float = HEARTBEAT, expiry: float = EXPIRY) -> None:
        self.folder, self.heartbeat, self.expiry = folder, heartbeat, expiry
        self.held: dict[str, Path] = {}
        self._me = {"token": uuid.uuid4().hex, **_identity()}
        self._seen: dict[Path, tuple[float, float]] = {}  # of other machines: touched when, and since when we see that
        self._stop = threading.Event()

    def __enter__(self) -> Leases:
        with explained(f"make the folder {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._beat, name="leases", daemon=True)
        self._thread.start()
        return self

    @whole()
    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for key in list(self.held):
            self.release(key)

    @whole()
    def acquire(self, key: str) -> bool:
        """Try to get the lease of a job. Look afterwards whether the job has been done meanwhile by whoever held it before."""
        current = self._current(key)
        content = None if current is None else _content(current)
        if current is not None and (content is None or self._valid(current, content)):
            return False
        path = self.folder / f"{key}.{0 if current is None else _number(current) + 1}"
        if not _create(path, json.dumps(self._me).encode()):
            return False
        if current is not None and _content(current) != content:
            # the void one was taken over, given back and perhaps taken anew since we looked: ours is built on sand
            path.unlink(missing_ok=True)
            return False
        self.held[key] = path
        return True

    @whole()
    def release(self, key: str) -> None:
        """Give a lease back."""
        mine = self.held.pop(key, None)
        if mine is not None and self._ours(mine):
            # the void ones below go first: were ours gone before them, it could be made again by someone who saw them long ago
            with suppress(OSError):  # a disk that refuses: void when this process ends
                for path in sorted(self._all(key), key=_number):
                    if _number(path) <= _number(mine):
                        path.unlink(missing_ok=True)

    def mine(self, key: str) -> bool:
        """Whether a lease is still ours: a machine that slept longer than `expiry` may have lost it."""
        path = self.held.get(key)
        return path is not None and self._current(key) == path and self._ours(path)

    def holder(self, key: str) -> str | None:
        """Who holds the lease of a job, in words; None if nobody does."""
        current = self._current(key)
        content = None if current is None else _content(current)
        if current is None or content is None or not self._valid(current, content):
            return None
        return f"process {content.get('pid', '?')} on {content.get('host', '?')}"

    def _all(self, key: str) -> list[Path]:
        return [path for path in self.folder.glob(f"{key}.*") if path.suffix[1:].isdigit()]

    def _current(self, key: str) -> Path | None:
        return max(self._all(key), key=_number, default=None)

    def _ours(self, path: Path) -> bool:
        return bool((_content(path) or {}).get("token") == self._me["token"])

    def _valid(self, path: Path, content: dict[str, Any]) -> bool:
        if content.get("place") == self._me["place"] and content.get("start") is not None:
            return bool(content["start"] == _process_start(content.get("pid")))
        try:
            touched, here = path.stat().st_mtime, time.monotonic()
        except FileNotFoundError:
            return False
        before, since = self._seen.get(path, (touched, here))
        since = since if before == touched else here
        self._seen[path] = touched, since
        return max(self._now() - touched, here - since) < self.expiry

    def _now(self) -> float:
        """The time by the clock of the file system, which may differ from this machine's: that of a file touched now."""
        probe = self.folder / f".{self._me['token']}"
        with explained(f"write {probe}"):
            probe.touch()
            now = probe.stat().st_mtime
            probe.unlink()
        return now

    def _beat(self) -> None:
        while not self._stop.wait(self.heartbeat):
            for path in list(self.held.values()):
                with suppress(OSError):  # lost, or a hiccup of the file system: `mine` tells before a result is written
                    os.utime(path)


def _create(path: Path, content: bytes) -> bool:
    """Make a file that was not there; False if it was."""
    with explained(f"write {path}"):
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, content)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
    return True


def _content(path: Path) -> dict[str, Any] | None:
    """What a lease says; None if it is gone, nothing if it is half written: then its age decides."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(path: Path) -> int:
    return int(path.suffix[1:])


def _identity() -> dict[str, Any]:
    """This process, and the place where its number means anything: a boot of a machine, a namespace of processes."""
    place = [platform.node(), _read("/proc/sys/kernel/random/boot_id"), _target("/proc/self/ns/pid")]
    return {"host": platform.node(), "pid": os.getpid(), "place": place, "start": _process_start(os.getpid())}


def _process_start(pid: Any) -> str | None:
    """When a process started, in the kernel's ticks, so that a later process of the same number is not taken for it.

    None if there is no such process, if it is a zombie, or if the system does not tell.
    """
    text = _read(f"/proc/{pid}/stat") if isinstance(pid, int) else None  # a lease may say anything
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces
    return None if fields[0] in ("Z", "X") else fields[19]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
