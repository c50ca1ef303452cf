"""Phase 1 of two-phase scheduling (paper section 4): decide what runs before any resource is acquired. Pure.

The scheduler takes a snapshot, `plan` decides on it, and phase 2 (`stream2llm.vllm.scheduler`) carries the plan out and
lets stock `schedule()` allocate. Who is first, and who gives up, is the policy's say: the planner is given both orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from typing import NamedTuple

from stream2llm.ranking import Rank

_TRIES = 16
"""Candidates without room that a step passes by on its way to one that has room."""


class Candidate(NamedTuple):
    """A request that could be computed in this step: a complete one, or the version of an open stream (`partial`).

    `rank` is its place in the order of service. `running`: it occupies a sequence slot. `remaining_tokens` are still to
    be computed; `needed_blocks` must still be taken from the pool for its whole prompt. `shares`: it would use blocks
    that somebody else alone holds.
    """

    rank: Rank
    id: str
    partial: bool = False
    running: bool = False
    remaining_tokens: int = 0
    needed_blocks: int = 0
    shares: bool = False


Overlap = Callable[[str, str], int]
"""How many of a victim's blocks a candidate would use itself, by their ids: to take them would gain it nothing."""


class Victim(NamedTuple):
    """Somebody who could give up KV blocks: `blocks` that he alone holds. `rank` is his in the order of service.

    `stream`: an open stream; else a complete request.
    """

    rank: Rank
    id: str
    blocks: int
    stream: bool = True


class Taken(NamedTuple):
    """`blocks` that a victim loses, from the end of its prefix: what is left stays of use."""

    id: str
    blocks: int


class Budget(NamedTuple):
    """What the step may use, less what requests take that run on in any case (decodes).

    `slots`: sequence slots. `blocks`: free KV blocks, reclaimable cached ones included; negative when what runs on
    needs more than there is. `reserve`: blocks that must be left when somebody is admitted. `context_tokens`: the most
    that open streams may take (decode protection).
    """

    tokens: int
    slots: int
    blocks: int
    reserve: int = 0
    context_tokens: float = math.inf


class Plan(NamedTuple):
    """What to do in this step.

    `served` may be computed, in this order. `parked` lose their sequence slot and keep their blocks. `taken`: who gives
    up how many blocks. `short`: there were too few blocks for somebody, or somebody had to give up some.
    `tokens_left` of the budget were granted to nobody; `context_limited`: open streams may not have them either.
    """

    served: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()
    short: bool = False
    tokens_left: int = 0
    context_limited: bool = False


def plan(
    running: Sequence[Candidate],
    complete: Iterable[Candidate],
    partial: Iterable[Candidate],
    victims: Iterable[Victim],
    budget: Budget,
    overlap: Overlap = lambda candidate, victim: 0,
) -> Plan:
    """Plan one step.

    `running` are those that can be parked: prefills and versions with a sequence slot. `complete` and `partial` wait,
    each in the order of service; `victims` are in the order in which they give up. They are read only as far as needed.
    `overlap` is asked for candidates that share blocks.

    Guarantees, whatever the policy, tested as properties:

    - *Progress*: the first complete request that waits is never kept waiting by the memory of anybody who can give it
      up and is a stream or ranks below it: if all of them together hold what it lacks, they give it up, in the order
      of giving up. What runs on in any case comes before all. Nobody is made to give up in vain.
    - *Bounded waiting*: no waiting complete request overtakes another; the policy's ageing bounds how many come
      before it. An open stream only takes what complete requests leave of tokens and slots, if it ranks below them.
    - *Isolation*: streams give up blocks for streams that rank before them, and for complete requests; complete
      requests only for complete requests that rank before them; and nobody more than are needed.
    - *Decode protection*: open streams are granted no more than `budget.context_tokens`.

    In the step that admits a complete request, streams ranked below it are not computed: it is as short as it can be.
    """
    planning = _Planning(running, _Victims(victims, overlap), budget)
    if budget.blocks < 0:
        planning.pay(-budget.blocks)
    waiting = [planning.line(complete, partial=False), planning.line(partial, partial=True)]
    for candidate in merge(sorted(running), *waiting):
        planning.take_up(candidate)
    return planning.result()


class _Planning:
    """The state of one planning pass: what is left of the budget, and who was chosen for what."""

    __slots__ = (
        "_admitted", "_blocked", "_blocks", "_budget", "_context", "_later", "_running", "_running_left", "_served",
        "_short", "_slots", "_stuck", "_tokens", "_tries", "_victims",
    )  # fmt: skip

    def __init__(self, running: Sequence[Candidate], victims: _Victims, budget: Budget) -> None:
        self._running = running
        self._running_left = len(running)
        self._later: list[Candidate] = []
        self._budget = budget
        self._tokens, self._slots, self._blocks = budget.tokens, budget.slots, budget.blocks
        self._context: float = budget.context_tokens
        self._served: dict[str, Candidate] = {}
        self._victims = victims
        self._admitted: Candidate | None = None  # the best complete request that is admitted in this step
        self._blocked = False  # a complete request waits for blocks: none behind it may overtake it
        self._stuck: list[str] = []  # complete requests that run and whose blocks somebody else has got
        self._tries = _TRIES
        self._short = False

    def pay(self, blocks: int) -> None:
        """What runs on gets its blocks from whoever gives up first."""
        self._short = True
        self._blocks += self._victims.give(blocks, None)

    def line(self, candidates: Iterable[Candidate], *, partial: bool) -> Iterator[Candidate]:
        """The candidates, until something speaks against all that are left."""
        for candidate in candidates:
            yield candidate
            if self._closed(partial):
                return

    def _closed(self, partial: bool) -> bool:
        """Whether none of them that waits can be served any more."""
        if self._tokens <= 0 or self._slots <= 0:
            return True
        if partial:
            exhausted = self._tries <= 0 or len(self._later) >= _TRIES
            return self._admitted is not None or self._context <= 0 or exhausted
        return self._blocked

    def take_up(self, candidate: Candidate) -> None:
        """Consider the candidates as stock `schedule()` serves them: whoever runs before the streams that wait."""
        if candidate.partial and not candidate.running and self._running_left:
            self._later.append(candidate)
            return
        self._consider(candidate)
        if candidate.running:
            self._running_left -= 1
            if not self._running_left:
                later, self._later = self._later, []
                for waiting in later:
                    self._consider(waiting)

    def _consider(self, candidate: Candidate) -> None:
        """Serve the candidate if that can be done."""
        _, id, partial, running, remaining_tokens, needed, _ = candidate
        if self._tokens <= 0 or self._slots <= 0:
            return
        if id in self._victims.given:  # it has more to compute than was said
            self._blocked = self._blocked or not (partial or running)
            return
        if self._closed(partial) and (partial or not running):
            return
        if running and not partial and self._admitted is not None and remaining_tokens > self._tokens:
            self._tokens = 0  # stock schedule() would serve it first: it is parked, and nobody may overtake it
        elif self._raise(candidate, needed + (0 if running else self._budget.reserve)):
            self._serve(candidate, needed)
        elif partial:
            self._tries -= 1
        else:
            self._blocked = True
            if running:
                self._stuck.append(id)

    def _raise(self, candidate: Candidate, needed: int) -> bool:
        """Get the blocks, from those who yield to the candidate if need be; nobody gives up if that is in vain."""
        missing = needed - self._blocks
        if missing > 0:
            self._short = True
            if not self._victims.have(missing, candidate):
                return False
            self._blocks += self._victims.give(missing, candidate)
        return True

    def _serve(self, candidate: Candidate, needed: int) -> None:
        self._served[candidate.id] = candidate
        self._victims.spared.add(candidate.id)
        self._slots -= 1
        self._blocks -= needed
        granted = min(self._tokens, candidate.remaining_tokens)
        if candidate.partial:
            granted = int(min(granted, self._context))
            self._context -= granted
        elif not candidate.running and self._admitted is None:
            self._admitted = candidate
        self._tokens -= granted

    def result(self) -> Plan:
        return Plan(
            served=tuple(self._served),
            parked=tuple(self._parked()),
            taken=self._victims.taken(),
            short=self._short,
            tokens_left=self._tokens,
            context_limited=math.isfinite(self._context),
        )

    def _parked(self) -> list[str]:
        """Those who lack blocks, and those in the way of a request that is admitted: of its tokens, or of its slot."""
        if self._admitted is None and not self._stuck and len(self._served) + len(self._running) <= self._budget.slots:
            return []
        left = [candidate for candidate in self._running if candidate.id not in {*self._served, *self._stuck}]
        idle = [candidate for candidate in left if candidate.id not in self._victims.given]
        admitted = self._admitted
        in_the_way = [candidate for candidate in idle if admitted is not None and candidate.rank > admitted.rank]
        others = sorted(set(idle).difference(in_the_way))
        too_many = len(self._served) + len(others) - self._budget.slots
        surplus = others[max(0, len(others) - max(0, too_many)) :]
        return self._stuck + [candidate.id for candidate in (*in_the_way, *surplus)]


class _Victims:
    """Those who can give up blocks, read from the planner's caller as far as needed."""

    def __init__(self, victims: Iterable[Victim], overlap: Overlap) -> None:
        self._rest = iter(victims)
        self._overlap = overlap
        self.spared: set[str] = set()
        """Those who give up nothing: they are served."""
        self._read: list[Victim] = []
        self.given: dict[str, int] = {}
        """What each has been made to give, by id."""

    def have(self, missing: int, candidate: Candidate) -> bool:
        """Whether those ranked below the candidate can give as many blocks."""
        for _, blocks in self._below(candidate):
            missing -= blocks
            if missing <= 0:
                return True
        return False

    def give(self, missing: int, candidate: Candidate | None) -> int:
        """Take up to `missing` blocks, for the candidate or (None) for what runs on; how many there were."""
        wanted = missing
        for victim, blocks in self._below(candidate):
            if wanted <= 0:
                break
            take = min(blocks, wanted)
            self.given[victim.id] = self.given.get(victim.id, 0) + take
            wanted -= take
        return missing - wanted

    def taken(self) -> tuple[Taken, ...]:
        return tuple(Taken(id, blocks) for id, blocks in self.given.items())

    def _below(self, candidate: Candidate | None) -> Iterator[tuple[Victim, int]]:
        """Victims in the order of giving up, with what they have left."""
        for victim in self._all():
            blocks = victim.blocks - self.given.get(victim.id, 0)
            if victim.id in self.spared or not (candidate is None or _yields(victim, candidate)):
                continue
            if candidate is not None and candidate.shares:
                blocks -= self._overlap(candidate.id, victim.id)
            if blocks > 0:
                yield victim, blocks

    def _all(self) -> Iterator[Victim]:
        yield from self._read
        for victim in self._rest:
            self._read.append(victim)
            yield victim


def _yields(victim: Victim, candidate: Candidate) -> bool:
    """Whether the victim gives up blocks for the candidate. Of equal ranks the one with the lower id comes first."""
    if victim.stream != candidate.partial:
        return victim.stream
    return (victim.rank, victim.id) > (candidate.rank, candidate.id)
