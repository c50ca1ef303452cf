"""The event log of a run, in real or in virtual time. JSON Lines, version 1 (docs/traces.md).

`stream2llm replay` and `stream2llm simulate` write the same log, and `stream2llm report` reads it. Times are seconds
since the run's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path

import msgspec

from stream2llm.workloads.lines import Format, Lines, read_lines, writing

FORMAT = Format("stream2llm-events", 1)


class Arm(StrEnum):
    """A way of getting the context to the engine.

    `WAIT`: hold everything back and send it at the end, to stock vLLM: the baseline. `WARM`: a growing prompt with
    max_tokens 1 after each piece. `INPUT`: vLLM's own `StreamingInput`. `STREAM`: a context stream.
    """

    WAIT = "wait"
    WARM = "warm"
    INPUT = "input"
    STREAM = "stream"


class Clock(StrEnum):
    """Whether an engine ran, or the scheduler alone with step times from a cost profile."""

    REAL = "real"
    VIRTUAL = "virtual"


class What(StrEnum):
    """What happened to a query.

    `ARRIVED`; `SENT`: an operation is handed over; `ACKED`: the server has it; `LAST`: the last piece is handed over,
    which is where TTFT starts in every arm; `FIRST`: the first token; `END`: the answer's end; `ERROR`: it failed.
    """

    ARRIVED = "arrived"
    SENT = "sent"
    ACKED = "acked"
    LAST = "last"
    FIRST = "first_token"
    END = "end"
    ERROR = "error"


class Event(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="event"):
    """`tokens`: of the context or prompt after a `SENT` and a `LAST`, generated at an `END`; `computed`: of those, the
    ones that the server said are prefilled, at an `ACKED`. `operation`: its number from 0. `detail`: an error's text.
    """

    t: float
    query: str
    what: What
    operation: int | None = None
    tokens: int | None = None
    computed: int | None = None
    detail: str = ""


class Counters(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="counters"):
    """What the engine counted over the run, written when it ends; the names are those of `scheduler statistics`.

    `by_query`: the same for single queries, e.g. {"invalidated_tokens": {"q1": 300}}.
    """

    t: float
    values: Mapping[str, float]
    by_query: Mapping[str, Mapping[str, float]] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what ran. `workload`, `qps`, `delay` (multiplier) and `seed` tell which runs may be compared."""

    clock: Clock
    arm: Arm
    workload: str
    policy: str = ""
    preemption: str = ""
    qps: float
    delay: float = 1.0
    time_scale: float = 1.0
    seed: int = 0
    queries: int
    model: str = ""
    machine: str = ""
    settings: Mapping[str, str | float | bool] = {}


def read_events(path: Path) -> tuple[Run, Iterator[Event | Counters]]:
    """Raises `FormatError` with line and field, and `OSError`."""
    return read_lines(path, FORMAT, Run, Event | Counters)  # type: ignore[arg-type]


def writing_events(path: Path, run: Run) -> AbstractContextManager[Lines]:
    """An event log, open for `Event`s and, at the end, `Counters`; it can be read up to the last `flush`."""
    return writing(path, FORMAT, run)
