"""What an event log says: times of each query, percentiles and throughput of the run, the engine's counters.

TTFT runs from the moment the last piece is handed over to the first token, in every arm. A quantile is interpolated
linearly between the two nearest ranks (Hyndman and Fan's type 7, numpy's default). Pure, but for `read`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from stream2llm.workloads.events import Counters, Event, Run, What, read_events
from stream2llm.workloads.lines import FormatError

SHARES = (0.5, 0.95, 0.99, 0.999)
"""The quantiles that are reported: P50, P95, P99 and P99.9."""


def percentile_name(share: float) -> str:
    """E.g. P99.9 for 0.999."""
    return f"P{share * 100:.6g}"


def quantile(values: Sequence[float], share: float) -> float:
    """Of values in any order, interpolated linearly. Raises `ValueError` without a value and for a share over 1."""
    if not values:
        raise ValueError("a quantile needs one value at least")
    return float(np.quantile(np.asarray(values, dtype=float), share))


@dataclass(frozen=True, slots=True)
class Times:
    """One query: seconds since the run's start, None for what the log does not have.

    `operations`: how many were handed over; `tokens`: length of the final prompt; `generated`: tokens of the answer;
    `error`: why it failed, else empty.
    """

    query: str
    arrival: float | None = None
    last: float | None = None
    first: float | None = None
    end: float | None = None
    operations: int = 0
    tokens: int | None = None
    generated: int | None = None
    error: str = ""

    @property
    def ttft(self) -> float | None:
        """From the last piece to the first token, in seconds; None for a query that failed or has none."""
        return None if self.error or self.last is None or self.first is None else self.first - self.last

    @property
    def completion(self) -> float | None:
        """From the arrival to the answer's end, in seconds; None for a query that failed or did not end."""
        return None if self.error or self.arrival is None or self.end is None else self.end - self.arrival


@dataclass(frozen=True)
class Measured:
    """A run and what was measured of it. `cut_off`: why the log could not be read to its end, else empty."""

    run: Run
    queries: tuple[Times, ...]
    counters: Mapping[str, float] = field(default_factory=dict)
    by_query: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    cut_off: str = ""
    path: Path | None = None

    @cached_property
    def ttft(self) -> tuple[float, ...]:
        """Seconds, ascending; of the queries that have one."""
        return tuple(sorted(query.ttft for query in self.queries if query.ttft is not None))

    @cached_property
    def completion(self) -> tuple[float, ...]:
        """Seconds from arrival to end, ascending; of the queries that ended."""
        return tuple(sorted(query.completion for query in self.queries if query.completion is not None))

    def quantile(self, share: float) -> float:
        """Of the TTFT, in seconds. Raises `ValueError` if no query has one."""
        return quantile(self.ttft, share)

    @property
    def failed(self) -> int:
        return sum(bool(query.error) for query in self.queries)

    @property
    def total_seconds(self) -> float:
        """From the first arrival to the last end: the paper's total completion time. 0 if nothing ended."""
        arrivals = [query.arrival for query in self.queries if query.arrival is not None]
        ends = [query.end for query in self.queries if query.end is not None]
        return max(ends) - min(arrivals) if arrivals and ends else 0.0

    @property
    def throughput(self) -> float:
        """Queries that ended without an error, over `total_seconds`."""
        return len(self.completion) / self.total_seconds if self.total_seconds > 0 else 0.0

    @property
    def tokens_needed(self) -> int | None:
        """Of the final prompts and answers of all queries that got a first token; what any engine must compute once.

        The last token of an answer is never computed with. None if the log does not say how long the prompts are.
        """
        answered = [query for query in self.queries if query.ttft is not None]
        if not answered or any(query.tokens is None for query in answered):
            return None
        return sum((query.tokens or 0) + max((query.generated or 1) - 1, 0) for query in answered)

    @property
    def work_ratio(self) -> float | None:
        """The engine's `tokens_computed` over `tokens_needed`: above 1 is what preemptions and replacements cost."""
        computed, needed = self.counters.get("tokens_computed"), self.tokens_needed
        return computed / needed if computed is not None and needed else None

    @property
    def net_work_ratio(self) -> float | None:
        """The same where what was received and then replaced counts as needed too (as in `check pressure`).

        None if nothing was replaced. Below 1 if some of it was replaced before it was computed.
        """
        computed, needed = self.counters.get("tokens_computed"), self.tokens_needed
        invalidated = self.counters.get("tokens_invalidated", 0)
        return computed / (needed + invalidated) if computed is not None and needed and invalidated else None


def read(path: Path) -> Measured:
    """What the log at `path` says; one that is cut off or broken is read as far as it goes, see `cut_off`.

    Raises `FormatError` with line and field if it is no event log at all, or impossible, and `OSError`.
    """
    run, records = read_events(path)
    found: list[Event | Counters] = []
    cut_off = ""
    try:
        found.extend(records)
    except FormatError as error:
        cut_off = str(error)
    try:
        return replace(measure(run, found), cut_off=cut_off, path=path)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error


def measure(run: Run, records: Iterable[Event | Counters]) -> Measured:
    """What these records, in any order, say of `run`. Of an event that a query should have once the first counts.

    Raises `ValueError` for a first token before the last piece.
    """
    queries: dict[str, Times] = {}
    counters: Counters | None = None
    for record in records:
        if isinstance(record, Counters):
            counters = record
        else:
            queries[record.query] = _after(queries.get(record.query) or Times(record.query), record)
    for times in queries.values():
        if times.ttft is not None and times.ttft < 0:
            raise ValueError(f"query {times.query!r} has its first token {-times.ttft:g} s before its last piece")
    return Measured(
        run,
        tuple(queries.values()),
        counters.values if counters else {},
        counters.by_query if counters else {},
    )


def _after(times: Times, event: Event) -> Times:
    match event.what:
        case What.ARRIVED if times.arrival is None:
            return replace(times, arrival=event.t)
        case What.SENT:
            return replace(times, operations=times.operations + 1)
        case What.LAST if times.last is None:
            return replace(times, last=event.t, operations=times.operations + 1, tokens=event.tokens)
        case What.FIRST if times.first is None:
            return replace(times, first=event.t)
        case What.END if times.end is None:
            return replace(times, end=event.t, generated=event.tokens)
        case What.ERROR if not times.error:
            return replace(times, error=event.detail or "it failed")
    return times
