"""The planner's guarantees as properties: on single steps, and over long histories of a model of the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm.planner import Budget, Candidate, Plan, Taken, Victim, plan
from stream2llm.policy import Job, Policy, names, policy
from stream2llm.ranking import FIRST, Rank

COMPLETE, STREAM = 0, 1  # first element of a rank: complete requests before streams


def complete(id: str, order: float = 0, **fields: int | bool) -> Candidate:
    return Candidate((COMPLETE, order), id, **fields)  # type: ignore[arg-type]


def partial(id: str, order: float = 0, **fields: int | bool) -> Candidate:
    return Candidate((STREAM, order), id, partial=True, **fields)  # type: ignore[arg-type]


def victim(id: str, order: float, blocks: int, kind: int = STREAM) -> Victim:
    return Victim((kind, order), id, blocks)


def planned(
    candidates: Sequence[Candidate], budget: Budget, victims: Sequence[Victim] = (), running: Sequence[Candidate] = ()
) -> Plan:
    complete = sorted(candidate for candidate in candidates if not candidate.partial)
    partial = sorted(candidate for candidate in candidates if candidate.partial)
    return plan(running, complete, partial, victims, budget)


def test_with_room_for_all_everybody_is_served_complete_requests_first() -> None:
    candidates = [partial("b", 2, remaining_tokens=9), complete("c", 5, remaining_tokens=9)]
    streams = [partial("a", 1, remaining_tokens=9)]
    assert planned([*candidates[:1], *streams], Budget(100, 4, 9)).served == ("a", "b")
    # In the step that admits a complete request no stream is computed: it is as short as it can be.
    assert planned([*candidates, *streams], Budget(100, 4, 9)).served == ("c",)


def test_running_streams_pause_for_the_step_that_admits_a_complete_request() -> None:
    running = [partial("s", 1, running=True, remaining_tokens=10)]
    assert planned([complete("c", remaining_tokens=5)], Budget(100, 4, 9), running=running).parked == ("s",)


def test_running_streams_that_get_no_token_keep_their_slot_while_nobody_wants_it() -> None:
    running = [partial("a", 1, running=True, remaining_tokens=10), partial("b", 2, running=True, remaining_tokens=10)]
    assert planned([], Budget(10, 4, 9), running=running) == Plan(served=("a",))


def test_a_long_prefill_gives_way_to_a_request_ranked_before_it() -> None:
    long = complete("long", 9, running=True, remaining_tokens=500)
    result = planned([complete("short", 1, remaining_tokens=5)], Budget(100, 4, 9), running=[long])
    assert (result.served, result.parked) == (("short",), ("long",))
    both = planned([complete("short", 1, remaining_tokens=5)], Budget(600, 4, 9), running=[long])
    assert (both.served, both.parked) == (("short", "long"), ())


def test_victims_give_up_in_their_order_and_no_more_than_is_needed() -> None:
    request = complete("c", remaining_tokens=5, needed_blocks=6)
    victims = [victim("silent", 1, 2), victim("young", 3, 3), victim("old", 2, 3)]
    result = planned([request], Budget(100, 4, 0), victims)
    assert result.taken == (Taken("silent", 2), Taken("young", 3), Taken("old", 1))
    assert (result.served, result.short) == (("c",), True)


def test_blocks_that_the_request_would_use_itself_are_not_taken_for_it() -> None:
    """The victim's prefix is the request's: given up, its blocks would have to be taken again."""
    request = complete("c", remaining_tokens=5, needed_blocks=4, shares=True)
    victims = [victim("same-prefix", 2, 6), victim("other", 1, 6)]
    shared = {("c", "same-prefix"): 5}
    result = plan([], [request], [], victims, Budget(100, 4, 1), lambda *ids: shared.get(ids, 0))
    assert result.taken == (Taken("same-prefix", 1), Taken("other", 2))


def test_nobody_gives_up_in_vain() -> None:
    request = complete("c", remaining_tokens=5, needed_blocks=50)
    assert planned([request], Budget(100, 4, 0), [victim("s", 1, 4)]) == Plan(short=True, tokens_left=100)


def test_a_stream_takes_nothing_from_one_ranked_before_it() -> None:
    stream = partial("s", 2, remaining_tokens=5, needed_blocks=5)
    assert planned([stream], Budget(100, 4, 0), [victim("older", 1, 9)]).taken == ()
    assert planned([stream], Budget(100, 4, 0), [victim("younger", 3, 9)]).taken == (Taken("younger", 5),)


def test_what_runs_on_gets_its_blocks_first_from_anybody() -> None:
    victims = [victim("s", 1, 2), Victim(FIRST, "decode", 8)]
    assert planned([], Budget(100, 4, blocks=-3), victims).taken == (Taken("s", 2), Taken("decode", 1))


def test_a_request_that_gives_up_blocks_is_not_computed_in_that_step() -> None:
    running = [partial("s", 1, running=True, remaining_tokens=10)]
    result = planned([], Budget(100, 4, blocks=-3), [victim("s", 1, 9)], running)
    assert (result.served, result.parked, result.taken) == ((), (), (Taken("s", 3),))


def test_no_waiting_request_overtakes_one_that_waits_for_blocks() -> None:
    first = complete("first", 1, remaining_tokens=5, needed_blocks=9)
    second = complete("second", 2, remaining_tokens=5, needed_blocks=1)
    stream = partial("stream", 1, remaining_tokens=5, needed_blocks=1)
    assert planned([first, second, stream], Budget(100, 4, 3)).served == ("stream",)


def test_open_streams_get_no_more_tokens_than_decode_protection_allows() -> None:
    streams = [partial(id, order, remaining_tokens=10) for order, id in enumerate("abc")]
    result = planned(streams, Budget(100, 4, 9, context_tokens=12))
    assert (result.served, result.tokens_left, result.context_limited) == (("a", "b"), 88, True)


BLOCKS = st.integers(0, 12)
ORDER = st.integers(0, 5)
IDS = st.uuids().map(str)


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[list[Candidate], list[Candidate], list[Victim], Budget]:
    """Waiting and running candidates and victims; a running candidate holds what it can give up."""
    waiting = draw(
        st.lists(
            st.builds(
                lambda kind, order, id, remaining, needed: Candidate(
                    (kind, order), id, kind == STREAM, False, remaining, needed
                ),
                st.sampled_from([COMPLETE, STREAM]),
                ORDER,
                IDS,
                st.integers(1, 60),
                BLOCKS,
            ),
            max_size=8,
        )
    )
    running = [candidate._replace(running=True) for candidate in waiting if draw(st.booleans())]
    waiting = [candidate for candidate in waiting if candidate.id not in {c.id for c in running}]
    holders = draw(st.lists(st.tuples(ORDER, IDS, st.integers(1, 9)), max_size=6))
    victims = [victim(id, order, blocks) for order, id, blocks in holders]
    holding = [candidate for candidate in (*running, *waiting) if draw(st.booleans())]
    victims += [Victim(c.rank, c.id, draw(st.integers(1, 9)), c.partial) for c in holding]
    budget = Budget(draw(st.integers(0, 100)), draw(st.integers(0, 6)), draw(st.integers(-4, 12)))
    return waiting, running, draw(st.permutations(victims)), budget


@given(snapshots())
def test_a_plan_never_uses_more_than_there_is(
    snapshot: tuple[list[Candidate], list[Candidate], list[Victim], Budget],
) -> None:
    waiting, running, victims, budget = snapshot
    result = planned(waiting, budget, victims, running)
    by_id = {candidate.id: candidate for candidate in (*waiting, *running)}
    held = {v.id: v.blocks for v in victims}
    given = dict(result.taken)
    served = [by_id[id] for id in result.served]

    assert len(served) <= max(0, budget.slots)
    assert not set(result.served) & set(result.parked)
    assert all(0 < blocks <= held[id] for id, blocks in result.taken)
    # A running request that gives up blocks is preempted; it is neither computed nor parked besides.
    assert not {c.id for c in running if c.id in given} & {*result.served, *result.parked}
    strict = [c for c in served if not (c.running and not c.partial)]
    if strict == served:
        needed = sum(c.needed_blocks + given.get(c.id, 0) for c in served)
        assert needed <= max(0, budget.blocks + sum(given.values()))
    slots = len(served) + sum(c.id not in {*result.served, *result.parked, *given} for c in running)
    assert slots <= max(budget.slots, 0) or not result.served


@given(snapshots())
def test_isolation_nobody_gives_up_for_somebody_ranked_below(
    snapshot: tuple[list[Candidate], list[Candidate], list[Victim], Budget],
) -> None:
    waiting, running, victims, budget = snapshot
    result = planned(waiting, budget, victims, running)
    by_id = {candidate.id: candidate for candidate in (*waiting, *running)}
    ranks = {v.id: v.rank for v in victims}
    streams = {v.id: v.stream for v in victims}
    if budget.blocks >= 0:
        for id, _ in result.taken:
            takers = [by_id[taker] for taker in result.served]
            before = [taker for taker in takers if (taker.rank, taker.id) < (ranks[id], id)]
            assert any(not taker.partial for taker in (takers if streams[id] else before)) or (before and streams[id])


@given(snapshots(), st.integers(0, 20))
def test_progress_the_first_complete_request_gets_what_those_below_it_hold(
    snapshot: tuple[list[Candidate], list[Candidate], list[Victim], Budget], needed: int
) -> None:
    waiting, running, victims, budget = snapshot
    first = Candidate((COMPLETE, -1), "first", False, False, 10, needed)
    blocks = max(0, budget.blocks)
    result = planned([first, *waiting], Budget(100, 1, blocks), victims, running)
    enough = blocks + sum(v.blocks for v in victims) >= needed  # it ranks before all of them
    assert ("first" in result.served) == enough


@given(snapshots(), st.integers(0, 30))
def test_decode_protection_bounds_what_streams_compute(
    snapshot: tuple[list[Candidate], list[Candidate], list[Victim], Budget], cap: int
) -> None:
    waiting, running, victims, budget = snapshot
    limited = Budget(budget.tokens, budget.slots, budget.blocks, context_tokens=cap)
    result = planned(waiting, limited, victims, running)
    by_id = {candidate.id: candidate for candidate in (*waiting, *running)}
    granted = max(0, budget.tokens) - max(0, result.tokens_left)
    served = [by_id[id] for id in result.served]
    of_complete = sum(c.remaining_tokens for c in served if not c.partial)
    if not any(c.running and not c.partial for c in running):
        assert granted <= of_complete + cap


@dataclass
class Work:
    """A stream, a prefilling or decoding request: numbers instead of blocks."""

    id: str
    arrival: int
    length: int
    complete: bool = False
    answer: int = 0  # tokens still to decode once the prompt is computed
    written: int = 0
    computed: int = 0
    held: int = 0
    running: bool = False
    started: int = 0
    preemptions: int = 0
    done: bool = False  # the stream's version was computed: what it loses now is computed again with the next one

    @property
    def decoding(self) -> bool:
        return self.complete and self.running and self.computed >= self.length

    @property
    def idle(self) -> bool:
        return not self.complete and self.done

    @property
    def job(self) -> Job:
        remaining = 0 if self.idle else self.length - self.computed
        return Job(
            self.complete, self.arrival, self.written, self.written if self.complete else self.arrival, self.started,
            self.computed, remaining, remaining / 10, False, self.decoding, self.preemptions,
        )  # fmt: skip


class ModelEngine:
    """Carries plans out as phase 2 does. Prompts take a block per four tokens; one token a step is decoded."""

    BLOCK = 4

    def __init__(self, kind: Policy, pool: int, slots: int, step_tokens: int) -> None:
        self.policy, self.pool, self.slots, self.step_tokens = kind, pool, slots, step_tokens
        self.works: dict[str, Work] = {}
        self.now = 1

    @property
    def free(self) -> int:
        return self.pool - sum(work.held for work in self.works.values())

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.BLOCK)

    def rank(self, work: Work) -> Rank:
        return self.policy.service(work.job)

    def candidate(self, work: Work) -> Candidate:
        needed = self.blocks(work.length + work.complete) - work.held
        return Candidate(
            self.rank(work), work.id, not work.complete, work.running, work.length - work.computed, max(0, needed)
        )

    def victims(self, steady: list[Work]) -> list[Victim]:
        order = sorted(self.works.values(), key=lambda work: self.policy.giving(work.job))
        last = [work for work in order if work.complete and work.running][-1:]  # one always goes on
        return [
            Victim(
                self.rank(work) if self.policy.preempts_running or not (work.running and work.complete) else FIRST,
                work.id,
                work.held,
                not work.complete,
            )
            for work in order
            if work.held and work not in last
        ]

    def step(self) -> None:
        self.now += 1
        works = list(self.works.values())
        steady = [work for work in works if work.decoding]
        growth = sum(self.blocks(work.computed + 1) - work.held for work in steady)
        budget = Budget(
            self.step_tokens - len(steady),
            self.slots - len(steady),
            self.free - growth,
            context_tokens=3 if steady else math.inf,
        )
        running = [self.candidate(work) for work in works if work.running and not work.decoding]
        others = [self.candidate(work) for work in works if not work.running and not work.idle]
        complete, partial = (sorted(c for c in others if c.partial == kind) for kind in (False, True))
        result = plan(running, complete, partial, self.victims(steady), budget)

        for id in result.parked:
            self._pause(self.works[id])
        for id, blocks in result.taken:
            work = self.works[id]
            if work.running:
                self._pause(work)
            work.held -= blocks
            work.computed = min(work.computed, work.held * self.BLOCK)
        tokens = self.step_tokens
        for work in steady:
            if work.running:
                self._compute(work, 1)
                tokens -= 1
        for id in result.served:
            work = self.works[id]
            if not work.running:
                work.running, work.started = True, self.now
            grant = max(0, min(tokens, work.length - work.computed))
            tokens -= grant
            self._compute(work, grant)
        assert sum(work.running for work in self.works.values()) <= self.slots
        for work in list(self.works.values()):
            if not work.complete and work.computed >= work.length:
                work.done, work.running = True, False
            elif work.decoding and work.answer <= 0:
                del self.works[work.id]

    def _pause(self, work: Work) -> None:
        if work.decoding:  # its answer so far is to be computed again like a prompt
            work.length = work.computed
        work.running = False
        work.preemptions += 1

    def _compute(self, work: Work, tokens: int) -> None:
        if work.decoding:
            work.answer -= 1
        work.computed += tokens
        more = max(0, self.blocks(work.computed) - work.held)
        assert more <= self.free, "stock schedule() would have to preempt"
        work.held += more


OPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "plain", "append", "finish", "step", "step"]), st.integers(0, 7), st.integers(1, 36)
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", names())
@settings(max_examples=120, deadline=None)
@given(OPS, st.integers(1, 3), st.integers(4, 24))
def test_every_complete_request_finishes_over_any_history(
    name: str, ops: list[tuple[str, int, int]], slots: int, step_tokens: int
) -> None:
    """No deadlock, no starvation by streams that never finish: clients may open, append, finish, or go silent."""
    engine = ModelEngine(policy(name), pool=12, slots=slots, step_tokens=step_tokens)
    for serial, (op, which, amount) in enumerate(ops):
        streams = [work for work in engine.works.values() if not work.complete]
        if op in ("open", "plain"):
            work = Work(f"{op}{serial}", engine.now, amount, op == "plain", amount % 9, engine.now)
            engine.works[work.id] = work
        elif op == "append" and streams:
            work = streams[which % len(streams)]
            work.length, work.written, work.running = min(36, work.length + amount), engine.now, False
            work.done = work.computed >= work.length
        elif op == "finish" and streams:
            work = streams[which % len(streams)]
            work.complete, work.written, work.running, work.answer = True, engine.now, False, amount % 9
            work.computed = min(work.computed, work.length - 1)
        else:
            engine.step()
    wanted = len([work for work in engine.works.values() if work.complete])
    for _ in range(80 * (wanted + 1)):
        if not any(work.complete for work in engine.works.values()):
            break
        engine.step()
    assert not [work for work in engine.works.values() if work.complete]
    assert engine.free >= 0


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("count", [2, 5])
def test_open_streams_do_not_deadlock_one_another(name: str, count: int) -> None:
    """BUGS 5: each needs 60 % of the pool; one is computed, the others wait and take nothing that it needs."""
    engine = ModelEngine(policy(name), pool=10, slots=8, step_tokens=8)
    for number in range(count):
        engine.works[f"s{number}"] = Work(f"s{number}", number, 24, written=number)
    for _ in range(40):
        engine.step()
    assert max(work.computed for work in engine.works.values()) == 24
