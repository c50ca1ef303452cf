"""The trace format: for each query, what its retrieval handed over and when. JSON Lines, version 1 (docs/traces.md).

A context is a sequence of pieces (pages, documents). An operation appends pieces to it or replaces it by other ones, so
that pieces which stay at the front are a common prefix. Times are relative to the query's arrival, which is not part of
a trace: a replay draws arrivals for the rate it is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from stream2llm.workloads.lines import Format, read_lines, writing

FORMAT = Format("stream2llm-trace", 1)

Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
Tokens = Annotated[int, Meta(ge=0, lt=1 << 31)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]

CHARACTERS_PER_TOKEN = 4.0
"""What a text's tokens are reckoned at where no tokenizer is at hand: English under the usual vocabularies."""


class Piece(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A piece of content: its text, or only how many tokens it has (a replay then draws token ids by seed)."""

    text: str | None = None
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.tokens is None):
            raise ValueError("a piece has either `text` or `tokens`")

    @property
    def length(self) -> int:
        """Tokens; of a text, as `CHARACTERS_PER_TOKEN` reckons them."""
        if self.text is not None:
            return round(len(self.text) / CHARACTERS_PER_TOKEN)
        assert self.tokens is not None
        return self.tokens


NOTHING = Piece(tokens=0)


class Kind(StrEnum):
    """What an operation does with its pieces."""

    APPEND = "append"
    REPLACE = "replace"


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pieces` are appended to the context, or replace it, `gap_s` seconds after the operation before (or the lead)."""

    op: Kind
    gap_s: Seconds
    pieces: tuple[Name, ...]


class Query(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One query. `pieces`: the content of each piece by its name.

    `lead_s`: from the arrival to the opening of the context, e.g. the web search before a crawl; a delay multiplier
    leaves it alone. `opening`: content before all pieces. `question`: content behind them, sent with the last
    operation.
    """

    id: Name
    question: Piece
    operations: Annotated[tuple[Operation, ...], Meta(min_length=1)]
    pieces: Mapping[str, Piece]
    lead_s: Seconds = 0.0
    opening: Piece = NOTHING
    source: str = ""

    def __post_init__(self) -> None:
        for number, operation in enumerate(self.operations):
            for name in operation.pieces:
                if name not in self.pieces:
                    raise ValueError(f"`operations[{number}].pieces` names {name!r}, which `pieces` does not have")

    def contexts(self) -> Iterator[tuple[str, ...]]:
        """The pieces of the context after each operation."""
        context: tuple[str, ...] = ()
        for operation in self.operations:
            context = operation.pieces if operation.op is Kind.REPLACE else context + operation.pieces
            yield context

    @property
    def context(self) -> tuple[str, ...]:
        """The pieces of the final context."""
        *_, last = self.contexts()
        return last

    @property
    def tokens(self) -> int:
        """Length of the final prompt."""
        context = sum(self.pieces[name].length for name in self.context)
        return self.opening.length + context + self.question.length

    @property
    def retrieval_s(self) -> float:
        """Seconds from the arrival to the last operation."""
        return self.lead_s + sum(operation.gap_s for operation in self.operations)

    def delayed(self, factor: float) -> Query:
        """The same query with every gap `factor` times as long (the paper's delay multiplier)."""
        slower = tuple(msgspec.structs.replace(o, gap_s=o.gap_s * factor) for o in self.operations)
        return msgspec.structs.replace(self, operations=slower)

    def scaled(self, factor: float) -> Query:
        """The same query with all its times multiplied by `factor`."""
        return msgspec.structs.replace(self.delayed(factor), lead_s=self.lead_s * factor)


class Header(msgspec.Struct, frozen=True):
    """The first line: what the trace is. `workload`: "crawler" and "anns" are the paper's."""

    workload: Name
    description: str = ""
    license: str = ""


class Trace(msgspec.Struct, frozen=True):
    """A whole trace in memory."""

    header: Header
    queries: tuple[Query, ...]


def read_trace(path: Path) -> Trace:
    """Raises `FormatError` with line and field, and `OSError`."""
    header, queries = read_lines(path, FORMAT, Header, Query)
    return Trace(header, tuple(queries))


def write_trace(path: Path, header: Header, queries: Iterable[Query]) -> None:
    """`path` ending in `.gz` is compressed. Raises `OSError`."""
    with writing(path, FORMAT, header) as lines:
        lines.write_all(queries)
