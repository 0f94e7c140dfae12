"""Small pictures inside results: fields of numbers in [0, 1] and lines in a box, as short texts; and a field as a PNG."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Line = Sequence[tuple[float, float]]
_UNITS = 999  # steps of a line's coordinates across its box


def pack(values: npt.ArrayLike) -> str:
    """Numbers of [0, 1] in 255 steps, two hexadecimal digits each."""
    steps: npt.NDArray[np.uint8] = np.clip(np.rint(255 * np.asarray(values, dtype=float)), 0, 255).astype(np.uint8)
    return steps.tobytes().hex()


def unpack(text: str, columns: int) -> Array:
    """The numbers again, (rows, columns)."""
    return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, columns) / 255


def pack_lines(lines: Sequence[Line], reach: float) -> str:
    """Lines within [-reach, reach]^2, each as "x,y x,y ...", with ";" between them, in 999 steps across."""

    def step(v: float) -> int:
        return round((v + reach) / (2 * reach) * _UNITS)

    return ";".join(" ".join(f"{step(x)},{step(y)}" for x, y in line) for line in lines)


def unpack_lines(text: str, reach: float) -> list[list[tuple[float, float]]]:
    """The lines again."""

    def back(text: str) -> float:
        return (2 * int(text) / _UNITS - 1) * reach

    pairs = [[point.split(",") for point in line.split()] for line in text.split(";") if line]
    return [[(back(x), back(y)) for x, y in line] for line in pairs]


def png(colours: npt.NDArray[np.uint8]) -> str:
    """Colours (rows, columns, 3), the first row on top, as a PNG in a data address."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(colours).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


# dark blue over teal to yellow: it keeps its order without colour vision
PLACES, COLOURS = (0.0, 0.35, 0.7, 1.0), ((38, 35, 90), (30, 101, 141), (96, 180, 138), (250, 229, 80))


def shade(values: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Numbers of [0, 1] as colours (..., 3), dark to light."""
    v = np.clip(np.asarray(values, dtype=float), 0, 1)
    colours = np.stack([np.interp(v, PLACES, [c[i] for c in COLOURS]) for i in range(3)], axis=-1)
    return np.round(colours).astype(np.uint8)
