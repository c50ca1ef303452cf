"""What a context stream holds: text, token ids or chat messages. Pure and immutable.

A stream's content is kept by the engine core as *pieces*: the JSON text of each write since the last replacement (a
string for text, an array for messages, nothing for token ids, which the engine has anyway), so that an append sends
no more than itself.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

Kind = Literal["text", "token_ids", "messages"]
Message = Mapping[str, Any]

REPLACEMENT_CHARACTER = "\ufffd"


class ContentError(ValueError):
    """Content cannot be put where it was to be put; the message says what can be done."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text. Its first or last character may be half of a surrogate pair, whose other half is in another piece."""

    text: str
    kind: Literal["text"] = "text"

    @property
    def closed(self) -> str:
        """The text as Unicode: half a pair that got no partner is U+FFFD."""
        return _close(self.text)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Ready token ids, 32 bits each."""

    ids: array[int]
    kind: Literal["token_ids"] = "token_ids"


@dataclass(frozen=True, slots=True)
class Messages:
    """Chat messages as the chat template will be given them."""

    messages: tuple[Message, ...]
    kind: Literal["messages"] = "messages"

    @property
    def closed(self) -> list[Message]:
        """The messages as Unicode (see `Text.closed`)."""
        return [*self.messages[:-1], *(_map_text(last, _close) for last in self.messages[-1:])]


Content = Text | TokenIds | Messages


def text(value: str) -> Text:
    """Text content. Halves of surrogate pairs, but for one at either end, become U+FFFD."""
    return Text(_tidy(value))


def token_ids(values: Iterable[int]) -> TokenIds:
    """Token ids. Raises `ContentError` for one that does not fit 32 bits."""
    try:
        return TokenIds(array("I", values))
    except OverflowError:
        raise ContentError("token_ids: every token id must be from 0 to 4294967295.") from None


def messages(values: Iterable[Message]) -> Messages:
    """Chat messages, tidied as `text` is."""
    tidy = [_map_text(value, lambda part: _close_start(_tidy(part))) for value in values]
    return Messages((*(_map_text(message, _close) for message in tidy[:-1]), *tidy[-1:]))


def append(content: Content | None, more: Content) -> Content:
    """`content` with `more` behind it. Text continues the last message of messages.

    Raises `ContentError` where the kinds do not go together.
    """
    match content, more:
        case None, _:
            return more
        case Text(), Text():
            return Text(_join(content.text, more.text))
        case TokenIds(), TokenIds():
            return TokenIds(content.ids + more.ids)
        case Messages(), Messages():
            return Messages((*content.closed, *more.messages)) if more.messages else content
        case Messages(), Text():
            return _continue_last(content, more)
    assert content is not None
    raise ContentError(
        f"This stream holds {content.kind}, so {more.kind} cannot be appended to it. "
        f"Append {content.kind}, or replace the whole content (PUT)."
    )


def pieces_of(more: Content) -> list[str]:
    """What the engine is given to keep for a write of `more`."""
    match more:
        case Text():
            return [json.dumps(more.text)]
        case Messages():
            return [json.dumps(list(more.messages))]
        case TokenIds():
            return []


def restore(kind: Kind | None, pieces: Iterable[str], ids: Iterable[int]) -> Content | None:
    """The content whose kept pieces and token ids these are; None for a stream opened empty."""
    match kind:
        case None:
            return None
        case "token_ids":
            return token_ids(ids)
        case "text" | "messages":
            writes = map(json.loads, pieces)
            return reduce(append, (text(w) if isinstance(w, str) else messages(w) for w in writes), None)


def _continue_last(content: Messages, more: Text) -> Messages:
    if not content.messages:
        raise ContentError("There is no message that the text could continue. Append a message first.")
    *before, last = content.messages
    match last.get("content"):
        case None:
            joined: Any = more.text
        case str() as said:
            joined = _join(said, more.text)
        case list() as parts if parts and isinstance(parts[-1], Mapping) and "text" in parts[-1]:
            joined = [*parts[:-1], {**parts[-1], "text": _join(parts[-1]["text"], more.text)}]
        case list() as parts:
            joined = [*parts, {"type": "text", "text": more.text}]
        case other:
            raise ContentError(f"The last message's content ({type(other).__name__}) cannot be continued by text.")
    return Messages((*before, {**last, "content": joined}))


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            return {key: _map_text(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_map_text(item, change) for item in value]
    return value


def _is_first_half(character: str) -> bool:
    return "\ud800" <= character <= "\udbff"


def _is_second_half(character: str) -> bool:
    return "\udc00" <= character <= "\udfff"


def _tidy(value: str) -> str:
    """Pairs joined and unpaired halves replaced, but for the two whose partner may be in another piece."""
    if value.isascii():
        return value
    start, end = int(_is_second_half(value[0])), len(value) - int(_is_first_half(value[-1]))
    inner = value[start:end].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value[:start] + inner + value[end:]


def _join(before: str, after: str) -> str:
    """Two tidy texts as one: the halves of a pair that was cut in two are put together."""
    if not before or not after:
        return before + after
    if _is_first_half(before[-1]) and _is_second_half(after[0]):
        return before[:-1] + _pair(before[-1] + after[0]) + after[1:]
    return _close_end(before) + _close_start(after)


def _pair(halves: str) -> str:
    return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _close_start(value: str) -> str:
    return REPLACEMENT_CHARACTER + value[1:] if value and _is_second_half(value[0]) else value


def _close_end(value: str) -> str:
    return value[:-1] + REPLACEMENT_CHARACTER if value and _is_first_half(value[-1]) else value


def _close(value: str) -> str:
    return _close_end(_close_start(value))
