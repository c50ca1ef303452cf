"""Each policy against an oracle: the order that its definition gives, computed here by comparing pairs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import cmp_to_key

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.policy import Job, Policy, names, policy
from stream2llm.policy.srpf import AGEING, PREEMPTIONS

TIMES = st.integers(0, 6).map(float)
JOB = st.builds(
    Job,
    complete=st.booleans(),
    arrival=TIMES,
    last_chunk=TIMES,
    since=TIMES,
    started=TIMES,
    computed_tokens=st.integers(0, 4),
    remaining_tokens=st.integers(0, 4),
    remaining_seconds=st.integers(0, 3).map(float),
    silent=st.booleans(),
    decoding=st.just(False),
    preemptions=st.integers(0, 4),
).map(lambda job: job._replace(silent=job.silent and not job.complete, preemptions=job.preemptions * job.complete))

Comparison = Callable[[Job, Job], float]


def first_difference(*differences: float) -> float:
    return next((difference for difference in differences if difference), 0.0)


def fcfs(a: Job, b: Job) -> float:
    """Complete before partial, each by arrival."""
    return first_difference(b.complete - a.complete, a.arrival - b.arrival)


def lcas(a: Job, b: Job) -> float:
    """Complete before partial, each by last-chunk arrival, oldest first."""
    return first_difference(b.complete - a.complete, a.last_chunk - b.last_chunk, a.arrival - b.arrival)


def mcps(a: Job, b: Job) -> float:
    """Most computed tokens first, ties by arrival; nothing to compute goes last."""
    return first_difference(
        (a.remaining_tokens == 0) - (b.remaining_tokens == 0),
        b.computed_tokens - a.computed_tokens,
        a.arrival - b.arrival,
    )


def default(a: Job, b: Job) -> float:
    """By arrival; an idle stream goes last."""
    return first_difference((a.remaining_tokens == 0) - (b.remaining_tokens == 0), a.arrival - b.arrival)


def srpf(a: Job, b: Job) -> float:
    """Complete by remaining prefill less a credit for waiting, spared ones first; streams by age, silent ones last."""
    if a.complete != b.complete:
        return b.complete - a.complete
    if not a.complete:
        return first_difference(a.silent - b.silent, a.since - b.since)
    spared_a, spared_b = a.preemptions >= PREEMPTIONS, b.preemptions >= PREEMPTIONS
    if spared_a or spared_b:
        return spared_b - spared_a
    now = 100.0
    return round((a.remaining_seconds - AGEING * (now - a.since)) - (b.remaining_seconds - AGEING * (now - b.since)), 9)


ORACLES: dict[str, Comparison] = {"fcfs": fcfs, "lcas": lcas, "mcps": mcps, "default": default, "srpf": srpf}


def rounded(rank: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(part, 9) for part in rank)


@pytest.mark.parametrize("name", ORACLES)
@given(jobs=st.lists(JOB, max_size=8))
def test_the_order_of_service_is_the_oracles(name: str, jobs: list[Job]) -> None:
    kind = policy(name)
    ours = sorted(jobs, key=lambda job: rounded(kind.service(job)))
    assert ours == sorted(jobs, key=cmp_to_key(lambda a, b: int(1e9 * ORACLES[name](a, b))))


@pytest.mark.parametrize("name", ["fcfs", "lcas", "mcps"])
@given(a=JOB, b=JOB)
def test_the_papers_policies_take_memory_from_the_end_of_their_order(name: str, a: Job, b: Job) -> None:
    kind = policy(name)
    assert (kind.service(a) < kind.service(b)) == (kind.giving(a) > kind.giving(b))


@given(a=JOB, b=JOB)
def test_default_takes_memory_from_who_was_admitted_last(a: Job, b: Job) -> None:
    giving = policy("default").giving
    if a.started != b.started:
        assert (giving(a) < giving(b)) == (a.started > b.started)


def test_ours_takes_memory_from_silent_then_young_streams_then_from_the_least_urgent_requests() -> None:
    def stream(since: float, silent: bool = False) -> Job:
        return Job(False, 0, 0, since, silent=silent)

    def request(seconds: float, **fields: bool | int) -> Job:
        return Job(True, 0, 0, 0, remaining_seconds=seconds, **fields)  # type: ignore[arg-type]

    expected = [
        stream(5, silent=True),
        stream(1, silent=True),
        stream(4),
        stream(2),
        request(9),
        request(1),
        request(9, preemptions=PREEMPTIONS),
        request(0, decoding=True),
        request(0, decoding=True, preemptions=PREEMPTIONS),
    ]
    random.Random(0).shuffle(shuffled := list(expected))
    assert sorted(shuffled, key=policy("srpf").giving) == expected


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0, 1000))
def test_ageing_bounds_who_may_overtake(work: float, other_work: float, later: float) -> None:
    """A request with w seconds of prefill is overtaken only by those that come within w / AGEING seconds after it."""
    service = policy("srpf").service
    first = service(Job(True, 0, 0, since=0.0, remaining_seconds=work))
    other = service(Job(True, 0, 0, since=later, remaining_seconds=other_work))
    if other < first:
        assert later <= work / AGEING


@pytest.mark.parametrize("name", names())
@given(jobs=st.lists(JOB, min_size=2, max_size=6))
def test_what_a_policy_says_of_itself_is_true(name: str, jobs: list[Job]) -> None:
    kind: Policy = policy(name)
    for a, b in itertools.permutations(jobs, 2):
        if kind.complete_first and a.complete and not b.complete:
            assert kind.service(a) < kind.service(b)
            assert kind.giving(a) > kind.giving(b)
