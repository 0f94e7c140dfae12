"""Plots as inline SVG: drawn here and not by a library, so that they take the colours of the page, light, dark or printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2")  # lines differ by more than their colour
COLOURS = 7  # classes c0 to c6 of the page's style

Points = Sequence[tuple[float, float]]


@dataclass
class Plot:
    """One pair of axes.

    Arguments:
        x_label, y_label: of the axes.
        x, y: their ranges.
        log: which axes are logarithmic: "x", "y" or "xy". Their ranges are positive; what is not is at the edge.
        title: what it shows, for readers that can't see it, and above the plot.
        width, height: in the units of the drawing; it scales to the page.
        percent: write the values of y as percentages.
        floor: the lowest value of y that is written at the axis.
        x_ticks, y_ticks: places and texts at the axes, for categories; round numbers if None.
    """

    x_label: str
    y_label: str
    x: tuple[float, float]
    y: tuple[float, float]
    title: str = ""
    width: int = 360
    height: int = 260
    log: str = ""
    percent: bool = False
    floor: float = -math.inf
    x_ticks: Sequence[tuple[float, str]] | None = None
    y_ticks: Sequence[tuple[float, str]] | None = None
    parts: list[str] = field(default_factory=list)

    LEFT, RIGHT, TOP, BOTTOM = 60, 20, 12, 40

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data lies in the drawing; values beyond the axes are brought to their edge."""
        across, up = _share(x, self.x, "x" in self.log), _share(y, self.y, "y" in self.log)
        return (
            round(self.LEFT + across * (self.width - self.LEFT - self.RIGHT), 1),
            round(self.height - self.BOTTOM - up * (self.height - self.TOP - self.BOTTOM), 1),
        )

    def line(self, points: Points, colour: int, name: str = "", *, heavy: bool = False, dots: bool = True) -> None:
        """A line through points, with a dot and its values at each."""
        style = f' stroke-dasharray="{dashes(colour)}"' if dashes(colour) and not heavy else ""
        kind = f"line c{colour % COLOURS}{' heavy' if heavy else ''}"
        self.parts.append(f'<polyline class="{kind}"{style} points="{self._path(points)}"/>')
        for x, y in points if dots else ():
            told = f"{self.value(y)} at {x:g}"
            self.dot(x, y, colour, f"{name}: {told}" if name else told)

    def dot(self, x: float, y: float, colour: int, told: str) -> None:
        """A dot that tells something when it is pointed at."""
        a, b = self.at(x, y)
        self.parts.append(f'<circle class="dot c{colour % COLOURS}" cx="{a}" cy="{b}" r="3">{_title(told)}</circle>')

    def band(self, low: Points, high: Points, colour: int) -> None:
        """A shaded band between two lines."""
        self.parts.append(f'<polygon class="band c{colour % COLOURS}" points="{self._path([*low, *reversed(high)])}"/>')

    def box(self, left: float, right: float, low: float, high: float, kind: str, told: str) -> None:
        """A rectangle of the data's coordinates, of a class of the page's style."""
        (a, b), (c, d) = self.at(left, max(low, high)), self.at(right, min(low, high))
        size = f'width="{round(c - a, 1)}" height="{round(d - b, 1)}"'
        self.parts.append(f'<rect class="{kind}" x="{a}" y="{b}" {size}>{_title(told)}</rect>')

    def rule(self, start: tuple[float, float], end: tuple[float, float], kind: str = "guide") -> None:
        """A straight line."""
        (a, b), (c, d) = self.at(*start), self.at(*end)
        self.parts.append(f'<line class="{kind}" x1="{a}" y1="{b}" x2="{c}" y2="{d}"/>')

    def bar(self, x: float, low: float, high: float, colour: int) -> None:
        """An error bar."""
        (a, b), (_, c) = self.at(x, low), self.at(x, high)
        self.parts.append(f'<path class="line c{colour % COLOURS}" d="M{a} {b}V{c}M{a - 4} {b}h8M{a - 4} {c}h8"/>')

    def trace(self, points: Points, kind: str, width: float = 1.6) -> None:
        """A solid line, of a class of the page's style ("line c0", "guide")."""
        self.parts.append(f'<polyline class="{kind}" style="fill:none;stroke-width:{width}" points="{self._path(points)}"/>')

    def dots(self, points: Points, colour: int, size: float) -> None:
        """Many small dots, as one path."""
        path = "".join(f"M{a} {b}h0" for a, b in (self.at(x, y) for x, y in points))
        style = f"stroke-width:{size};stroke-linecap:round"
        self.parts.append(f'<path class="line c{colour % COLOURS}" style="{style}" d="{path}"/>')

    def circle(self, x: float, y: float, radius: float, told: str) -> None:
        """A ring of a radius in the units of x, to mark a place."""
        (a, b), (c, _) = self.at(x, y), self.at(x + radius, y)
        style = "fill:none;stroke-width:2;stroke:var(--bad)"
        self.parts.append(f'<circle style="{style}" cx="{a}" cy="{b}" r="{round(c - a, 1)}">{_title(told)}</circle>')

    def image(self, address: str) -> None:
        """A picture that fills the axes."""
        (a, b), (c, d) = self.at(self.x[0], self.y[1]), self.at(self.x[1], self.y[0])
        size = f'width="{round(c - a, 1)}" height="{round(d - b, 1)}"'
        self.parts.append(f'<image href="{address}" x="{a}" y="{b}" {size} preserveAspectRatio="none"/>')

    def value(self, y: float) -> str:
        """A value of y as text."""
        return f"{100 * y:.1f}%" if self.percent else f"{y:.4g}"

    def svg(self) -> str:
        """The drawing."""
        name = escape(self.title or f"{self.y_label} against {self.x_label}")
        return (
            f'<svg class="plot" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{name}">'
            f"{''.join(self._axes())}{''.join(self.parts)}</svg>"
        )

    def _path(self, points: Points) -> str:
        """The corners of a line, as SVG has them."""
        return " ".join(f"{a},{b}" for a, b in (self.at(x, y) for x, y in points))

    def _axes(self) -> list[str]:
        (left, bottom), (right, top) = self.at(self.x[0], self.y[0]), self.at(self.x[1], self.y[1])
        found = []
        for value, text in self._marks("y") if self.y_ticks is None else self.y_ticks:
            height = self.at(self.x[0], value)[1]
            found.append(f'<line class="grid" x1="{left}" y1="{height}" x2="{right}" y2="{height}"/>')
            found.append(f'<text x="{left - 6}" y="{height + 4}" text-anchor="end">{escape(text)}</text>')
        for value, text in self._marks("x") if self.x_ticks is None else self.x_ticks:
            across = self.at(value, self.y[0])[0]
            found.append(f'<line class="grid" x1="{across}" y1="{bottom}" x2="{across}" y2="{bottom + 4}"/>')
            found.append(f'<text x="{across}" y="{bottom + 16}" text-anchor="middle">{escape(text)}</text>')
        found.append(f'<line class="axis" x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
        middle = (top + bottom) / 2
        found.append(
            f'<text class="label" x="{(left + right) / 2}" y="{self.height - 6}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
            f'<text class="label" x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">'
            f"{escape(self.y_label)}</text>"
        )
        return found

    def _marks(self, axis: str) -> list[tuple[float, str]]:
        """Round numbers at an axis, with their texts."""
        low, high = self.x if axis == "x" else (max(self.y[0], self.floor), self.y[1])
        if axis in self.log:
            return _decades(low, high)
        percent = self.percent and axis == "y"
        return [(value, f"{round(100 * value, 6):g}%" if percent else f"{value:g}") for value in ticks(low, high)]


def dashes(colour: int) -> str:
    """How a line of a colour is broken, "" for not at all."""
    return _DASHES[colour % len(_DASHES)]


def _title(told: str) -> str:
    """What is told when something is pointed at."""
    return f"<title>{escape(told)}</title>"


def _share(value: float, ends: tuple[float, float], log: bool) -> float:
    """How far along an axis a value lies, from 0 to 1."""
    low, at, high = ends[0], min(max(value, ends[0]), ends[1]), ends[1]
    if log:
        low, at, high = math.log10(low), math.log10(at), math.log10(high)
    return (at - low) / ((high - low) or 1)


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    """Ticks of a logarithmic axis, at most some six of them."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 2:
        step = -(-(last - first) // 5)
        return [(10.0**i, f"1e{i}" if not -4 < i < 5 else f"{10.0**i:g}") for i in range(first, last + 1, step)]
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        marks = [m * 10.0**i for i in range(first - 1, last + 1) for m in digits]
        found = [(m, f"{m:g}") for m in marks if low * (1 - 1e-9) <= m <= high * (1 + 1e-9)]
        if len(found) > 2:
            break
    return found


def ticks(low: float, high: float) -> list[float]:
    """At most six round numbers in [low, high], evenly spaced: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]
