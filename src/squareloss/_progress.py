"""Lines on stderr that say how far a solver is and how long it will still take; how all such lines write a time."""

from __future__ import annotations

import sys
import time


class Line:
    """Called with the fraction done; rewrites its line twice a second at most, and is silent unless `show`."""

    def __init__(self, what: str, show: bool) -> None:
        self.what, self.show = what, show
        self.began = time.monotonic()
        self.last = self.began
        self.written = False

    def __call__(self, fraction: float, note: str = "") -> None:
        """So much of the work is done."""
        now = time.monotonic()
        if not self.show or now - self.last < 0.5:
            return
        self.last, self.written = now, True
        left = (now - self.began) * (1 - fraction) / fraction if fraction > 0 else 0.0
        sys.stderr.write(f"\r{self.what}: {fraction:4.0%}{note}, {duration(left)} left    ")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line, if there was one."""
        if self.written:
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
