"""Numbers with a few significant digits, so that results stay small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from torch import Tensor


@overload
def rounded(values: float, digits: int = 6) -> float: ...


@overload
def rounded(values: Tensor | Sequence[Any], digits: int = 6) -> list[Any]: ...


def rounded(values: Any, digits: int = 6) -> Any:
    """A number, or a list or tensor of them as (nested) lists, with so many significant digits."""
    found = values.tolist() if isinstance(values, Tensor) else values
    return [rounded(value, digits) for value in found] if isinstance(found, (list, tuple)) else float(f"{found:.{digits}g}")
