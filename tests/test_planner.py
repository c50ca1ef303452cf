"""The planner's guarantees as properties, on single steps and over long histories of a model of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm.planner import Budget, Candidate, Kind, Plan, plan


def complete(id: str, order: float = 0, **fields: int | bool) -> Candidate:
    return Candidate(id, Kind.COMPLETE, order, **fields)  # type: ignore[arg-type]


def partial(id: str, order: float = 0, **fields: int | bool) -> Candidate:
    return Candidate(id, Kind.PARTIAL, order, **fields)  # type: ignore[arg-type]


def idle(id: str, order: float = 0, **fields: int | bool) -> Candidate:
    return Candidate(id, Kind.IDLE, order, **fields)  # type: ignore[arg-type]


def test_with_room_for_all_every_stream_is_computed_oldest_first() -> None:
    streams = [partial("b", 2, remaining_tokens=10), partial("a", 1, remaining_tokens=10)]
    assert plan(streams, Budget(tokens=100, slots=4, blocks=10)) == Plan(("a", "b"))


def test_streams_get_the_tokens_that_complete_requests_leave() -> None:
    running = complete("c", running=True, remaining_tokens=100)
    stream = partial("s", running=True, remaining_tokens=10)
    assert plan([running, stream], Budget(100, 4, 10)) == Plan(parked=("s",))
    assert plan([running, stream], Budget(101, 4, 10)) == Plan(("s",))


def test_running_streams_pause_for_the_step_that_admits_a_complete_request() -> None:
    candidates = [complete("c", remaining_tokens=5), partial("s", running=True, remaining_tokens=10)]
    assert plan(candidates, Budget(100, 4, 10)) == Plan(parked=("s",))


def test_the_worst_ranked_streams_pay_first() -> None:
    candidates = [
        complete("c", remaining_tokens=5, needed_blocks=5),
        idle("old", 1, held_blocks=4),
        idle("young", 3, held_blocks=4),
        partial("middle", 2, running=True, remaining_tokens=5, held_blocks=4),
    ]
    assert plan(candidates, Budget(100, 4, blocks=0)).evicted == ("middle", "young")


def test_nobody_is_evicted_when_even_all_would_not_be_enough() -> None:
    candidates = [complete("c", remaining_tokens=5, needed_blocks=50), idle("s", held_blocks=4)]
    assert plan(candidates, Budget(100, 4, blocks=0)) == Plan()


def test_a_running_request_takes_what_it_can_get() -> None:
    candidates = [complete("c", running=True, remaining_tokens=1, needed_blocks=9), idle("s", held_blocks=4)]
    assert plan(candidates, Budget(100, 4, blocks=0)).evicted == ("s",)


def test_a_waiting_request_behind_the_first_cannot_make_it_wait() -> None:
    """The blocks that a waiting final request's stream pins are not out of reach for the request before it."""
    first = complete("first", 0, remaining_tokens=9, needed_blocks=6)
    second = complete("second", 1, remaining_tokens=9, needed_blocks=1, held_blocks=8)
    assert plan([first, second], Budget(100, 4, blocks=0)).evicted == ("second",)


BLOCKS = st.integers(0, 12)
CANDIDATE = st.builds(
    Candidate,
    id=st.uuids().map(str),
    kind=st.sampled_from(Kind),
    order=st.integers(0, 5),
    running=st.booleans(),
    remaining_tokens=st.integers(0, 60),
    needed_blocks=BLOCKS,
    held_blocks=BLOCKS,
).map(
    lambda candidate: (
        replace(candidate, running=False, remaining_tokens=0, needed_blocks=0)
        if candidate.kind is Kind.IDLE
        else candidate
    )
)
BUDGET = st.builds(Budget, tokens=st.integers(0, 100), slots=st.integers(0, 6), blocks=BLOCKS)


@given(st.lists(CANDIDATE, max_size=12), BUDGET)
def test_a_plan_never_uses_more_than_there_is(candidates: list[Candidate], budget: Budget) -> None:
    result = plan(candidates, budget)
    by_id = {candidate.id: candidate for candidate in candidates}
    assert len(result.partials) <= budget.slots
    assert not set(result.evicted) & set(result.partials)
    assert not set(result.evicted) & set(result.parked)
    assert not set(result.parked) & set(result.partials)
    assert all(by_id[id].kind is Kind.PARTIAL for id in (*result.partials, *result.parked))
    freed = sum(by_id[id].held_blocks for id in result.evicted)
    assert sum(by_id[id].needed_blocks for id in result.partials) <= budget.blocks + freed
    # Who runs and is neither computed nor evicted is parked: nobody is forgotten.
    running = {c.id for c in candidates if c.kind is Kind.PARTIAL and c.running}
    assert running <= {*result.partials, *result.parked, *result.evicted}


@given(st.lists(CANDIDATE, max_size=12), BUDGET)
def test_streams_never_evict_complete_requests_nor_better_streams(candidates: list[Candidate], budget: Budget) -> None:
    """Isolation: without complete requests the best-ranked stream that holds anything useful is never evicted."""
    streams = [candidate for candidate in candidates if candidate.kind is not Kind.COMPLETE]
    result = plan(streams, budget)
    by_id = {candidate.id: candidate for candidate in streams}
    for victim in result.evicted:
        assert any(by_id[served].rank < by_id[victim].rank for served in result.partials)
    for candidate in plan(candidates, budget).evicted:
        found = next(c for c in candidates if c.id == candidate)
        assert not (found.kind is Kind.COMPLETE and found.running)


@given(st.lists(CANDIDATE, max_size=12), st.integers(0, 8))
def test_the_first_complete_request_is_always_given_room(candidates: list[Candidate], blocks: int) -> None:
    """Progress: if it fits beside the running complete requests, enough is evicted."""
    first = Candidate("first", Kind.COMPLETE, -1, remaining_tokens=10, needed_blocks=blocks)
    others = [c for c in candidates if not (c.kind is Kind.COMPLETE and c.running)]
    free = max(0, blocks - sum(candidate.held_blocks for candidate in others))
    result = plan([first, *others], Budget(tokens=100, slots=1, blocks=free))
    evicted = sum(candidate.held_blocks for candidate in others if candidate.id in result.evicted)
    assert free + evicted >= blocks


@dataclass
class Engine:
    """A model of the engine for long histories: it carries plans out as phase 2 does, on numbers instead of blocks."""

    pool: int
    slots: int
    step_tokens: int
    block: int = 4
    held: dict[str, int] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    length: dict[str, int] = field(default_factory=dict)
    final: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)

    @property
    def free(self) -> int:
        return self.pool - sum(self.held.values())

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def candidate(self, number: int, id: str) -> Candidate:
        remaining = self.length[id] - self.computed[id]
        kind = Kind.COMPLETE if id in self.final else Kind.PARTIAL if remaining else Kind.IDLE
        evictable = not (kind is Kind.COMPLETE and id in self.running)
        return Candidate(
            id,
            kind,
            number,
            running=id in self.running,
            remaining_tokens=remaining,
            needed_blocks=self.blocks(self.length[id]) - self.held[id] if kind is not Kind.IDLE else 0,
            held_blocks=self.held[id] if evictable else 0,
        )

    def step(self) -> None:
        candidates = [self.candidate(number, id) for number, id in enumerate(self.length)]
        complete_running = [c for c in candidates if c.kind is Kind.COMPLETE and c.running]
        result = plan(candidates, Budget(self.step_tokens, self.slots - len(complete_running), self.free))
        for id in result.evicted:
            self.held[id] = self.computed[id] = 0
            self.running.discard(id)
        self.running -= set(result.parked)
        tokens = self.step_tokens
        for candidate in sorted(candidates, key=lambda c: (not c.running, c.rank)):
            id = candidate.id
            if candidate.kind is Kind.IDLE or (candidate.kind is Kind.PARTIAL and id not in result.partials):
                continue
            if id not in self.running:
                missing = self.blocks(self.length[id]) - self.held[id]
                if len(self.running) >= self.slots or missing > self.free:
                    continue
                self.running.add(id)
            grant = min(tokens, self.length[id] - self.computed[id])
            more = self.blocks(self.computed[id] + grant) - self.held[id]
            assert more <= self.free, "stock schedule() would have to preempt"
            self.held[id] += max(0, more)
            self.computed[id] += grant
            tokens -= grant
            if self.computed[id] == self.length[id]:
                self.running.discard(id)
                if id in self.final:
                    for table in (self.held, self.computed, self.length):
                        del table[id]
                    self.final.discard(id)


OPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "plain", "append", "finish", "step", "step"]), st.integers(0, 7), st.integers(1, 40)
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(OPS, st.integers(1, 3), st.integers(4, 24))
def test_every_complete_request_finishes_over_any_history(
    ops: list[tuple[str, int, int]], slots: int, step_tokens: int
) -> None:
    """No deadlock, no starvation by streams that never finish: clients may open, append, finish, or go silent."""
    engine = Engine(pool=12, slots=slots, step_tokens=step_tokens)
    serial = 0
    for op, which, amount in ops:
        open_streams = [id for id in engine.length if id not in engine.final]
        if op in ("open", "plain"):
            id = f"{op}{serial}"
            serial += 1
            engine.length[id], engine.held[id], engine.computed[id] = amount, 0, 0
            if op == "plain":
                engine.final.add(id)
        elif op == "append" and open_streams:
            id = open_streams[which % len(open_streams)]
            engine.length[id] = min(48, engine.length[id] + amount)
        elif op == "finish" and open_streams:
            engine.final.add(open_streams[which % len(open_streams)])
        else:
            engine.step()
    for _ in range(600):
        if not engine.final:
            break
        engine.step()
    assert not engine.final
    assert sum(engine.held.values()) <= engine.pool


@pytest.mark.parametrize("count", [2, 5])
def test_open_streams_do_not_deadlock_one_another(count: int) -> None:
    """BUGS 5: each needs 60 % of the pool; the oldest is computed, the others wait and lose nothing they need."""
    engine = Engine(pool=10, slots=8, step_tokens=8)
    for number in range(count):
        engine.length[f"s{number}"], engine.held[f"s{number}"], engine.computed[f"s{number}"] = 24, 0, 0
    for _ in range(20):
        engine.step()
    assert engine.computed["s0"] == 24
