"""Curves drawn with characters, on logarithmic axes, for a terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """What to draw: measured `points` as `marker`, and `curve` through them as dots. Both coordinates positive."""

    name: str
    marker: str
    points: Sequence[Point]
    curve: Callable[[float], float]


def log_plot(series: Sequence[Series], width: int = 64, height: int = 14) -> str:
    """The series over common axes: x in tokens, y in seconds. Raises `ValueError` without a positive point."""
    points = [point for line in series for point in line.points if min(point) > 0]
    if not points:
        raise ValueError("there is nothing to draw")
    xs, ys = _Axis.over([x for x, _ in points], width), _Axis.over([y for _, y in points], height)
    cells = [[" "] * width for _ in range(height)]
    for line in series:
        for column in range(width):
            x = xs.value(column)
            if line.points and min(p[0] for p in line.points) <= x <= max(p[0] for p in line.points):
                _mark(cells, column, ys.cell(line.curve(x)), "·")
    for line in series:
        for x, y in line.points:
            _mark(cells, xs.cell(x), ys.cell(y), line.marker)
    labels = [
        f"{_seconds(ys.value(row)):>8}" if row in (0, height // 2, height - 1) else " " * 8 for row in range(height)
    ]
    rows = [f"{labels[row]} │{''.join(cells[row])}" for row in reversed(range(height))]
    ends = f"{_tokens(xs.value(0))}{_tokens(xs.value(width - 1)):>{width - len(_tokens(xs.value(0)))}}"
    legend = "   ".join(f"{line.marker} {line.name}" for line in series)
    return "\n".join([*rows, f"{'':8} └{'─' * width}", f"{'':10}{ends}  tokens", f"{'':10}{legend}"])


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float  # logarithms
    high: float
    cells: int

    @classmethod
    def over(cls, values: Sequence[float], cells: int) -> _Axis:
        low, high = math.log(min(values)), math.log(max(values))
        return cls(low, high if high > low else low + 1, cells)

    def cell(self, value: float) -> int:
        if value <= 0:
            return -1
        return round((math.log(value) - self.low) / (self.high - self.low) * (self.cells - 1))

    def value(self, cell: int) -> float:
        return math.exp(self.low + (self.high - self.low) * cell / (self.cells - 1))


def _mark(cells: list[list[str]], column: int, row: int, marker: str) -> None:
    if 0 <= row < len(cells) and 0 <= column < len(cells[0]):
        cells[row][column] = marker


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def _tokens(value: float) -> str:
    return f"{value:,.0f}"
