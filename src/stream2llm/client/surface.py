"""What the sync and the async client have in common besides the flows: options, bodies, bookkeeping of a stream."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypedDict

import httpx

from stream2llm.client import warming
from stream2llm.client.answers import Ack
from stream2llm.client.content import Unnamed, content_of, replacement
from stream2llm.client.errors import InvalidRequest, PrefixWarmingWarning, StreamFinished
from stream2llm.client.flow import Send
from stream2llm.client.stream_flows import Held, Write, is_refusal, new_id
from stream2llm.content import Content, Message

logger = logging.getLogger("stream2llm")

DEFAULT_TIMEOUT = 30.0
DEFAULT_ANSWER_TIMEOUT = 600.0
# As many connections as there are streams; an idle one is dropped before vLLM's server does it (after 5 s), because a
# request that meets the closing connection would have to be repeated.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=4.0)


class StreamOptions(TypedDict, total=False):
    """What a stream can be opened with, besides its content; see the HTTP API."""

    id: str
    ttl: float
    model: str
    cache_salt: str
    priority: int
    add_special_tokens: bool
    chat_template_kwargs: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]


class Connection:
    """How to reach a server, as httpx wants it; knows whether the server turned out to have no context streams."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str | None,
        timeout: float | httpx.Timeout | None,
        answer_timeout: float | None,
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.model = model
        self.timeout = httpx.Timeout(timeout)
        self.answer_timeout = httpx.Timeout(
            connect=self.timeout.connect, write=self.timeout.write, pool=self.timeout.pool, read=answer_timeout
        )
        self.warming = False

    def request(self, http: httpx.Client | httpx.AsyncClient, send: Send) -> httpx.Request:
        """The HTTP request for a step of a flow."""
        return http.build_request(
            send.method,
            self.base_url + send.path,
            params=send.query,
            content=None if send.body is None else encoded(send.body),
            headers={"Content-Type": "application/json"} if send.body is not None else None,
            timeout=self.answer_timeout if send.answer else self.timeout,
        )

    def held(
        self,
        unnamed: Unnamed | None,
        text: str | None,
        token_ids: Sequence[int] | None,
        messages: Sequence[Message] | None,
        options: Mapping[str, Any],
    ) -> Held:
        """A stream about to be opened."""
        given = {name: value for name, value in options.items() if value is not None and name != "id"}
        if self.model is not None:
            given.setdefault("model", self.model)
        return Held(
            id=options.get("id") or new_id(),
            options=given,
            content=content_of(unnamed, text, token_ids, messages),
            warming=self.warming,
        )

    def note_warming(self) -> None:
        """Warn, once per client, that the server has no context streams."""
        if not self.warming:
            self.warming = True
            warnings.warn(warming.MESSAGE, PrefixWarmingWarning, stacklevel=6)


class StreamBase:
    """What both kinds of context stream know about themselves."""

    def __init__(self, connection: Connection, held: Held) -> None:
        self._connection = connection
        self._held = held
        self._ack: Ack | None = None
        self._ended: str | None = None

    @property
    def id(self) -> str:
        """The stream's id, for a stock request that names it itself. It changes if the client must open anew."""
        return self._held.id

    @property
    def version(self) -> int:
        """The version of the content, as the server counts."""
        return self._held.version

    @property
    def ack(self) -> Ack | None:
        """The last acknowledgement; None before the stream is open."""
        return self._ack

    @property
    def warming(self) -> bool:
        """Whether the server has no context streams, so that the client warms its prefix cache instead."""
        return self._held.warming

    def _written(
        self,
        how: Write,
        unnamed: Unnamed | None,
        text: str | None,
        token_ids: Sequence[int] | None,
        messages: Sequence[Message] | None,
    ) -> Content:
        """The content of a write. Raises `InvalidRequest` unless there is exactly one, and one that can be meant."""
        content = content_of(unnamed, text, token_ids, messages)
        if content is None:
            raise InvalidRequest("give exactly one of text, token_ids and messages")
        if how == "replace":
            return replacement(self._held.content, content, named=unnamed is None)
        return content

    @contextmanager
    def _uncertain(self) -> Iterator[Held]:
        """Around whatever changes the stream: unless the server says no, a failure leaves its fate unknown."""
        if self._ended or self._ack is None:
            raise StreamFinished(f"the stream is {self._ended or 'not open: use it in a with block'}")
        held = self._held
        self._held = replace(held, adrift=True)
        try:
            yield held
        except BaseException as error:
            if is_refusal(error):
                self._held = held
            raise

    def _accept(self, held: Held, ack: Ack | None = None) -> Send | None:
        """Take over what a flow made of the stream; returns a warm-up to send, if there is one."""
        self._held = held
        self._ack = ack or self._ack
        if not held.warming:
            return None
        self._connection.note_warming()
        return warming.warm_up(held) if ack else None


def answer_body(field: str, value: Any, stream: bool, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a completion: the user's stock fields, and usage with a streamed answer unless it is declined."""
    body = dict(fields)
    if value is not None:
        body[field] = value
    if stream:
        body["stream"] = True
        body.setdefault("stream_options", {"include_usage": True})
    return body


def encoded(body: Mapping[str, Any]) -> bytes:
    """A body as JSON: in UTF-8 where the text allows, escaped where it holds lone surrogates."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
