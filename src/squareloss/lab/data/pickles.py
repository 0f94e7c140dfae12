"""Read a pickle of bytes, numbers, lists, dicts and byte arrays, and nothing else.

A pickle is a program: the ordinary reader imports and calls whatever it names. This one knows three names, those numpy
writes for an array, and answers them with two inert classes of its own. Any other name is refused, so a stranger's file
can run no code here, not even numpy's.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt


class _Dtype:
    """Stands for numpy.dtype: keeps the code and ignores the rest."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Byte order and padding say nothing about single bytes."""


class _Array:
    """Stands for numpy.ndarray and its constructor: shape and bytes come with the state, if it comes."""

    value: npt.NDArray[np.uint8] | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1") or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("expected arrays of unsigned bytes")
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a data file has no use for")
        return _KNOWN[module, name]


def read_pickle(data: bytes, what: str) -> dict[str, Any]:
    """The dict in a pickle, with text keys and byte arrays as numpy arrays; ValueError naming `what` for anything else."""
    try:
        found = _Reader(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # the unpickler raises anything at all on bytes that are no pickle
        raise ValueError(f"{what}: refused, not a pickle of plain data: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{what}: expected a pickled dict, got {type(found).__name__}")
    return {_text(key): value.value if isinstance(value, _Array) else value for key, value in found.items()}


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
