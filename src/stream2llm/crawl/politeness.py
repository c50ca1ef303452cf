"""The least time between two requests to a host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class Politeness:
    """Spaces requests to the same host by `interval` seconds, or by what its robots.txt asks if that is more."""

    def __init__(
        self,
        interval: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._sleep = sleep
        self._free_at: dict[str, float] = {}

    async def turn(self, host: str, asked: float = 0.0) -> None:
        """Return when the next request to `host` may be sent; `asked`: seconds, by its robots.txt."""
        interval = max(self._interval, asked)
        if not interval:
            return
        now = self._clock()
        begin = max(now, self._free_at.get(host, now))
        self._free_at[host] = begin + interval  # before we sleep: who comes meanwhile is after us
        await self._sleep(begin - now)
