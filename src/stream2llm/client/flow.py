"""Protocol logic without I/O: a flow is a generator that yields what is to be done and is sent what came of it.

The sync and the async client run the same flows; a test runs them with a script of answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; the flow is sent the `httpx.Response` or thrown the `httpx.TransportError`.

    The response's body has been read, unless `stream` is true and the status is 200. `answer` marks a request whose
    answer is generated: it may take as long as the client's `answer_timeout`.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] | None = None
    stream: bool = False
    answer: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for `seconds`."""

    seconds: float


Step = Send | Pause
Flow = Generator[Step, Any, T]


def run(flow: Flow[T], perform: Callable[[Step], Any]) -> T:
    """Run a flow to its end with `perform` doing each step; returns the flow's value."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = perform(step)
            except httpx.RequestError as error:
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def run_async(flow: Flow[T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """As `run`, with an asynchronous `perform`."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = await perform(step)
            except httpx.RequestError as error:
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        value: T = stop.value
        return value
