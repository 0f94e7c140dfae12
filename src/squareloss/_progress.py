"""Lines on stderr that say how far a solver is and how long it will still take; how all such lines write a time."""

from __future__ import annotations

import sys
import time


def every() -> float:
    """Seconds between two lines: where one is written over the one before, or in a file, in which all of them stay."""
    return 0.5 if _rewrites() else 5.0


def put(line: str, width: int) -> int:
    """Write a line, over the one before of this width if that can be; returns the width to write over next, or to end."""
    over = _rewrites()
    sys.stderr.write("\r" + line.ljust(width) if over else line + "\n")
    sys.stderr.flush()
    return len(line) if over else 0


def _rewrites() -> bool:
    """Whether a line can be written over: in a terminal, and in a notebook, whose stream says that it is none."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")


class Line:
    """Called with the fraction done; writes a line now and then, and is silent unless `show`."""

    def __init__(self, what: str, show: bool) -> None:
        self.what, self.show = what, show
        self.began = time.monotonic()
        self.last = self.began
        self.width = 0

    def __call__(self, fraction: float, note: str = "") -> None:
        """So much of the work is done."""
        now = time.monotonic()
        if not self.show or now - self.last < every():
            return
        self.last = now
        left = (now - self.began) * (1 - fraction) / fraction if fraction > 0 else 0.0
        self.width = put(f"{self.what}: {fraction:4.0%}{note}, {duration(left)} left", self.width)

    def close(self) -> None:
        """End the line, if there was one."""
        if self.width:
            sys.stderr.write("\n")


def announce(what: str, seconds: float) -> None:
    """Say how long a step will take that cannot be looked into, if that is two seconds or more."""
    if seconds >= 2:
        sys.stderr.write(f"{what}: about {duration(seconds)}\n")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """Seconds in words: "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
