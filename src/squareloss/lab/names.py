"""Names that people type: the right one, or an error with the list of them and the nearest."""

from __future__ import annotations

from collections.abc import Iterable

from squareloss._checks import nearest

__all__ = ["choose", "nearest"]


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
