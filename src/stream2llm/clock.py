"""The time that decisions are made by: real in production, virtual in a simulation."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds: `time` since the Unix epoch, `monotonic` since an arbitrary moment."""

    def time(self) -> float: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class VirtualClock:
    """Stands at `now` (seconds) until it is set forward."""

    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now
