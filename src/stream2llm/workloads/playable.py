"""Whether a simulated machine can serve what is to be played, found out before the run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stream2llm.costs import Mode
from stream2llm.workloads.machines import BLOCK, Machine
from stream2llm.workloads.setup import Setup
from stream2llm.workloads.trace import Query

LONGEST_S = 1e8
"""Of a retrieval. Simulated streams do not expire before, and virtual time is exact to some nanoseconds."""


def check(queries: Iterable[Query], machine: Machine, setup: Setup) -> None:
    """Raises `ValueError` with the query's id, what is wrong and the limit.

    All arms have the same limits, so that what one has played can be compared with what another has.
    """
    if setup.streams and setup.preemption is Mode.SWAP and machine.host_tokens < BLOCK:
        raise ValueError(
            f"preemption swap needs a host tier, which this machine has not: its `host_tokens` must be {BLOCK} or more"
        )
    known: set[str] = set()
    for query in queries:
        if query.id in known:
            raise ValueError(f"there are two queries with the `id` {query.id!r}; ids must be unique")
        known.add(query.id)
        if not query.tokens:
            raise ValueError(f"query {query.id!r}: its final prompt is empty; it must have a token at least")
        longest, limit = longest_prompt(query), machine.longest_prompt
        if longest > limit:
            raise ValueError(
                f"query {query.id!r}: its longest prompt has {longest} tokens; the machine serves up to {limit}"
            )
        if query.retrieval_s > LONGEST_S:
            raise ValueError(
                f"query {query.id!r}: its retrieval takes {query.retrieval_s:g} s, the limit is {LONGEST_S:g} s"
            )


def longest_prompt(query: Query) -> int:
    """Tokens; a context that was replaced may have been longer than the final prompt."""
    contexts = (sum(query.pieces[name].length for name in context) for context in query.contexts())
    return max(query.tokens, query.opening.length + max(contexts))
