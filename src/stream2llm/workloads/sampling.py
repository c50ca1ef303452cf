"""Draws from a distribution of which percentiles are known. Stratified: any seed comes close to all of it."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import NormalDist
from typing import TypeVar

Value = TypeVar("Value")

_NORMAL = NormalDist()


def stratified(quantile: Callable[[float], Value], count: int, draws: random.Random) -> list[Value]:
    """`count` values in random order, one from each of `count` equally likely parts of the distribution."""
    values = [quantile((part + draws.random()) / count) for part in range(count)]
    draws.shuffle(values)
    return values


class LogNormalPieces:
    """A quantile function that is log-normal between each two known percentiles, and passes through all of them.

    That is a straight line between the points on log-normal probability paper. The ends are the smallest and the
    largest of `count` values, in the mean.
    """

    def __init__(self, percentiles: Mapping[float, float], count: int) -> None:
        ends: dict[float, float] = {0: 0.5 / count, 100: 1 - 0.5 / count}
        points = sorted((ends.get(percent, percent / 100), value) for percent, value in percentiles.items())
        self._at = [_NORMAL.inv_cdf(probability) for probability, _ in points]
        self._log = [math.log(value) for _, value in points]

    def __call__(self, probability: float) -> float:
        at = _NORMAL.inv_cdf(min(max(probability, 1e-12), 1 - 1e-12))
        at = min(max(at, self._at[0]), self._at[-1])
        right = max(1, bisect_left(self._at, at))
        share = (at - self._at[right - 1]) / (self._at[right] - self._at[right - 1])
        return math.exp(self._log[right - 1] + share * (self._log[right] - self._log[right - 1]))


class Counts:
    """The quantile function of a number from `smallest` to `largest`: above the smallest it is negative binomial.

    `dispersion`: the smaller, the more the numbers vary; from 1000 on it is a Poisson distribution.
    """

    def __init__(self, mean: float, smallest: int, largest: int, dispersion: float) -> None:
        more = mean - smallest
        success = dispersion / (dispersion + more)
        masses = [
            math.exp(
                math.lgamma(dispersion + k)
                - math.lgamma(dispersion)
                - math.lgamma(k + 1)
                + dispersion * math.log(success)
                + k * math.log1p(-success)
            )
            for k in range(largest - smallest + 1)
        ]
        self._smallest = smallest
        self._up_to = [mass / math.fsum(masses) for mass in accumulate(masses)]

    def __call__(self, probability: float) -> int:
        return self._smallest + min(bisect_left(self._up_to, probability), len(self._up_to) - 1)


def divided(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole parts, one of at least 1 for each weight, and otherwise in proportion. Needs total >= parts."""
    rest, whole = total - len(weights), math.fsum(weights)
    bounds = [round(rest * part / whole) for part in accumulate(weights)]
    bounds[-1] = rest
    return [1 + high - low for low, high in zip([0, *bounds], bounds, strict=False)]
