"""Things in the order of their ranks, kept from step to step instead of being sorted anew. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")
Rank = tuple[float, ...]
"""Compared element by element; the lower comes first. All ranks of one order have the same length."""

FIRST: Rank = ()
"""Comes before every other rank."""


class Ranking(Generic[T]):
    """Items by id, best rank first; of equal ranks, the one that was put in first. Every change is O(log n)."""

    __slots__ = ("_entries", "_order", "_serials")

    def __init__(self) -> None:
        self._order: SortedList[tuple[Rank, int, str]] = SortedList()
        self._entries: dict[str, tuple[Rank, int, T]] = {}
        self._serials = itertools.count()

    def put(self, id: str, rank: Rank, item: T) -> None:
        """Add an item, or give it another rank."""
        present = self._entries.get(id)
        if present is not None:
            if present[0] == rank:
                self._entries[id] = (rank, present[1], item)
                return
            self._order.remove((present[0], present[1], id))
        serial = next(self._serials) if present is None else present[1]
        self._entries[id] = (rank, serial, item)
        self._order.add((rank, serial, id))

    def discard(self, id: str) -> T | None:
        """Remove an item, if it is there; return it."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        self._order.remove((entry[0], entry[1], id))
        return entry[2]

    def first(self) -> tuple[Rank, T] | None:
        """The best-ranked item and its rank."""
        if not self._order:
            return None
        rank, _, id = self._order[0]
        return rank, self._entries[id][2]

    def ranked(self) -> Iterator[tuple[Rank, T]]:
        """All items and their ranks, best first. Not to be changed meanwhile."""
        for rank, _, id in self._order:
            yield rank, self._entries[id][2]

    def __iter__(self) -> Iterator[T]:
        for _, item in self.ranked():
            yield item

    def __getitem__(self, id: str) -> T:
        return self._entries[id][2]

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def __len__(self) -> int:
        return len(self._entries)
