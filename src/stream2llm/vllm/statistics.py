"""Counters of the scheduler, for the statistics op and the benchmarks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stream2llm.waiting import WaitingTimes


@dataclass
class Statistics:
    """Counters since the engine started, under the one policy it was started with; tokens and blocks are totals.

    A request that is preempted twice is counted twice.
    """

    opened: int = 0
    versions: int = 0
    tokens_received: int = 0
    tokens_invalidated: int = 0
    finals: int = 0
    tokens_adopted: int = 0  # tokens of final prompts whose blocks their stream held
    expired: int = 0
    pins_evicted: int = 0  # idle or waiting streams and waiting requests that gave up blocks
    preempted: int = 0  # versions that were being prefilled and gave up blocks
    preempted_complete: int = 0  # complete requests that were running and gave up blocks
    parked: int = 0  # versions that lost their sequence slot only
    parked_complete: int = 0  # complete requests that lost their sequence slot only
    stalls: int = 0  # times when nothing could be scheduled and all streams gave up their blocks
    tokens_computed: int = 0
    context_tokens_computed: int = 0  # those of open streams
    steps: int = 0
    plan_seconds: float = 0.0
    waits: WaitingTimes = field(default_factory=WaitingTimes)  # complete requests, until they are first scheduled

    def as_dict(self) -> dict[str, Any]:
        """Seconds waited as maximum and quantile."""
        counters = {name: value for name, value in asdict(self).items() if name != "waits"}
        return {
            **counters,
            "wait_max_seconds": self.waits.longest,
            "wait_p99_seconds": self.waits.quantile(0.99),
        }
