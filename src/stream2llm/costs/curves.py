"""Monotone piecewise-linear curves, and their fit to noisy measurements. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise-linear function that never falls, through at least two points.

    `xs` increase strictly, `ys` never fall and are not negative. Outside of the points the curve goes on linearly:
    below with the slope of the first segment (never below 0), above with the mean slope of the upper half of the range,
    since a single noisy segment at the end would be a poor witness. `covers` tells whether a value is measured ground.
    Raises `ValueError` for points of another form.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    _slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)  # from each point on

    def __post_init__(self) -> None:
        if len(self.xs) != len(self.ys) or len(self.xs) < 2:
            raise ValueError(f"a curve needs two points at least, found {len(self.xs)} x and {len(self.ys)} y values")
        if not all(map(math.isfinite, (*self.xs, *self.ys))):
            raise ValueError("a curve's points must be finite numbers")
        if self.xs[0] < 0 or any(right <= left for left, right in zip(self.xs, self.xs[1:], strict=False)):
            raise ValueError("a curve's x values must increase and not be negative")
        if self.ys[0] < 0 or any(right < left for left, right in zip(self.ys, self.ys[1:], strict=False)):
            raise ValueError("a curve's y values must not fall and not be negative")
        segments = zip(self.xs, self.xs[1:], self.ys, self.ys[1:], strict=False)
        slopes = [(y1 - y0) / (x1 - x0) for x0, x1, y0, y1 in segments]
        object.__setattr__(self, "_slopes", (*slopes, 0.0))
        middle = max(self.xs[0], self.xs[-1] / 2)
        above = (self.ys[-1] - self(middle)) / (self.xs[-1] - middle)
        object.__setattr__(self, "_slopes", (*slopes, max(0.0, above)))

    def __call__(self, x: float) -> float:
        place = bisect_right(self.xs, x) - 1
        if place < 0:
            return max(0.0, self.ys[0] + (x - self.xs[0]) * self._slopes[0])
        return self.ys[place] + (x - self.xs[place]) * self._slopes[place]

    def covers(self, x: float) -> bool:
        """Whether `x` lies between the first and the last point; elsewhere the curve extrapolates."""
        return self.xs[0] <= x <= self.xs[-1]


@dataclass(frozen=True, slots=True)
class FitError:
    """How far a fit is from what was measured, as a share of the measured value.

    `median` and `worst` over `samples` single runs: 0.05 means that the fit is off by 5 %.
    """

    median: float
    worst: float
    samples: int

    @classmethod
    def of(cls, fitted: Iterable[float], measured: Iterable[float]) -> FitError:
        """Raises `ValueError` without a point, and for a measured value that is not positive."""
        shares = []
        for fit, value in zip(fitted, measured, strict=True):
            if value <= 0:
                raise ValueError(f"a measured value must be positive, found {value}")
            shares.append(abs(fit - value) / value)
        if not shares:
            raise ValueError("there is nothing to compare a fit with")
        return cls(median(shares), max(shares), len(shares))


def fit_monotone(xs: Sequence[float], ys: Sequence[float], weights: Sequence[float] | None = None) -> Curve:
    """The non-falling curve that is nearest to the points, in weighted least squares (isotonic regression).

    `xs` increase strictly; `ys` are not negative. The default weights 1/y² make it the least *relative* error. Exact,
    by pooling adjacent violators (PAVA; Ayer et al. 1955), in linear time. Raises `ValueError` for other input.
    """
    if weights is None:
        weights = [1.0 / (y * y) if y > 0 else 1.0 for y in ys]
    if not len(xs) == len(ys) == len(weights):
        raise ValueError(f"found {len(xs)} x values, {len(ys)} y values and {len(weights)} weights")
    pools: list[tuple[float, float, int]] = []  # mean, weight, points
    for y, weight in zip(ys, weights, strict=True):
        if not weight > 0:
            raise ValueError(f"weights must be positive, found {weight}")
        pool = (y, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, points = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, points + pool[2])
        pools.append(pool)
    fitted = [mean for mean, _, points in pools for _ in range(points)]
    return Curve(tuple(map(float, xs)), tuple(fitted))
