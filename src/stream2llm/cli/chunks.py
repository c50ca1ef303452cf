"""Chunks of context on standard input, as they come."""

from __future__ import annotations

import codecs
import enum
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

_READ_SIZE = 1 << 16


class Form(enum.Enum):
    """What makes a chunk: what is there to read, a line, or a line with an operation in JSON."""

    AVAILABLE = "available"
    LINES = "lines"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class Operation:
    """A chunk of text and what to do with it."""

    op: Literal["append", "replace"]
    text: str


class BadInput(ValueError):
    """The input is not of the described form; the message names the line."""


def reads(file_descriptor: int) -> Iterator[bytes]:
    """What each read gets, without waiting for more than there is."""
    while data := os.read(file_descriptor, _READ_SIZE):
        yield data


def operations(data: Iterable[bytes], form: Form) -> Iterator[Operation]:
    """The operations in UTF-8 data that may be cut anywhere; what is not UTF-8 becomes U+FFFD.

    Raises `BadInput` for a line that is no operation (form `JSONL`).
    """
    texts = codecs.iterdecode(data, "utf-8", errors="replace")
    if form is Form.AVAILABLE:
        for text in texts:
            yield Operation("append", text)
        return
    for number, line in enumerate(_lines(texts), start=1):
        if form is Form.LINES:
            yield Operation("append", line)
        elif line.strip():
            yield _operation(line, number)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Lines with their line feed, each as soon as it is complete; the last may have none."""
    parts: list[str] = []
    for text in texts:
        *complete, rest = text.split("\n")
        for line in complete:
            yield "".join([*parts, line, "\n"])
            parts.clear()
        if rest:
            parts.append(rest)
    if parts:
        yield "".join(parts)


def _operation(line: str, number: int) -> Operation:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BadInput(f"line {number} of the input is not JSON: {error}") from error
    match fields:
        case {"op": "append" | "replace" as op, "text": str() as text} if len(fields) == 2:
            return Operation(op, text)
    raise BadInput(
        f'line {number} of the input is no operation: expected {{"op": "append" or "replace", "text": "..."}}, '
        f"found {line.strip()[:80]}"
    )
