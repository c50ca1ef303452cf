"""The asynchronous client: the synchronous one's surface, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import httpx

from stream2llm.client import stream_flows as flows
from stream2llm.client.answers import Ack, Answer, AnswerProgress, Piece, answer_from
from stream2llm.client.content import Endpoint, Unnamed
from stream2llm.client.errors import Stream2LLMError
from stream2llm.client.flow import Flow, Pause, Send, Step, run_async
from stream2llm.client.retry import RetryPolicy
from stream2llm.client.surface import (
    DEFAULT_ANSWER_TIMEOUT,
    DEFAULT_TIMEOUT,
    LIMITS,
    Connection,
    StreamBase,
    StreamOptions,
    answer_body,
    logger,
)
from stream2llm.client.warming import AsyncWarmer
from stream2llm.content import Message

T = TypeVar("T")


class AsyncClient:
    """A connection to a server with context streams, or to any OpenAI-compatible one (see `PrefixWarmingWarning`).

    `base_url` with or without a trailing `/v1`. `model`: default for the streams opened; None leaves the choice to the
    server. `timeout` in seconds (or an `httpx.Timeout`) for everything but answers, which may keep silent for
    `answer_timeout` seconds. `transport` replaces the network, for tests and special set-ups. Every call may
    raise a `Stream2LLMError`.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float | httpx.Timeout | None = DEFAULT_TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        answer_timeout: float | None = DEFAULT_ANSWER_TIMEOUT,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._connection = Connection(base_url, api_key, model, timeout, answer_timeout)
        self._retry = retry or RetryPolicy()
        self._http = httpx.AsyncClient(headers=self._connection.headers, limits=LIMITS, transport=transport)

    def stream(
        self,
        content: Unnamed | None = None,
        /,
        *,
        text: str | None = None,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncContextStream:
        """A context stream, opened when its `async with` block is entered; with content, or empty."""
        return AsyncContextStream(self, self._connection.held(content, text, token_ids, messages, options))

    async def streams(self) -> list[Ack]:
        """All streams open on the server, oldest first."""
        return await self._run(flows.open_streams(self._retry))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        return await run_async(flow, self._perform)

    async def _perform(self, step: Step) -> httpx.Response | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        response = await self._send(step)
        if step.stream and not response.is_success:
            await response.aread()
        return response

    async def _send(self, step: Send) -> httpx.Response:
        return await self._http.send(self._connection.request(self._http, step), stream=step.stream)

    @asynccontextmanager
    async def _open_response(self, step: Send) -> AsyncIterator[httpx.Response]:
        response = await self._send(step)
        async with aclosing(response):
            yield response


class AsyncContextStream(StreamBase):
    """A prompt prefix on the server that grows or is replaced while it is being retrieved.

    A context manager: entering opens the stream, leaving closes it unless it was completed. Its writes are serialised,
    so several tasks may write to it.
    """

    def __init__(self, client: AsyncClient, held: flows.Held) -> None:
        super().__init__(client._connection, held)
        self._client = client
        self._lock = asyncio.Lock()
        self._warmer = AsyncWarmer(client._open_response)
        self._answer: AsyncAnswerStream | None = None

    async def open(self) -> Ack:
        """Open the stream; entering the `async with` block does it."""
        return await self._start()

    async def append(
        self,
        content: Unnamed | None = None,
        /,
        *,
        text: str | None = None,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
    ) -> Ack:
        """Append a text, a list of messages or a list of token ids, which may also be given by name.

        Text continues the last message of a stream of messages. Raises `TypeError` for anything else.
        """
        return await self._write("append", content, text, token_ids, messages)

    async def replace(
        self,
        content: Unnamed | None = None,
        /,
        *,
        text: str | None = None,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
    ) -> Ack:
        """Replace the whole content; what the new one has in common with the old from its front stays computed.

        Takes what `append` takes. The new content may be of another kind only if it is given by name: otherwise
        `InvalidRequest` is raised, before anything is sent.
        """
        return await self._write("replace", content, text, token_ids, messages)

    async def status(self) -> Ack:
        """The stream's state now; `lcp` and `invalidated_tokens` are those of its last write."""
        return await self._client._run(flows.status(self._held, self._client._retry))

    @overload
    async def complete(
        self, prompt: str | Sequence[int] | None = None, *, stream: Literal[False] = False, **fields: Any
    ) -> Answer: ...
    @overload
    async def complete(
        self, prompt: str | Sequence[int] | None = None, *, stream: Literal[True], **fields: Any
    ) -> AsyncAnswerStream: ...
    async def complete(
        self, prompt: str | Sequence[int] | None = None, *, stream: bool = False, **fields: Any
    ) -> Answer | AsyncAnswerStream:
        """Finish with a completion of the content followed by `prompt`; `fields` are those of the stock request."""
        return await self._finish("completions", answer_body("prompt", prompt, stream, fields))

    @overload
    async def chat(
        self, messages: Sequence[Message] | None = None, *, stream: Literal[False] = False, **fields: Any
    ) -> Answer: ...
    @overload
    async def chat(
        self, messages: Sequence[Message] | None = None, *, stream: Literal[True], **fields: Any
    ) -> AsyncAnswerStream: ...
    async def chat(
        self, messages: Sequence[Message] | None = None, *, stream: bool = False, **fields: Any
    ) -> Answer | AsyncAnswerStream:
        """Finish with a chat completion of the content followed by `messages`."""
        return await self._finish("chat/completions", answer_body("messages", messages, stream, fields))

    async def close(self) -> None:
        """Close the stream, and the answer if it is still coming; the server stops generating."""
        async with self._lock:
            await self._warmer.stop()
            if self._answer is not None:
                await self._answer.close()
            if self._ended is None and self._ack is not None:
                self._ended = "closed"
                await self._client._run(flows.close(self._held, self._client._retry))

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Stream2LLMError as failure:
            logger.warning("stream %s is left to expire on the server: %s", self.id, failure)

    async def _start(self) -> Ack:
        async with self._lock:
            return self._take_over(await self._client._run(flows.open_stream(self._held, self._client._retry)))

    async def _write(
        self,
        how: flows.Write,
        unnamed: Unnamed | None,
        text: str | None,
        token_ids: Sequence[int] | None,
        messages: Sequence[Message] | None,
    ) -> Ack:
        async with self._lock:
            content = self._written(how, unnamed, text, token_ids, messages)
            with self._uncertain() as held:
                return self._take_over(await self._client._run(flows.write(held, how, content, self._client._retry)))

    def _take_over(self, outcome: tuple[flows.Held, Ack]) -> Ack:
        held, ack = outcome
        warm_up = self._accept(held, ack)
        if warm_up is not None:
            self._warmer.offer(warm_up)
        return ack

    async def _finish(self, endpoint: Endpoint, body: dict[str, Any]) -> Answer | AsyncAnswerStream:
        async with self._lock:
            with self._uncertain() as held:
                await self._warmer.stop()
                held, response = await self._client._run(flows.complete(held, endpoint, body, self._client._retry))
                self._accept(held)
                self._ended = "finished"
                if not body.get("stream"):
                    return answer_from(response)
                self._answer = AsyncAnswerStream(response)
                return self._answer


class AsyncAnswerStream(AnswerProgress):
    """An answer as it is generated: iterate over it for its pieces.

    Leaving it early, or its `async with` block, makes the server stop generating.
    """

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response)
        self._pieces = self._read()

    async def close(self) -> None:
        """Stop the answer."""
        await self.response.aclose()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._pieces

    async def __anext__(self) -> Piece:
        return await anext(self._pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _read(self) -> AsyncIterator[Piece]:
        async with aclosing(self.response):
            try:
                async for data in self.response.aiter_bytes():
                    for piece in self._reader.feed(data):
                        yield piece
            except (httpx.RequestError, httpx.StreamError) as error:
                self._reader.end(error)
            self._reader.end()
