"""A fit that is refused or interrupted leaves an estimator as it was before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def all_or_nothing(estimator: Any) -> Iterator[None]:
    """Put all attributes back if what is done here is refused; what they hold is not copied: change it last, or a copy."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:  # Ctrl-C too
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
