"""Text of strangers, made harmless, and warnings as one line each."""

from __future__ import annotations

import re
import warnings

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines


def harmless(text: str) -> str:
    """The same with control characters, by which a name in a stranger's file could write over a terminal, written out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def plain_warnings() -> None:
    """Show warnings in this process as one line each, without the file and the line of code that they come from."""
    warnings.formatwarning = lambda message, *_: f"squareloss: {harmless(str(message))}\n"
