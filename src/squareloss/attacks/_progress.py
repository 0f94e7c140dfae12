"""A line on stderr that says where a long evaluation is and when it will end."""

from __future__ import annotations

import sys
import time


class Progress:
    """Rewrites one line at most twice a second; off unless `show`."""

    def __init__(self, show: bool) -> None:
        self.show = show
        self.began = time.monotonic()
        self.done = 0.0
        self._last = 0.0
        self._width = 0

    def tick(self, work: float, left: float, text: str) -> None:
        """So much work was done and at most so much is left, in any unit."""
        self.done += work
        now = time.monotonic()
        if not self.show or now - self._last < 0.5:
            return
        self._last = now
        seconds = now - self.began
        remaining = seconds / self.done * left if self.done else 0.0
        self._write(f"{text}, {_duration(seconds)}, at most {_duration(remaining)} left")

    def close(self, text: str) -> None:
        """The last words."""
        if self.show:
            self._write(text)
            sys.stderr.write("\n")

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
