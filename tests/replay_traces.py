"""Small queries for the tests of the replay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import strategies as st

from stream2llm.workloads.trace import Kind, Operation, Piece, Query


def query(
    name: str,
    gaps: Sequence[float],
    *,
    tokens: int = 40,
    replaces: Collection[int] = (),
    lead_s: float = 0.0,
    opening: int = 8,
    text: str | None = None,
) -> Query:
    """A query with one new piece for each gap: of `tokens` tokens, or of `text` with the piece's number.

    An operation whose number is in `replaces` puts the new piece in front of all the others.
    """

    def piece(number: int) -> Piece:
        return Piece(tokens=tokens) if text is None else Piece(text=f"{number}: {text}")

    def operation(number: int, gap_s: float) -> Operation:
        names = tuple(f"p{n}" for n in range(number, -1, -1))
        return Operation(Kind.REPLACE, gap_s, names) if number in replaces else Operation(Kind.APPEND, gap_s, names[:1])

    return Query(
        id=name,
        question=Piece(tokens=5) if text is None else Piece(text="What does it say?"),
        operations=tuple(operation(number, gap_s) for number, gap_s in enumerate(gaps)),
        pieces={f"p{number}": piece(number) for number in range(len(gaps))},
        lead_s=lead_s,
        opening=Piece(tokens=opening) if text is None else Piece(text="Context:\n"),
    )


@st.composite
def queries(draw: Any, text: bool | None = False) -> Query:
    """Any query of token counts, of texts (`text`), or of either (None)."""
    textual = draw(st.booleans()) if text is None else text
    piece = (
        st.builds(lambda value: Piece(text=value), st.text(max_size=8))
        if textual
        else st.builds(lambda value: Piece(tokens=value), st.integers(0, 50))
    )
    pieces = draw(st.dictionaries(st.text(min_size=1, max_size=3), piece, min_size=1, max_size=5))
    names = st.lists(st.sampled_from(sorted(pieces)), max_size=4).map(tuple)
    operation = st.builds(Operation, st.sampled_from(list(Kind)), st.floats(0, 10), names)
    return Query(
        id=draw(st.text(min_size=1, max_size=4)),
        question=draw(piece),
        operations=tuple(draw(st.lists(operation, min_size=1, max_size=5))),
        pieces=pieces,
        lead_s=draw(st.floats(0, 5)),
        opening=draw(piece),
    )
