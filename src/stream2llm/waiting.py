"""How long requests waited: a histogram of fixed size. Pure."""

from __future__ import annotations

import math

_SMALLEST = 1e-4  # seconds; shorter waits count as this
_RATIO = 1.1  # of neighbouring buckets: a quantile is within 10 %
_BUCKETS = 160  # up to about 400 s; longer waits are in the last one


class WaitingTimes:
    """Seconds waited, in buckets that grow by 10 %."""

    __slots__ = ("_counts", "longest", "total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.total = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        bucket = math.ceil(math.log(max(seconds, _SMALLEST) / _SMALLEST, _RATIO))
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self.total += 1
        self.longest = max(self.longest, seconds)

    def quantile(self, share: float) -> float:
        """The wait that `share` of the requests did not exceed, up to 10 % too long; 0 if there were none."""
        wanted = share * self.total
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted and seen:
                return min(_SMALLEST * _RATIO**bucket, self.longest)
        return 0.0
