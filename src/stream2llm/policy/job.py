"""What a policy is told about a request or an open stream, and what it decides. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stream2llm.ranking import Rank


class Job(NamedTuple):
    """A complete request (`complete`: its whole prompt is here), or an open stream. Times are Unix seconds.

    `arrival`: when the request, or its stream, came. `last_chunk`: when the newest piece of its context came.
    `since`: when the stream came, or came back after a silence. `started`: when it was last given a sequence slot, 0 if
    never. `computed_tokens` have their KV blocks held for it; `remaining_tokens` are still to be prefilled, which takes
    `remaining_seconds` by the cost model. `silent`: the stream has not been written to for so long that its client may
    be gone. `decoding`: its prefill is done. `preemptions`: how often it has been preempted, streams not counted.
    `priority`: vLLM's, the lower the sooner; that of streams comes after all others.
    """

    complete: bool
    arrival: float
    last_chunk: float
    since: float
    started: float = 0.0
    computed_tokens: int = 0
    remaining_tokens: int = 0
    remaining_seconds: float = 0.0
    silent: bool = False
    decoding: bool = False
    preemptions: int = 0
    priority: int = 0

    @property
    def idle(self) -> bool:
        """A stream with nothing to compute: it only holds blocks, for how long nobody knows."""
        return self.remaining_tokens <= 0 and not self.decoding


class Policy(Protocol):
    """Two decisions: the order of service, and the order of giving up memory.

    Both must be functions of the job alone: a rank is kept until the job changes, so that nothing is sorted anew in a
    step. (A rank that ages with time can be had: `work + weight * arrival` orders as `work - weight * waited` does.)
    Whatever the ranks, the planner's guarantees hold: see `stream2llm.planner`.
    """

    name: str
    description: str
    complete_first: bool
    """Every complete request ranks before every stream in `service`, and gives up after them."""
    preempts_running: bool
    """Whether a waiting request may take the KV blocks of a running complete request that ranks below it."""

    short_steps: bool
    """Whether a step computes no more of streams than makes it efficient (`CostProfile.efficient_tokens`), so that a
    complete request that comes meanwhile does not wait long for its end."""

    def service(self, job: Job, /) -> Rank:
        """The rank in which jobs are computed: lowest first."""
        ...

    def giving(self, job: Job, /) -> Rank:
        """The rank in which jobs give up their KV blocks: lowest first."""
        ...
