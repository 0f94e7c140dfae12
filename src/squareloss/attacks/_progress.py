"""A line on stderr that says where a long evaluation is and when it will end."""

from __future__ import annotations

import math
import sys
import time

from torch import Tensor

from squareloss._progress import duration, every, put

_KEEP = 0.995  # of what was measured, with each step: the rate is that of the last two hundred or so
_STEEPEST = 0.5  # power of the passes that points are expected to fall by, at most: most of those that break do so early


class Progress:
    """Writes a line now and then, in a terminal or notebook always the same one; off unless `show`."""

    def __init__(self, show: bool) -> None:
        self.show = show
        self.began = time.monotonic()
        self._clock: float | None = None  # when the last step ended
        self._work = self._seconds = 0.0
        self._last = 0.0
        self._width = 0

    def pause(self) -> None:
        """The next step is not timed: it makes ready for those after it."""
        self._clock = None

    def tick(self, work: float) -> bool:
        """A step did so much work, in any unit; returns whether the line is due."""
        now, before = time.monotonic(), self._clock
        self._clock = now
        if before is not None:
            self._work, self._seconds = _KEEP * self._work + work, _KEEP * self._seconds + now - before
        return self.show and now - self._last >= every()

    def tell(self, text: str, left: float) -> None:
        """Write the line; so much work is expected to come."""
        self._last = time.monotonic()
        rest = f", about {duration(self._seconds / self._work * left)} left" if self._work else ""
        self._width = put(f"{text}, {duration(self._last - self.began)}{rest}", self._width)

    def close(self, text: str) -> None:
        """The last words."""
        if self.show:
            self._width = put(text, self._width)
            self.end_line()

    def end_line(self) -> None:
        """What is written next begins a line."""
        if self._width:
            sys.stderr.write("\n")
            self._width = 0


def to_come(fell: Tensor, since: float, seen: float, whole: float) -> float:
    """The mean of the passes to come, of a point that stands after `since` of them.

    Up to `seen` as for points known so far, and one more that stands to the end. From there on the share that breaks is taken
    to be the same each time the passes double, since points break early or late.

    Arguments:
        fell: after how many passes the points known so far broke (n,), infinite for those that stand.
        since, seen, whole: passes; `since` <= `seen` <= `whole`, which a point that stands to the end takes.
    """
    half, now, then = (1 + int((fell > passes).sum()) for passes in (seen / 2, seen, since))
    power = 1 - min(math.log2(half / now), _STEEPEST)
    later = seen / power * (math.pow(whole / seen, power) - 1)  # of one that stands after `seen`
    known = float((fell.clamp(max=seen) - since).clamp(min=0).sum()) + seen - since
    return (known + now * later) / then
