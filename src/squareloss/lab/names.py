"""Names that people type: the right one, or an error with all of them and the nearest; and text of strangers, made harmless."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

from squareloss._checks import nearest

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines


def harmless(text: str) -> str:
    """The same with control characters, by which a name in a stranger's file could write over a terminal, written out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def plain_warnings() -> None:
    """Show warnings in this process as one line each, without the file and the line of code that they come from."""
    warnings.formatwarning = lambda message, *_: f"squareloss: {harmless(str(message))}\n"


def choose(kind: str, name: str, available: Iterable[str], also: str = "") -> str:
    """`name` if it is one of `available`; else ValueError with all of them and the nearest match.

    Arguments:
        kind: what is chosen, for the message: "loss", "model", "study".
        name: what was asked for.
        available: the names there are.
        also: what else could have been given, in words.
    """
    names = list(available)
    if name in names:
        return name
    listed = ", ".join(names) or "none"
    raise ValueError(f"Unknown {kind} {name!r}. Available: {listed}{f', or {also}' if also else ''}{nearest(str(name), names)}")
