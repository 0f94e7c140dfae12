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
        convolutions, products, _ = cudnn.allow_tf32, torch.get_float32_matmul_precision(), matmul.allow_tf32
    except RuntimeError:  # the user chose by the newer names; torch refuses to read the old ones beside them
        yield from _by_the_newer_names([cudnn.conv, cudnn.rnn, matmul])
        return
    try:
        cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


def _by_the_newer_names(parts: list[Any]) -> Iterator[None]:
    before = [part.fp32_precision for part in parts]
    try:
        for part in parts:
            part.fp32_precision = "ieee"
        yield
    finally:
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision
