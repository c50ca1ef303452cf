"""What the client holds of a stream, so that a lost stream can be opened again and a stock server can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stream2llm.client.errors import InvalidRequest

Kind = Literal["text", "token_ids", "messages"]
Message = Mapping[str, Any]
Endpoint = Literal["completions", "chat/completions"]


@dataclass(frozen=True, slots=True)
class Content:
    """One kind of content: a text, a tuple of token ids, or a tuple of chat messages."""

    kind: Kind
    value: str | tuple[int, ...] | tuple[Message, ...]

    def json(self) -> dict[str, Any]:
        """The field of a request's body that carries it."""
        return {self.kind: self.value if isinstance(self.value, str) else list(self.value)}


def content_of(
    text: str | None = None, token_ids: Sequence[int] | None = None, messages: Sequence[Message] | None = None
) -> Content | None:
    """The one content that is given, None when none is. Raises `InvalidRequest` when more than one is."""
    if sum(value is not None for value in (text, token_ids, messages)) > 1:
        raise InvalidRequest("give exactly one of text, token_ids and messages")
    if text is not None:
        return Content("text", text)
    if token_ids is not None:
        return Content("token_ids", tuple(token_ids))
    if messages is not None:
        return Content("messages", tuple(messages))
    return None


def appended(held: Content | None, more: Content) -> Content:
    """`held` continued by `more`; text continues the last message of a stream of messages.

    Raises `InvalidRequest` for any other mixture of kinds.
    """
    if held is None:
        return more
    match held.value, more.value:
        case str() as text, str() as tail:
            return Content("text", text + tail)
        case (*messages,), str() as tail if held.kind == "messages" and messages:
            *before, last = messages
            return Content("messages", (*before, _continued(last, tail)))
        case (*head,), (*tail_items,) if held.kind == more.kind:
            return Content(held.kind, (*head, *tail_items))
    raise InvalidRequest(
        f"a stream of {held.kind} cannot be continued with {more.kind}; replace its content or open another stream",
        param=more.kind,
    )


def whole_body(held: Content | None, endpoint: Endpoint, body: Mapping[str, Any]) -> dict[str, Any]:
    """The stock request for `endpoint` that asks for the held content followed by the body's prompt or messages.

    Raises `InvalidRequest` when the endpoint does not fit the kind of content.
    """
    field: str = "prompt" if endpoint == "completions" else "messages"
    rest = body.get(field)
    if held is None:
        return {**body, field: rest if rest is not None else ("" if field == "prompt" else [])}
    if (held.kind == "messages") != (field == "messages"):
        fitting = "chat" if held.kind == "messages" else "complete"
        raise InvalidRequest(f"a stream of {held.kind} is finished with {fitting}()", param=field)
    if not rest:
        return {**body, field: next(iter(held.json().values()))}
    rest_content = content_of(**{"messages" if field == "messages" else _prompt_kind(rest): rest})
    assert rest_content is not None
    if rest_content.kind != held.kind:
        raise InvalidRequest(f"a stream of {held.kind} cannot be finished with a prompt of {rest_content.kind}")
    return {**body, field: next(iter(appended(held, rest_content).json().values()))}


def _prompt_kind(prompt: Any) -> Kind:
    if isinstance(prompt, str):
        return "text"
    if isinstance(prompt, Sequence) and all(isinstance(item, int) for item in prompt):
        return "token_ids"
    raise InvalidRequest("a stream is finished with one prompt: a string or a list of token ids", param="prompt")


def _continued(message: Any, text: str) -> Message:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": (content or "") + text}
    return {**message, "content": [*content, {"type": "text", "text": text}]}
