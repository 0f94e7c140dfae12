"""Names that people type: the right one, or an error with the list of them and the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, available: Iterable[str]) -> str:
    """The end of a message, "; did you mean 'simplex'?", if one of the names is near; else nothing."""
    by_lower = {known.lower().replace("-", "_"): known for known in available}
    near = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, 1, 0.5)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


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
    raise ValueError(f"Unknown {kind} {name!r}. Available: {listed}{f', or {also}' if also else ''}{nearest(name, names)}")
