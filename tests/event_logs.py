"""Runs and records by hand, with figures that can be reckoned in the head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stream2llm.workloads.events import Arm, Clock, Counters, Event, Run, What, writing_events
from stream2llm.workloads.measured import Measured, measure


def run(arm: str = "stream", **fields: Any) -> Run:
    """A virtual run of the crawler workload at 4 queries per second, of 4 queries."""
    defaults = {"clock": Clock.VIRTUAL, "workload": "crawler", "qps": 4.0, "queries": 4}
    return Run(arm=Arm(arm), **{**defaults, **fields})


def events(ttft: Sequence[float], tokens: int = 100, retrieval: float = 2.0) -> Iterator[Event]:
    """Query q0 arrives at 0 s, q1 at 1 s and so on. Each sends half its prompt after 1 s and the rest after
    `retrieval` s, gets its first token after the given time and ends 0.5 s later with 3 tokens.
    """
    for number, seconds in enumerate(ttft):
        name, arrival = f"q{number}", float(number)
        last = arrival + retrieval
        yield Event(arrival, name, What.ARRIVED)
        yield Event(arrival + 1, name, What.SENT, operation=0, tokens=tokens // 2)
        yield Event(arrival + 1.1, name, What.ACKED, operation=0, tokens=tokens // 2, computed=tokens // 4)
        yield Event(last, name, What.LAST, operation=1, tokens=tokens)
        yield Event(last + seconds, name, What.FIRST)
        yield Event(last + seconds + 0.5, name, What.END, tokens=3)


def counted(t: float = 99.0, by_query: dict[str, dict[str, float]] | None = None, **values: float) -> Counters:
    return Counters(t, values, by_query or {})


def measured(ttft: Sequence[float], arm: str = "stream", counters: Counters | None = None, **fields: Any) -> Measured:
    return measure(run(arm, **fields), [*events(ttft), *([counters] if counters else [])])


def write(path: Path, header: Run, records: Sequence[Event | Counters]) -> Path:
    with writing_events(path, header) as lines:
        lines.write_all(records)
    return path
