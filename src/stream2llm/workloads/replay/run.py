"""Follows a plan: each query in a task of its own, until all have ended or the run is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import httpx

from stream2llm.client import Stream2LLMError
from stream2llm.workloads.events import Run, What, writing_events
from stream2llm.workloads.measured import Measured, read
from stream2llm.workloads.replay.content import Contents, Vocabulary
from stream2llm.workloads.replay.counters import over_the_run
from stream2llm.workloads.replay.plan import Due, Planned, timeline
from stream2llm.workloads.replay.recorder import Notes, Recorder, Tally

STOPPED = "stopped before its end"


class Delivery(Protocol):
    """How the context of one query gets to the engine. Only `answer` waits for it."""

    def open(self) -> None:
        """The context begins, with the query's opening."""

    def hand_over(self, due: Due) -> None:
        """An operation is due; not the last one."""

    async def answer(self, due: Due, first: Callable[[], None]) -> int:
        """The last operation is due, and the question.

        Calls `first` at the first token; returns the number of tokens of the answer.
        """


class Arm(Protocol):
    """A way of getting contexts to an engine."""

    failures: tuple[type[Exception], ...]
    """What a query may fail with, while the others go on."""

    def delivery(self, contents: Contents, notes: Notes) -> AbstractAsyncContextManager[Delivery]:
        """For one query; leaving it gives up what is under way."""


class ServerArm:
    """What the arms that speak HTTP have in common."""

    failures: tuple[type[Exception], ...] = (Stream2LLMError, httpx.HTTPError, httpx.StreamError)


async def replay(
    planned: Sequence[Planned],
    arm: Arm,
    recorder: Recorder,
    *,
    stop: asyncio.Event,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
) -> None:
    """Run the plan, from now on as `recorder.clock` counts.

    When `stop` is set, the queries under way are given up, with their streams closed and an error in the log; those to
    come are left out. A query that fails is an error in the log too, and the run goes on.
    """
    words = vocabulary or Vocabulary()
    tasks = [asyncio.create_task(_Query(item, arm, recorder).run(words, seed)) for item in planned]
    stopping = asyncio.create_task(stop.wait())
    whole = asyncio.gather(*tasks)
    ends: list[asyncio.Future[Any]] = [whole, stopping]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if whole.done():
            whole.result()
    finally:
        stopping.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, stopping, return_exceptions=True)
        await asyncio.gather(whole, return_exceptions=True)


async def record(
    path: Path,
    run: Run,
    planned: Sequence[Planned],
    arm: Arm,
    *,
    count: Callable[[], Awaitable[Mapping[str, float]]],
    stop: asyncio.Event,
    watch: Callable[[Tally], None] = lambda tally: None,
    vocabulary: Vocabulary | None = None,
) -> Measured:
    """Replay into the log at `path`, whether it ends or is stopped; what `count` gives is counted over the run.

    `watch` is given the tally, which is filled as the run goes on. Content is drawn by the seed of `run`. Raises
    `OSError`.
    """
    with writing_events(path, run) as lines:
        before = await count()
        recorder = Recorder(lines)
        watch(recorder.tally)
        try:
            await replay(planned, arm, recorder, stop=stop, vocabulary=vocabulary, seed=run.seed)
        finally:
            recorder.counters(over_the_run(before, await count()))
    return read(path)


class _Query:
    """One query, from its arrival to its end."""

    def __init__(self, planned: Planned, arm: Arm, recorder: Recorder) -> None:
        self._query = planned.query
        self._arrival_s = planned.arrival_s
        self._arm = arm
        self._recorder = recorder

    async def run(self, vocabulary: Vocabulary, seed: int) -> None:
        await self._until(0.0)
        self._note(What.ARRIVED)
        contents = Contents(self._query, vocabulary, seed)
        try:
            async with self._arm.delivery(contents, Notes(self._recorder, self._query.id)) as delivery:
                await self._deliver(delivery)
        except self._arm.failures as error:
            self._note(What.ERROR, detail=str(error) or repr(error))
        except asyncio.CancelledError:
            self._note(What.ERROR, detail=STOPPED)
            raise

    async def _deliver(self, delivery: Delivery) -> None:
        *before, last = timeline(self._query)
        await self._until(self._query.lead_s)
        delivery.open()
        for due in before:
            await self._until(due.at_s)
            delivery.hand_over(due)
        await self._until(last.at_s)
        self._note(What.LAST, operation=last.number, tokens=last.tokens + self._query.question.length)
        tokens = await delivery.answer(last, lambda: self._note(What.FIRST))
        self._note(What.END, tokens=tokens)

    async def _until(self, at_s: float) -> None:
        lag = await self._recorder.clock.until(self._arrival_s + at_s)
        self._recorder.tally.lags.append(lag)

    def _note(self, what: What, *, operation: int | None = None, tokens: int | None = None, detail: str = "") -> None:
        self._recorder.note(self._query.id, what, operation=operation, tokens=tokens, detail=detail)
