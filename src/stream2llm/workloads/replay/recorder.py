"""The events of a run as they happen: into the log, and into a tally that progress and summary are made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from stream2llm.workloads.events import Counters, Event, What
from stream2llm.workloads.lines import Lines
from stream2llm.workloads.measured import percentile_name, quantile

LAGS = (0.5, 0.99, 1.0)
"""The quantiles of the load generator's lag that are logged."""


class Clock:
    """Seconds since the run's start."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    async def until(self, due_s: float) -> float:
        """Wait until `due_s`; returns how many seconds later than that it is."""
        await asyncio.sleep(max(0.0, due_s - self.now()))
        return self.now() - due_s


@dataclass
class Tally:
    """What has happened so far. Times in seconds.

    `lags`: how late arrivals and operations were handed over, which is the load generator's own doing. `ttfts`: from
    the last operation's hand-over to the first token.
    """

    arrived: int = 0
    finished: int = 0
    failed: int = 0
    lags: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)
    last_error: str = ""


class Recorder:
    """Writes events and keeps the tally."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._handed_over: dict[str, float] = {}
        self.clock = Clock()
        self.tally = Tally()

    def note(
        self,
        query: str,
        what: What,
        *,
        operation: int | None = None,
        tokens: int | None = None,
        computed: int | None = None,
        detail: str = "",
    ) -> None:
        """`what` has happened to the query now."""
        now = self.clock.now()
        self._lines.write(Event(now, query, what, operation, tokens, computed, detail))
        self._count(query, what, now, detail)

    def counters(self, values: Mapping[str, float]) -> None:
        """What the engine counted over the run; the load generator's own lag is added, in seconds."""
        seen = self.tally.lags or [0.0]
        lags = {f"load_lag_{percentile_name(share).lower()}_seconds": quantile(seen, share) for share in LAGS}
        self._lines.write(Counters(self.clock.now(), {**values, **lags}))
        self._lines.flush()

    def _count(self, query: str, what: What, now: float, detail: str) -> None:
        tally = self.tally
        match what:
            case What.ARRIVED:
                tally.arrived += 1
            case What.LAST:
                self._handed_over[query] = now
            case What.FIRST:
                tally.ttfts.append(now - self._handed_over.pop(query))
            case What.END:
                tally.finished += 1
                self._lines.flush()
            case What.ERROR:
                tally.failed += 1
                tally.last_error = detail
                self._lines.flush()


class Notes:
    """The recorder for one query."""

    def __init__(self, recorder: Recorder, query: str) -> None:
        self._recorder = recorder
        self._query = query

    def sent(self, operation: int, tokens: int) -> None:
        """An operation is handed over; the context then has so many tokens."""
        self._recorder.note(self._query, What.SENT, operation=operation, tokens=tokens)

    def acked(self, operation: int, computed: int | None = None) -> None:
        """The server has an operation, and has prefilled so many tokens."""
        self._recorder.note(self._query, What.ACKED, operation=operation, computed=computed)
