"""Which of the links that wait is followed next; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

Key = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A link that may be followed: its address, the words it is shown as, and how many links it is from the start."""

    url: str
    words: str
    depth: int

    @property
    def text(self) -> str:
        """What is known of the page before it is fetched: its path and the link's words."""
        return f"{unquote(urlsplit(self.url).path)} {self.words}"


class Ranking(Protocol):
    """An order of candidates."""

    def keys(self, candidates: Sequence[Candidate]) -> Sequence[Key]:
        """A sort key for each; the smallest is followed first, of equal ones the one that was found first."""


def terms_of(text: str) -> frozenset[str]:
    """The words of three letters or more, in lower case."""
    return frozenset(re.findall(r"[^\W\d_]{3,}", text.lower()))


class WordOverlap:
    """Nearer pages first, and among those the ones whose link has more words of the question."""

    def __init__(self, question: str) -> None:
        self._terms = terms_of(question)

    def keys(self, candidates: Sequence[Candidate]) -> Sequence[Key]:
        return [(candidate.depth, -len(self._terms & terms_of(candidate.text))) for candidate in candidates]


class Bm25:
    """By BM25 of the question against path and words of each link, among the links that wait; then nearer pages first.

    Stop words are left out; words are not stemmed.
    """

    def __init__(self, question: str) -> None:
        self._query = _tokens([question])[0]

    def keys(self, candidates: Sequence[Candidate]) -> Sequence[Key]:
        return [
            (-score, candidate.depth) for score, candidate in zip(self._scores(candidates), candidates, strict=True)
        ]

    def _scores(self, candidates: Sequence[Candidate]) -> list[float]:
        import bm25s

        corpus = _tokens([candidate.text for candidate in candidates])
        vocabulary = {token for tokens in corpus for token in tokens}
        query = [token for token in self._query if token in vocabulary]
        if not query:
            return [0.0] * len(candidates)
        index = bm25s.BM25()
        index.index(corpus, show_progress=False)
        return [float(score) for score in index.get_scores(query)]


def _tokens(texts: list[str]) -> list[list[str]]:
    import bm25s

    # What joins words in an address separates them here.
    plain = [re.sub(r"[\W_]+", " ", text) for text in texts]
    tokens: list[list[str]] = bm25s.tokenize(plain, stopwords="en_plus", return_ids=False, show_progress=False)
    return tokens
