"""The arms that speak HTTP: waiting, growing warm-up calls, context streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from stream2llm.client import Ack, AsyncClient, AsyncContextStream
from stream2llm.workloads.replay.completions import Completions, read
from stream2llm.workloads.replay.content import Content, Contents
from stream2llm.workloads.replay.plan import Due
from stream2llm.workloads.replay.recorder import Notes
from stream2llm.workloads.replay.run import Arm, ServerArm

logger = logging.getLogger("stream2llm")


class Waiting(ServerArm):
    """Holds everything back and sends it in the end."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    @asynccontextmanager
    async def delivery(self, contents: Contents, notes: Notes) -> AsyncIterator[_Waiting]:
        yield _Waiting(self._completions, contents)


class _Waiting:
    def __init__(self, completions: Completions, contents: Contents) -> None:
        self._completions = completions
        self._contents = contents

    def open(self) -> None: ...

    def hand_over(self, due: Due) -> None: ...

    async def answer(self, due: Due, first: Callable[[], None]) -> int:
        return await self._completions.ask(self._contents.prompt(due.context), first)


class Warming(ServerArm):
    """Has the server compute the context so far, by a stock completion of one token, after each operation but the last.

    What anybody can do with a stock server. A warm-up call that fails costs time only.
    """

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    @asynccontextmanager
    async def delivery(self, contents: Contents, notes: Notes) -> AsyncIterator[_Warming]:
        delivery = _Warming(self._completions, contents, notes)
        try:
            yield delivery
        finally:
            await delivery.give_up()


class _Warming:
    def __init__(self, completions: Completions, contents: Contents, notes: Notes) -> None:
        self._completions = completions
        self._contents = contents
        self._notes = notes
        self._calls: set[asyncio.Task[None]] = set()

    def open(self) -> None: ...

    def hand_over(self, due: Due) -> None:
        self._notes.sent(due.number, due.tokens)
        if prompt := self._contents.context(due.context):
            call = asyncio.create_task(self._warm_up(prompt, due.number))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def answer(self, due: Due, first: Callable[[], None]) -> int:
        return await self._completions.ask(self._contents.prompt(due.context), first)

    async def give_up(self) -> None:
        """Hang up on calls under way; the server stops computing them."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _warm_up(self, prompt: Content, operation: int) -> None:
        try:
            await self._completions.ask(prompt, max_tokens=1)
        except ServerArm.failures as error:
            logger.debug("warm-up call failed: %s", error)
            return
        self._notes.acked(operation)


class Streaming(ServerArm):
    """Context streams, through the SDK."""

    def __init__(self, client: AsyncClient, completions: Completions) -> None:
        self._client = client
        self._completions = completions

    @asynccontextmanager
    async def delivery(self, contents: Contents, notes: Notes) -> AsyncIterator[_Streaming]:
        delivery = _Streaming(self._client, self._completions, contents, notes)
        try:
            yield delivery
        finally:
            await delivery.give_up()


class _Streaming:
    """A stream is opened with the first content. What is handed over while a write is under way goes with the next one,
    or with the question."""

    def __init__(self, client: AsyncClient, completions: Completions, contents: Contents, notes: Notes) -> None:
        self._client = client
        self._completions = completions
        self._contents = contents
        self._notes = notes
        self._stream: AsyncContextStream | None = None
        self._unsent: list[Due] = []
        self._writing: asyncio.Task[None] | None = None
        self._complete = False

    def open(self) -> None:
        if self._contents.opening:
            self._start_writing()

    def hand_over(self, due: Due) -> None:
        self._notes.sent(due.number, due.tokens)
        self._unsent.append(due)
        self._start_writing()

    async def answer(self, due: Due, first: Callable[[], None]) -> int:
        self._complete = True
        self._unsent.append(due)
        if self._writing is not None:
            await self._writing
        added = _added(self._unsent)
        if self._stream is not None and added is not None:
            rest = self._contents.rest(added)
            return await read(await self._stream.complete(rest, stream=True, **self._completions.sampling), first)
        # A last replacement and the question are one request: the whole prompt, which names the stream.
        names = {} if self._stream is None else {"vllm_xargs": {"context_stream": self._stream.id}}
        return await self._completions.ask(self._contents.prompt(due.context), first, **names)

    async def give_up(self) -> None:
        """Close the stream, unless it is answered. A write under way is waited for: it may be opening the stream."""
        self._complete = True
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        if self._stream is not None:
            await self._stream.__aexit__(None, None, None)

    def _start_writing(self) -> None:
        if self._writing is not None:
            if not self._writing.done():
                return
            self._writing.result()  # raises what a write has failed with
        self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while not self._complete and (self._unsent or self._stream is None):
            batch, self._unsent = self._unsent, []
            ack = await self._written(batch)
            for due in batch:
                self._notes.acked(due.number, ack.computed_tokens)

    async def _written(self, batch: list[Due]) -> Ack:
        context = batch[-1].context if batch else ()
        if self._stream is None:
            salt = self._completions.salt
            stream = self._client.stream(**_named(self._contents.context(context)), cache_salt=salt)
            ack = await stream.open()
            self._stream = stream
            return ack
        added = _added(batch)
        if added is None:
            return await self._stream.replace(**_named(self._contents.context(context)))
        return await self._stream.append(**_named(self._contents.of(added)))


def _added(batch: list[Due]) -> list[str] | None:
    """The pieces that the operations append together; None where one of them replaces."""
    names: list[str] = []
    for due in batch:
        if due.added is None:
            return None
        names += due.added
    return names


def _named(content: Content) -> dict[str, Any]:
    return {"text": content} if isinstance(content, str) else {"token_ids": content}


def arm_named(name: str, client: AsyncClient, completions: Completions) -> Arm:
    """The arm `stream`, `wait` or `warm`. Raises `KeyError`."""
    arms: dict[str, Arm] = {
        "stream": Streaming(client, completions),
        "wait": Waiting(completions),
        "warm": Warming(completions),
    }
    return arms[name]
