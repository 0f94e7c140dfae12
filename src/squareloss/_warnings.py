"""Warnings that point at the line which called the library, however deep in it they arise."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the caller of the outermost function of this package: what lies between, as torch's decorators, is no help."""
    frame, depth, level = sys._getframe(1), 2, 2
    while frame.f_back is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "squareloss":
            level = depth + 1
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=level)
