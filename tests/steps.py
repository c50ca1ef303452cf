"""What the steps of the real scheduler compute, and how far a request has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stepping import Engine


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Tokens that a step computes: of open streams, and of requests.

    `allowed`: what streams may have beside decodes; `beside_prefills`: if a request is prefilled too.
    """

    context: int
    requests: int
    allowed: float
    beside_prefills: float


@contextmanager
def recorded_steps(engine: Engine) -> Iterator[list[StepTokens]]:
    """The steps that are scheduled within the block."""
    scheduler = engine.scheduler
    schedule = scheduler.schedule
    steps: list[StepTokens] = []

    def recorded(*args: Any) -> Any:
        allowed = [scheduler.observation.context_tokens(1, only_decodes) for only_decodes in (True, False)]
        output = schedule(*args)
        versions = [
            count
            for request_id, count in output.num_scheduled_tokens.items()
            if scheduler.streams.is_version(scheduler.requests[request_id])
        ]
        context = sum(versions)
        steps.append(StepTokens(context, output.total_num_scheduled_tokens - context, *allowed))
        return output

    scheduler.schedule = recorded
    try:
        yield steps
    finally:
        del scheduler.schedule


def request(engine: Engine, request_id: str) -> Any:
    """The scheduler's request of that id, to which vLLM adds a suffix."""
    return next(found for id, found in engine.scheduler.requests.items() if id.split("-")[:2] == request_id.split("-"))


def runs(engine: Engine, request_id: str) -> bool:
    """Whether the request has a sequence slot."""
    return str(request(engine, request_id).status.name) == "RUNNING"


def finished(engine: Engine, request_id: str) -> bool:
    return request_id in engine.outputs and bool(engine.outputs[request_id].finished)


def computed(engine: Engine) -> dict[str, int]:
    """The computed tokens of each open stream."""
    return {status["id"]: status["computed_tokens"] for status in engine.core.context_list()}
