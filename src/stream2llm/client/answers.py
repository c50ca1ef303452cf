"""What a server answers: acknowledgements of writes, whole answers, and answers token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import httpx

from stream2llm.client.errors import AnswerInterrupted, ServerUnavailable, error_from_body


@dataclass(frozen=True, slots=True)
class Ack:
    """The server's answer to a write, or a stream's state.

    Token counts are of the whole prompt so far: `tokens` its length, `lcp` what it has in common with the version
    before, `invalidated_tokens` what was computed in vain, `computed_tokens` what is computed already. Times are Unix
    seconds. None: unknown (a server without context streams). `reopened`: the server had lost the stream and was given
    it again, so versions count anew.
    """

    id: str
    state: str
    version: int
    tokens: int | None = None
    lcp: int | None = None
    invalidated_tokens: int | None = None
    computed_tokens: int | None = None
    created_at: float | None = None
    expires_at: float | None = None
    reopened: bool = False


_ACK_FIELDS = frozenset(item.name for item in fields(Ack)) - {"reopened"}


def ack_from(response: httpx.Response, *, reopened: bool = False) -> Ack:
    """The acknowledgement in a response. Raises `ServerUnavailable` when it is not one."""
    try:
        return ack_of(response.json(), reopened=reopened)
    except (ValueError, TypeError, AttributeError) as error:
        raise ServerUnavailable(
            f"{response.request.url} did not answer with a context stream; is it the right address?",
            status=response.status_code,
        ) from error


def ack_of(body: Mapping[str, Any], *, reopened: bool = False) -> Ack:
    """The acknowledgement in a parsed body; fields of newer servers are left out."""
    return Ack(**{name: value for name, value in body.items() if name in _ACK_FIELDS}, reopened=reopened)


class Answer(dict[str, Any]):
    """A stock response body, as a dictionary, with the usual things at hand. `response` is the HTTP response."""

    def __init__(self, body: Mapping[str, Any], response: httpx.Response) -> None:
        super().__init__(body)
        self.response = response

    @property
    def text(self) -> str:
        """The text of the first choice; empty when it has none (a tool call)."""
        return _text_of(self["choices"][0], "message")

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended: `stop`, `length`, `tool_calls`..."""
        reason: str | None = self["choices"][0].get("finish_reason")
        return reason

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts, as the server gives them."""
        return self.get("usage") or {}


def answer_from(response: httpx.Response) -> Answer:
    """The answer in a response. Raises `ServerUnavailable` when it is not one."""
    try:
        body = response.json()
        body["choices"]
    except (ValueError, TypeError, KeyError) as error:
        raise ServerUnavailable(
            f"{response.request.url} did not answer with a completion", status=response.status_code
        ) from error
    return Answer(body, response)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds to one choice of an answer; `raw` is the event as the server sent it."""

    text: str
    index: int = 0
    finish_reason: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


class AnswerReader:
    """Turns the bytes of a server-sent event stream into pieces, and keeps account of the whole.

    `text` and `finish_reason` are of the first choice. Bytes are split into lines here, at line feeds only: a text
    decoder would also split at the line separators that JSON allows inside strings.
    """

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] = {}
        self._texts: list[str] = []
        self._rest = b""
        self._done = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that `data` completes. Raises the server's error if the stream carries one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield from self._event(line[5:].strip())

    def end(self, cause: Exception | None = None) -> None:
        """The stream has ended, with `cause` if it broke. Raises `AnswerInterrupted` if it was not at its end."""
        if not self._done and (cause is not None or self.finish_reason is None):
            raise AnswerInterrupted(
                f"the connection broke before the answer's end ({cause or 'closed by the server'}); ask again",
                text=self.text,
            ) from cause

    def _event(self, data: bytes) -> Iterator[Piece]:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            event: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise AnswerInterrupted(f"not an event of an answer: {data[:80]!r}", text=self.text) from error
        if "error" in event:
            code = event["error"].get("code") if isinstance(event["error"], Mapping) else None
            raise error_from_body(code if isinstance(code, int) else 500, event)
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            if piece := _piece_of(choice, event):
                if piece.index == 0:
                    self._texts.append(piece.text)
                    self.finish_reason = piece.finish_reason or self.finish_reason
                yield piece


class AnswerProgress:
    """What an answer in progress knows about itself. `response` is the HTTP response.

    `text`, `finish_reason` and `usage` are complete once the iteration over its pieces has ended.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._reader = AnswerReader()

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        return self._reader.text

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended; None before it did."""
        return self._reader.finish_reason

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts, as the server gives them at the end."""
        return self._reader.usage


def _piece_of(choice: Mapping[str, Any], event: Mapping[str, Any]) -> Piece | None:
    text = _text_of(choice, "delta")
    reason = choice.get("finish_reason")
    if not text and reason is None and "role" in (choice.get("delta") or {}):
        return None  # a chat answer's opening event stands for no token
    return Piece(text, choice.get("index", 0), reason, event)


def _text_of(choice: Mapping[str, Any], chat_field: str) -> str:
    text = choice["text"] if "text" in choice else (choice.get(chat_field) or {}).get("content")
    return text or ""
