"""Stock completions of a server: the baseline's requests, and the last one of every arm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from stream2llm.client import AsyncAnswerStream
from stream2llm.client.errors import error_from
from stream2llm.workloads.replay.content import Content


@dataclass(frozen=True, slots=True)
class Completions:
    """Asks one server for greedy answers of exactly `max_tokens` tokens.

    `salt` separates the prefix cache of this run from those before it, which had the same prompts. Raises
    `Stream2LLMError` and `httpx.HTTPError`.
    """

    http: httpx.AsyncClient
    model: str
    salt: str
    max_tokens: int = 1

    @property
    def sampling(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "temperature": 0.0, "ignore_eos": True}

    async def ask(self, prompt: Content, first: Callable[[], None] | None = None, **fields: Any) -> int:
        """Calls `first` at the first token; returns the answer's number of tokens."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "cache_salt": self.salt,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.sampling,
            **fields,
        }
        response = await self.http.send(self.http.build_request("POST", "/v1/completions", json=body), stream=True)
        if response.is_error:
            await response.aread()
            raise error_from(response)
        return await read(AsyncAnswerStream(response), first)


async def read(answer: AsyncAnswerStream, first: Callable[[], None] | None = None) -> int:
    """Reads an answer to its end; returns its number of tokens, as the server counts."""
    async with answer:
        events = 0
        async for _ in answer:
            events += 1
            if events == 1 and first is not None:
                first()
        return int(answer.usage.get("completion_tokens", events))
