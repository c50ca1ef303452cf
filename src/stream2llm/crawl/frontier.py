"""The links that wait to be followed."""

from __future__ import annotations

from collections.abc import Iterable

from stream2llm.crawl.ranking import Candidate, Ranking


class Frontier:
    """Gives the best candidate that waits, and each address once. Ranks anew only after new ones came."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._waiting: dict[str, Candidate] = {}  # in the order in which they were found
        self._order: list[Candidate] | None = []  # the best one last; None: to be ranked
        self._known: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def know(self, url: str) -> None:
        """This address need not be added any more."""
        self._known.add(url)

    def knows(self, url: str) -> bool:
        return url in self._known

    def add(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            if candidate.url not in self._known:
                self._known.add(candidate.url)
                self._waiting[candidate.url] = candidate
                self._order = None

    def pop(self) -> Candidate:
        """The best one, which waits no more. Raises `IndexError` when none waits."""
        if self._order is None:
            self._order = self._ranked()
        best = self._order.pop()
        del self._waiting[best.url]
        return best

    def _ranked(self) -> list[Candidate]:
        waiting = list(self._waiting.values())
        by_key = sorted(zip(self._ranking.keys(waiting), waiting, strict=True), key=lambda pair: pair[0])
        return [candidate for _, candidate in reversed(by_key)]
