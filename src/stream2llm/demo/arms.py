"""The two ways of asking, on the same server with the same prompt: streaming the pages, and waiting for them all."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from stream2llm.client import AsyncAnswerStream, AsyncClient, AsyncContextStream, Stream2LLMError
from stream2llm.client.errors import error_from
from stream2llm.crawl.page import Page
from stream2llm.demo.prompt import OPENING, Prompt

POLL_SECONDS = 0.2


class View(Protocol):
    """What an arm tells as it goes."""

    def page(self, page: Page) -> None:
        """A page has come."""

    def tokens(self, computed: int, handed: int) -> None:
        """So many of the tokens handed over are prefilled."""

    def piece(self, text: str) -> None:
        """Text of the answer has come."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one arm came to. Times in seconds.

    `ttft`: from the moment the last page was handed over (before it was sent) to the first token received;
    `crawl`: from the start to that moment.
    """

    pages: tuple[Page, ...]
    crawl: float
    ttft: float
    answer: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Arms:
    """Asks one server. `max_tokens` bounds the answer, which is greedy.

    Each arm's KV blocks are salted, so none reuses what another has computed; the prompts are the same.
    """

    url: str
    model: str
    prompt: Prompt
    max_tokens: int = 64
    api_key: str | None = None

    async def stream(self, pages: AsyncIterator[Page], view: View) -> Asked:
        """Hand every page over as it comes, then the question."""
        salt, begin, last, seen = secrets.token_hex(8), time.monotonic(), 0.0, []
        opening = [{"role": "user", "content": OPENING}]
        async with (
            AsyncClient(self.url, api_key=self.api_key, model=self.model) as client,
            client.stream(messages=opening, cache_salt=salt) as stream,
            _watching(stream, view),
        ):
            async for page in pages:
                last = time.monotonic()
                seen.append(page)
                view.page(page)
                await stream.append(self.prompt.piece(page))
            await stream.append(self.prompt.closing)
            async with await stream.chat(stream=True, **self._sampling) as answer:
                return await _read(answer, begin, last, seen, view)

    async def wait(self, pages: AsyncIterator[Page], view: View) -> Asked:
        """Collect all pages, then send a stock chat request."""
        salt, begin, last, seen = secrets.token_hex(8), time.monotonic(), 0.0, []
        async for page in pages:
            last = time.monotonic()
            seen.append(page)
            view.page(page)
        async with self._http() as http:
            request = http.build_request("POST", "/v1/chat/completions", json=self._body(seen, salt))
            async with AsyncAnswerStream(await self._sent(http, request)) as answer:
                return await _read(answer, begin, last, seen, view)

    async def warm_up(self) -> None:
        """Ask something short both ways, so that neither arm pays for what a server does only once."""
        page = Page("", "Warm-up", "Nothing to see here. " * 40, 0, 0.0)
        for arm in (self.stream, self.wait):
            await arm(replay([page]), Silent())

    @property
    def _sampling(self) -> dict[str, Any]:
        return {"temperature": 0.0, "max_tokens": self.max_tokens}

    def _body(self, pages: list[Page], salt: str) -> dict[str, Any]:
        message = {"role": "user", "content": self.prompt.whole(pages)}
        return {
            "model": self.model,
            "messages": [message],
            "cache_salt": salt,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling,
        }

    def _http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=600.0)

    @staticmethod
    async def _sent(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        response = await http.send(request, stream=True)
        if response.is_error:
            await response.aread()
            raise error_from(response)
        return response


class Silent:
    """A view that shows nothing."""

    def page(self, page: Page) -> None: ...

    def tokens(self, computed: int, handed: int) -> None: ...

    def piece(self, text: str) -> None: ...


async def replay(pages: list[Page] | tuple[Page, ...]) -> AsyncIterator[Page]:
    """The pages again, each at the time at which it came."""
    begin = time.monotonic()
    for page in pages:
        await asyncio.sleep(page.at - (time.monotonic() - begin))
        yield page


async def _read(answer: AsyncAnswerStream, begin: float, last: float, pages: list[Page], view: View) -> Asked:
    first: float | None = None
    async for piece in answer:
        first = first or time.monotonic()
        view.piece(piece.text)
    return Asked(
        pages=tuple(pages),
        crawl=last - begin,
        ttft=(first or time.monotonic()) - last,
        answer=answer.text,
        prompt_tokens=answer.usage.get("prompt_tokens", 0),
    )


@asynccontextmanager
async def _watching(stream: AsyncContextStream, view: View) -> AsyncIterator[None]:
    """Tell the view how far the server has prefilled, until the stream is finished."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                ack = await stream.status()
            except Stream2LLMError:  # finished meanwhile
                return
            if ack.tokens is not None:
                view.tokens(ack.computed_tokens or 0, ack.tokens)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
