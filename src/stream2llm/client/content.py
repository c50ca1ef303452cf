"""A stream's content as the client's callers give it and as requests carry it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

from stream2llm import content as contents
from stream2llm.client.errors import InvalidRequest
from stream2llm.content import Content, ContentError, Kind, Message, Messages, Text, TokenIds

Endpoint = Literal["completions", "chat/completions"]
_FORMS: Mapping[Kind, str] = {"text": '"..."', "token_ids": "[...]", "messages": "[...]"}
# What may be given without a name; its type tells the kind of content.
Unnamed = str | Sequence[int] | Sequence[Message]


def content_of(
    unnamed: Unnamed | None = None,
    text: str | None = None,
    token_ids: Sequence[int] | None = None,
    messages: Sequence[Message] | None = None,
) -> Content | None:
    """The one content that is given, None when none is.

    Raises `InvalidRequest` when more than one is, `TypeError` when it is of no kind that a stream can hold.
    """
    if sum(value is not None for value in (unnamed, text, token_ids, messages)) > 1:
        raise InvalidRequest("give exactly one of text, token_ids and messages")
    try:
        if unnamed is not None:
            return _recognised(unnamed)
        if text is not None:
            return _text(text)
        if token_ids is not None:
            return contents.token_ids(token_ids)
        if messages is not None:
            return _messages(messages)
    except ContentError as error:
        raise InvalidRequest(str(error)) from error
    return None


def replacement(held: Content | None, new: Content, *, named: bool) -> Content:
    """`new` in place of `held`. Raises `InvalidRequest` where it is of another kind and that kind was not `named`."""
    if named or held is None or held.kind == new.kind:
        return new
    raise InvalidRequest(
        f"this stream holds {held.kind}, not {new.kind}: replace({held.kind}={_FORMS[held.kind]}), "
        f"or, to make it a stream of {new.kind}, replace({new.kind}={_FORMS[new.kind]})",
        param=new.kind,
    )


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


def _recognised(value: Any) -> Content:
    match value:
        case str():
            return contents.text(value)
        case [Mapping(), *_]:
            return _messages(value)
        case [Integral(), *rest] if all(isinstance(item, Integral) for item in rest):
            return contents.token_ids(value)
    raise TypeError(
        "content is a text (str), a list of messages (dicts) or a list of token ids (ints), "
        f"not {_described(value)}; what it is can also be said by name: text=, messages= or token_ids="
    )


def _text(value: Any) -> Content:
    if not isinstance(value, str):
        raise TypeError(f"text is a str, not {_described(value)}")
    return contents.text(value)


def _messages(values: Any) -> Content:
    if isinstance(values, str | Mapping) or not all(isinstance(item, Mapping) for item in values):
        raise TypeError(f"messages are a list of dicts with role and content, not {_described(values)}")
    return contents.messages(values)


def _described(value: object) -> str:
    """Its type; of a list also the types of its items."""
    name = type(value).__name__
    if not isinstance(value, list | tuple):
        return name
    items = " and ".join(sorted({type(item).__name__ for item in value}))
    return f"a {name} of {items}" if items else f"an empty {name}"
