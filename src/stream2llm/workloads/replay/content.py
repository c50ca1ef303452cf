"""What is sent for the pieces of a query: their text, or token ids drawn by seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from stream2llm.workloads.replay.plan import WorkloadError
from stream2llm.workloads.trace import Piece, Query

Content = str | list[int]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids that are drawn: `first` to `last`. The default leaves out special ones of all usual vocabularies.

    Raises `ValueError`.
    """

    first: int = 1000
    last: int = 19_999

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last:
            raise ValueError(f"the vocabulary is {self.first}:{self.last}; the first id must be below the last")


class Contents:
    """The content of one query's pieces: all of them text, or all of them token ids.

    Ids depend on the seed, the query's id and the piece's name alone, so every arm sends the same prompts. Raises
    `WorkloadError` for a query that mixes the two.
    """

    def __init__(self, query: Query, vocabulary: Vocabulary, seed: int) -> None:
        self._query = query
        self._vocabulary = vocabulary
        self._seed = seed
        self._drawn: dict[str, list[int]] = {}
        pieces = (query.opening, query.question, *query.pieces.values())
        self._is_text = any(piece.text is not None for piece in pieces)
        if self._is_text and any(piece.tokens for piece in pieces):
            raise WorkloadError(
                f"query {query.id!r} has pieces with `text` and pieces with `tokens`; a query has one of the two"
            )
        self.opening = self._content(query.opening, "opening")
        self.question = self._content(query.question, "question")

    def of(self, names: Iterable[str]) -> Content:
        """The content of these pieces, one behind the other."""
        return self._joined([self._content(self._query.pieces[name], f"piece {name}") for name in names])

    def context(self, names: Iterable[str]) -> Content:
        """The opening and these pieces."""
        return self._joined([self.opening, self.of(names)])

    def prompt(self, names: Iterable[str]) -> Content:
        """The whole prompt: the opening, these pieces and the question."""
        return self._joined([self.opening, self.of(names), self.question])

    def rest(self, names: Iterable[str]) -> Content:
        """What follows a context that these pieces are appended to: they and the question."""
        return self._joined([self.of(names), self.question])

    def _joined(self, parts: list[Content]) -> Content:
        if self._is_text:
            return "".join(part for part in parts if isinstance(part, str))
        return [token for part in parts if not isinstance(part, str) for token in part]

    def _content(self, piece: Piece, name: str) -> Content:
        if self._is_text:
            return piece.text or ""
        if name not in self._drawn:
            dice = random.Random(f"{self._seed}/{self._query.id}/{name}")
            ids = range(self._vocabulary.first, self._vocabulary.last + 1)
            self._drawn[name] = dice.choices(ids, k=piece.tokens or 0)
        return self._drawn[name]
