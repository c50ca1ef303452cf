"""When each operation of a query is due, and how much context is then open. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from stream2llm.workloads.trace import Kind, Query


class WorkloadError(ValueError):
    """A trace cannot be replayed as asked; the message names the query and the remedy."""


@dataclass(frozen=True, slots=True)
class Due:
    """An operation that is due `at_s` seconds after the query's arrival.

    `context`: the pieces after it; `added`: those it appends, None where it replaces the context. `tokens`: of opening
    and context.
    """

    at_s: float
    number: int
    context: tuple[str, ...]
    added: tuple[str, ...] | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A query that arrives `arrival_s` seconds after the run's start."""

    query: Query
    arrival_s: float


def timeline(query: Query) -> tuple[Due, ...]:
    """The query's operations; the last of them hands the question over too."""
    times = accumulate((operation.gap_s for operation in query.operations), initial=query.lead_s)
    next(times)
    return tuple(
        Due(
            at_s=at_s,
            number=number,
            context=context,
            added=operation.pieces if operation.op is Kind.APPEND else None,
            tokens=query.opening.length + sum(query.pieces[name].length for name in context),
        )
        for number, (at_s, context, operation) in enumerate(zip(times, query.contexts(), query.operations, strict=True))
    )


def plan(queries: Sequence[Query], arrivals: Sequence[float], time_scale: float = 1.0) -> tuple[Planned, ...]:
    """The queries with their arrivals; all times, of both, multiplied by `time_scale`.

    Raises `WorkloadError` where two queries have the same id: the log could not tell them apart.
    """
    if len({query.id for query in queries}) < len(queries):
        twice = next(name for name, count in Counter(query.id for query in queries).items() if count > 1)
        raise WorkloadError(f"the trace has the query {twice!r} twice; give every query an id of its own")
    return tuple(
        Planned(query.scaled(time_scale), arrival * time_scale)
        for query, arrival in zip(queries, arrivals, strict=True)
    )


def most_open_tokens(planned: Iterable[Planned]) -> int:
    """The most tokens of context that are open at once, of queries that wait for further operations.

    What the open streams want of the KV cache, if each is answered the moment its retrieval ends.
    """
    changes: list[tuple[float, int]] = []
    for item in planned:
        held = 0
        for due in timeline(item.query):
            changes.append((item.arrival_s + due.at_s, due.tokens - held))
            held = due.tokens
        changes[-1] = (changes[-1][0], changes[-1][1] - held)
    changes.sort()  # of simultaneous changes, what ends comes first
    return max(accumulate((tokens for _, tokens in changes), initial=0))


def require_appends(queries: Iterable[Query]) -> None:
    """Raises `WorkloadError` for a query that replaces its context."""
    for query in queries:
        for number, operation in enumerate(query.operations):
            if operation.op is Kind.REPLACE:
                raise WorkloadError(
                    f"query {query.id!r}: operations[{number}] replaces the context, and vLLM's StreamingInput can "
                    "only append to it; take the arm `stream`, `warm` or `wait`"
                )
