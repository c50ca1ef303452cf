"""One context stream in the engine core: its state, its newest version's request, and the blocks held for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.request import Request, RequestStatus

from stream2llm.policy import Job
from stream2llm.ranking import FIRST, Rank
from stream2llm.stream import StreamState
from stream2llm.vllm.pins import Pins

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest

# vLLM's priority scheduling serves low numbers first: a version never goes before, nor preempts, a complete request.
LAST_PRIORITY = 1 << 62


@dataclass(slots=True)
class Stream:
    """One stream in the engine. `live` is the request of its newest version while that is not finished; `final` the
    request that took the stream over, until it holds the pinned blocks itself. `started`: when one of its versions was
    last given a sequence slot. `silent`: its client may be gone."""

    state: StreamState
    template: EngineCoreRequest
    source: dict[str, Any]
    pieces: list[Any]
    pins: Pins
    block_hashes: list[Any] = field(default_factory=list)
    live: Request | None = None
    final: Request | None = None
    started: float = 0.0
    silent: bool = False
    rank: Rank = FIRST  # in the order of service, when the stream last changed

    @property
    def computed(self) -> int:
        """Tokens of the present version whose KV blocks are held, by the pins or by the running request."""
        running = self.live.num_computed_tokens if self.live is not None else 0
        return min(len(self.state.tokens), max(running, self.pins.tokens))

    @property
    def job(self) -> Job:
        """What the policy is told about the open stream."""
        state, live = self.state, self.live
        computed = self.computed
        return Job(
            False,
            state.created_at,
            state.expires_at - state.ttl,
            state.since,
            self.started,
            computed,
            live.num_prompt_tokens - computed if live is not None else 0,
            silent=self.silent,
            priority=LAST_PRIORITY,
        )

    def phase(self, block_size: int) -> str:
        if not self.state.tokens:
            return "empty"
        if self.live is not None:
            return "prefilling" if self.live.status == RequestStatus.RUNNING else "waiting"
        return "ready" if self.pins.tokens >= len(self.state.tokens) // block_size * block_size else "evicted"
