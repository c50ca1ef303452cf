"""Phase 1 of two-phase scheduling (paper section 4): decide what runs before any resource is acquired. Pure.

The scheduler takes a snapshot, `plan` decides on it, and phase 2 (`stream2llm.vllm.scheduler`) carries the plan out and
lets stock `schedule()` allocate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate


class Kind(Enum):
    """Where a candidate stands; the order is the order of service."""

    COMPLETE = 0  # its whole prompt is here: an ordinary request, or the final request of a stream
    PARTIAL = 1  # the version of an open stream that is being prefilled
    IDLE = 2  # an open stream with nothing to compute, which pins KV blocks


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request or idle stream.

    `order` is what it is served by within its kind: a complete request's place in the engine's own order, the time at
    which a stream was opened. `running`: it occupies a sequence slot. `remaining_tokens` are still to be computed;
    `needed_blocks` must still be taken from the pool for its whole prompt (for a decode: for its next token).
    `held_blocks` go back to the pool when it is evicted: the blocks that it alone holds, for a waiting request those
    pinned by its stream. Running complete requests are never evicted.
    """

    id: str
    kind: Kind
    order: float
    running: bool = False
    remaining_tokens: int = 0
    needed_blocks: int = 0
    held_blocks: int = 0

    @property
    def rank(self) -> tuple[bool, float, str]:
        """Complete requests before open streams, each in order. An idle stream ranks as its stream does."""
        return (self.kind is not Kind.COMPLETE, self.order, self.id)

    @property
    def evictable(self) -> bool:
        return self.held_blocks > 0 and not (self.running and self.kind is Kind.COMPLETE)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a step may use: tokens, sequence slots, free KV blocks (reclaimable cached ones included).

    `slots` counts those that no running complete request has; open streams get what complete requests leave.
    """

    tokens: int
    slots: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in this step.

    `partials` may be computed, best rank first. `evicted` lose the blocks that they or their streams hold (recompute).
    `parked` are the running streams that are not computed now: they lose their sequence slot and keep their blocks.
    """

    partials: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()


def plan(candidates: Sequence[Candidate], budget: Budget) -> Plan:
    """Plan one step.

    Guarantees, tested as properties:

    - *Progress*: the first complete request is never kept waiting by open streams, whatever they hold: if it fits the
      pool beside the other complete requests, enough of them are evicted, worst rank first.
    - *No deadlock*: the same holds for each open stream towards the open streams ranked below it.
    - *Isolation*: an open stream never evicts a complete request or a better-ranked stream, and nobody is evicted
      unless a better-ranked candidate gains what it needs by it.
    - Open streams never keep a complete request out of a sequence slot.
    """
    return _Planning(sorted(candidates, key=lambda candidate: candidate.rank), budget).result()


class _Planning:
    """The state of one planning pass: what is left of the budget, and who was chosen to pay for it."""

    def __init__(self, ranked: Sequence[Candidate], budget: Budget) -> None:
        self._ranked = ranked
        self._tokens, self._slots, self._blocks = budget.tokens, budget.slots, budget.blocks
        self._evicted: set[str] = set()
        # Eviction goes from the worst rank upwards: all that could be evicted from the horizon on has been. The sums
        # of evictable blocks from each position on tell at once when it is no use.
        self._horizon = len(ranked)
        held = [candidate.held_blocks if candidate.evictable else 0 for candidate in reversed(ranked)]
        self._held_from = [0, *accumulate(held)][::-1]
        self._partials: dict[str, None] = {}  # in rank order

    def result(self) -> Plan:
        admitted = self._serve_complete()
        self._serve_partials(admitted)
        not_computed = [
            candidate.id
            for candidate in self._ranked
            if candidate.kind is Kind.PARTIAL and candidate.running and candidate.id not in self._partials
        ]
        return Plan(
            tuple(self._partials),
            evicted=tuple(candidate.id for candidate in self._ranked if candidate.id in self._evicted),
            parked=tuple(id for id in not_computed if id not in self._evicted),
        )

    def _serve_complete(self) -> bool:
        """Make room for complete requests; tell whether one of them is to be admitted in this step."""
        waiting = []
        for position, candidate in enumerate(self._ranked):
            if candidate.kind is not Kind.COMPLETE:
                break
            if candidate.running:  # it is in already: its whole need is set aside before anybody is let in
                self._make_room(candidate, position)
                self._take(candidate)
            else:
                waiting.append((position, candidate))
        admitted = False
        for position, candidate in waiting:
            if self._tokens <= 0 or self._slots <= 0 or not self._make_room(candidate, position):
                break  # stock admission is in order: nobody overtakes the first that does not fit
            self._slots -= 1
            self._take(candidate)
            admitted = True
        return admitted

    def _serve_partials(self, admitted: bool) -> None:
        for position, candidate in enumerate(self._ranked):
            if self._tokens <= 0 or self._slots <= 0:
                return
            if candidate.kind is not Kind.PARTIAL or candidate.id in self._evicted:
                continue
            # Stock schedule() serves running requests before it admits waiting ones. Without running streams the step
            # in which a complete request is admitted has its budget, and is as short as it can be.
            if admitted and candidate.running:
                continue
            if self._make_room(candidate, position):
                self._slots -= 1
                self._take(candidate)
                self._partials[candidate.id] = None

    def _take(self, candidate: Candidate) -> None:
        self._tokens -= min(self._tokens, candidate.remaining_tokens)
        self._blocks = max(0, self._blocks - self._needed(candidate))

    def _needed(self, candidate: Candidate) -> int:
        """An evicted candidate must also take again what was taken from it."""
        return candidate.needed_blocks + (candidate.held_blocks if candidate.id in self._evicted else 0)

    def _make_room(self, candidate: Candidate, position: int) -> bool:
        """Evict candidates ranked below `position`, worst first, until the candidate's blocks are there.

        Nobody is evicted when even all of them would not be enough, except for a running complete request: what it
        can get is better than its own preemption.
        """
        missing = self._needed(candidate) - self._blocks
        if missing <= 0:
            return True
        enough = missing <= self._evictable_below(position)
        if not enough and not (candidate.kind is Kind.COMPLETE and candidate.running):
            return False
        while self._blocks < self._needed(candidate) and self._horizon > position + 1:
            self._horizon -= 1
            victim = self._ranked[self._horizon]
            if victim.evictable:
                self._evicted.add(victim.id)
                self._blocks += victim.held_blocks
        return enough

    def _evictable_below(self, position: int) -> int:
        """The blocks that could still be had from candidates ranked below `position`."""
        return max(0, self._held_from[position + 1] - self._held_from[max(self._horizon, position + 1)])
