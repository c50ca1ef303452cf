"""A stream's content as the client's callers give it and as requests carry it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from stream2llm import content as contents
from stream2llm.client.errors import InvalidRequest
from stream2llm.content import Content, ContentError, Message, Messages, Text, TokenIds

Endpoint = Literal["completions", "chat/completions"]


def content_of(
    text: str | None = None, token_ids: Sequence[int] | None = None, messages: Sequence[Message] | None = None
) -> Content | None:
    """The one content that is given, None when none is. Raises `InvalidRequest` when more than one is."""
    if sum(value is not None for value in (text, token_ids, messages)) > 1:
        raise InvalidRequest("give exactly one of text, token_ids and messages")
    try:
        if text is not None:
            return contents.text(text)
        if token_ids is not None:
            return contents.token_ids(token_ids)
        if messages is not None:
            return contents.messages(messages)
    except ContentError as error:
        raise InvalidRequest(str(error)) from error
    return None


def value_of(content: Content) -> str | list[Any]:
    """The content as JSON has it: a text, a list of token ids, a list of messages."""
    match content:
        case Text():
            return content.text
        case TokenIds():
            return content.ids.tolist()
        case Messages():
            return list(content.messages)


def fields_of(content: Content | None) -> dict[str, Any]:
    """The field of a request's body that carries the content; none for no content."""
    return {content.kind: value_of(content)} if content is not None else {}


def closed(content: Content) -> Content:
    """The content as Unicode: half of a surrogate pair that got no partner is U+FFFD, as the server has it."""
    match content:
        case Text():
            return Text(content.closed)
        case Messages():
            return Messages(tuple(content.closed))
        case TokenIds():
            return content


def appended(held: Content | None, more: Content) -> Content:
    """`held` continued by `more`. Raises `InvalidRequest` where the kinds do not go together."""
    try:
        return contents.append(held, more)
    except ContentError as error:
        raise InvalidRequest(str(error), param=more.kind) from error


def whole_body(held: Content | None, endpoint: Endpoint, body: Mapping[str, Any]) -> dict[str, Any]:
    """The stock request for `endpoint` that asks for the held content followed by the body's prompt or messages.

    Raises `InvalidRequest` when the endpoint does not fit the kind of content.
    """
    if held is not None and (held.kind == "messages") != (endpoint == "chat/completions"):
        fitting = "chat" if held.kind == "messages" else "complete"
        raise InvalidRequest(f"a stream of {held.kind} is finished with {fitting}()")
    if endpoint == "chat/completions":
        field, rest = "messages", content_of(messages=body.get("messages") or [])
    else:
        field, rest = "prompt", _prompt(body.get("prompt"), held)
    assert rest is not None
    whole = appended(held, rest)
    return {**body, field: value_of(closed(whole))}


def _prompt(prompt: Any, held: Content | None) -> Content | None:
    if prompt is None:
        return contents.token_ids([]) if isinstance(held, TokenIds) else contents.text("")
    if isinstance(prompt, str):
        return content_of(text=prompt)
    if isinstance(prompt, Sequence) and all(isinstance(item, int) for item in prompt):
        return content_of(token_ids=prompt)
    raise InvalidRequest("a stream is finished with one prompt: a string or a list of token ids", param="prompt")
