"""Ctrl-C and SIGTERM: both raise KeyboardInterrupt, and neither cuts in two a step that must be whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM, by which Slurm and Kubernetes end a job, do what Ctrl-C does: checkpoints are saved, leases given back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(signum: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell started it in the background: Ctrl-C is not for it
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def whole() -> Iterator[None]:
    """A step that Ctrl-C and SIGTERM do not cut in two: they are heard when it is over.

    An exception may come out of a handler after any instruction, also right after a call has made a file and before its caller
    has noted it. So for the time of the step, handlers are replaced by one that takes a note.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread alone
        yield
        return
    heard: list[int] = []
    # SIGINT is the first to be replaced and the last to be put back, for the handler of SIGTERM raises it
    replaced = {sign: handler for sign in (signal.SIGINT, signal.SIGTERM) if callable(handler := signal.getsignal(sign))}
    for sign in replaced:
        signal.signal(sign, lambda signum, frame: heard.append(signum))
    try:
        yield
    finally:
        for sign in reversed(replaced):
            signal.signal(sign, replaced[sign])
        if heard:
            signal.raise_signal(heard[0])
