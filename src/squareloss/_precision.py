"""Float32 that is float32: TF32 off for a while, whichever way the user switched it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def strict_float32() -> Iterator[None]:
    """Float32 means float32: no TF32 in convolutions and products."""
    if not torch.cuda.is_available():
        yield
        return
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    try:
        before = (cudnn.allow_tf32, torch.get_float32_matmul_precision(), matmul.allow_tf32)[:2]
    except RuntimeError:  # the user chose by the newer names; torch refuses to read the old ones beside them
        parts = [cudnn.conv, cudnn.rnn, matmul]
        yield from _with_values([(part, "fp32_precision") for part in parts], ["ieee"] * 3)
        return
    try:
        cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def _with_values(places: list[tuple[Any, str]], values: list[Any]) -> Iterator[None]:
    """Attributes set for a while."""
    before = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), value in zip(places, values, strict=True):
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in zip(places, before, strict=True):
            setattr(owner, name, value)
