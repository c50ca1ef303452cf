"""Things in the order of their ranks, kept from step to step instead of being sorted anew. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")
Rank = tuple[float, ...]
"""Compared element by element; the lower comes first. All ranks of one order have the same length."""

FIRST: Rank = ()
"""Comes before every other rank."""


class Ranking(Generic[T]):
    """Items by id, best rank first, of equal ranks by id: an order in which no two are equal. A change is O(log n)."""

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._order: SortedList[tuple[Rank, str]] = SortedList()
        self._entries: dict[str, tuple[Rank, T]] = {}

    def put(self, id: str, rank: Rank, item: T) -> None:
        """Add an item, or give it another rank."""
        present = self._entries.get(id)
        self._entries[id] = (rank, item)
        if present is not None:
            if present[0] == rank:
                return
            self._order.remove((present[0], id))
        self._order.add((rank, id))

    def discard(self, id: str) -> T | None:
        """Remove an item, if it is there; return it."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        self._order.remove((entry[0], id))
        return entry[1]

    def first(self) -> tuple[Rank, T] | None:
        """The best-ranked item and its rank."""
        return self._entries[self._order[0][1]] if self._order else None

    def ranked(self) -> Iterator[tuple[Rank, T]]:
        """All items and their ranks, best first. Not to be changed meanwhile."""
        for _, id in self._order:
            yield self._entries[id]

    def __iter__(self) -> Iterator[T]:
        for _, item in self.ranked():
            yield item

    def __getitem__(self, id: str) -> T:
        return self._entries[id][1]

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def __len__(self) -> int:
        return len(self._entries)
