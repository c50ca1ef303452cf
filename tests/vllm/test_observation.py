"""What is learned from steps, with vLLM's own outputs and requests; the clock is the test's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from costs_profiles import profile
from stream2llm.vllm.observation import Observation


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("stream2llm.vllm.observation.time", SimpleNamespace(perf_counter=clock))
    return clock


def observation(factor: float | None = 1.5, correct: bool = False, spec_tokens: int = 0) -> Observation:
    return Observation(profile(), factor, correct, spec_tokens)


def output(tokens: Mapping[str, int]) -> SchedulerOutput:
    return replace(
        SchedulerOutput.make_empty(), num_scheduled_tokens=dict(tokens), total_num_scheduled_tokens=sum(tokens.values())
    )


def request(name: str, computed: int) -> Request:
    made = Request(name, list(range(computed + 1)), SamplingParams(max_tokens=1), None)
    made.num_computed_tokens = computed
    return made


def begin(seen: Observation, tokens: Mapping[str, int], requests: Mapping[str, Request] | None = None) -> Any:
    """A step of requests, and of versions, whose names begin with `v`."""
    made = output(tokens)
    seen.step_begins()
    seen.scheduled(made, [count for name, count in tokens.items() if name.startswith("v")], requests or {})
    return made


def step(seen: Observation, clock: Clock, seconds: float, tokens: Mapping[str, int], **requests: Request) -> None:
    made = begin(seen, tokens, requests)
    clock.seconds += seconds
    seen.step_ends(made)


def test_a_step_of_decodes_is_timed_from_its_beginning(clock: Clock) -> None:
    seen = observation()
    clock.seconds = 50.0
    step(seen, clock, 0.25, {"a": 1, "b": 1})
    assert seen.pace is not None
    assert seen.pace.alone == 0.25


def test_a_step_that_is_scheduled_while_another_computes_begins_when_that_one_ends(clock: Clock) -> None:
    """As with asynchronous scheduling: from its scheduling to its end two steps have passed."""
    seen = observation()
    first = begin(seen, {"a": 1})
    clock.seconds = 0.1
    second = begin(seen, {"a": 1})
    clock.seconds = 1.0
    seen.step_ends(first)
    third = begin(seen, {"a": 1})
    clock.seconds = 2.0
    seen.step_ends(second)
    assert seen.pace is not None
    assert seen.pace.alone == pytest.approx(1.0)
    clock.seconds = 3.0
    seen.step_ends(third)
    assert seen.pace.alone == pytest.approx(1.0)


def test_the_time_between_steps_is_nobodys(clock: Clock) -> None:
    seen = observation()
    step(seen, clock, 1.0, {"a": 1})
    clock.seconds += 100
    step(seen, clock, 1.0, {"a": 1})
    assert seen.pace is not None
    assert seen.pace.alone == pytest.approx(1.0)


def test_context_tokens_are_told_from_decodes_and_steps_with_a_prefill_tell_nothing_of_either(clock: Clock) -> None:
    seen = observation()
    step(seen, clock, 0.125, {"a": 1, "b": 1})
    before = seen.pace
    assert before is not None
    step(seen, clock, 0.75, {"a": 1, "b": 90})
    step(seen, clock, 0.75, {"a": 1, "b": 90, "v1": 10})
    step(seen, clock, 0.75, {"v1": 10})
    assert seen.pace == before
    step(seen, clock, 0.25, {"a": 1, "b": 1, "v1": 10, "v2": 6})
    assert seen.pace == before.observe(0.25, 16) != before


@pytest.mark.parametrize(("spec_tokens", "told"), [(0, False), (3, False), (4, True)])
def test_a_decode_may_verify_drafts(clock: Clock, spec_tokens: int, told: bool) -> None:
    seen = observation(spec_tokens=spec_tokens)
    step(seen, clock, 0.1, {"a": 5, "b": 5})
    assert seen.pace is not None
    assert (seen.pace.alone == 0.1) is told


def test_streams_are_held_back_only_beside_decodes_and_more_where_their_tokens_cost_more(clock: Clock) -> None:
    seen = observation()
    assert seen.context_tokens(0, True) == math.inf
    assert seen.context_tokens(2, True) == 0, "decodes alone are to be measured first"
    assert seen.context_tokens(2, False) == 16
    for _ in range(20):
        step(seen, clock, 0.125, {"a": 1})
    allowed = [seen.context_tokens(2, True)]
    for _ in range(3):
        step(seen, clock, 0.25, {"a": 1, "v": 16})
        allowed.append(seen.context_tokens(2, True))
    assert allowed == sorted(allowed, reverse=True)
    assert 0 < allowed[-1] < allowed[0] < math.inf
    assert observation(factor=None).context_tokens(2, True) == math.inf


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_the_profile_is_corrected_towards_what_steps_take(clock: Clock, ratio: float) -> None:
    seen = observation(factor=None, correct=True)
    assert seen.wanted
    predicted = profile().step_seconds([(100, 200), (1, 50)])
    ratios = [seen.figures()["prefill_correction"]]
    for _ in range(800):
        step(seen, clock, ratio * predicted, {"a": 100, "b": 1}, a=request("a", 300), b=request("b", 51))
        ratios.append(seen.figures()["prefill_correction"])
    changes = [after - before for before, after in pairwise(ratios) if after != before]
    assert all((change > 0) is (ratio > 1) for change in changes)
    assert len(changes) == 100, "one step of eight is looked at"
    assert ratios[-1] == pytest.approx(ratio, rel=0.02)
    assert seen.costs.prefill_seconds(500, 10) == pytest.approx(ratio * profile().prefill_seconds(500, 10), rel=0.02)


def test_steps_with_little_prefill_and_those_of_an_engine_that_decides_nothing_correct_nothing(clock: Clock) -> None:
    few, off = observation(correct=True), observation(factor=None, correct=False)
    assert not off.wanted
    for _ in range(50):
        step(few, clock, 9.0, {"a": 60, "b": 1}, a=request("a", 300), b=request("b", 51))
        step(off, clock, 9.0, {"a": 100}, a=request("a", 300))
    assert few.costs.prefill.ratio == off.costs.prefill.ratio == 1.0


def test_outputs_whose_end_is_never_seen_are_forgotten(clock: Clock) -> None:
    seen = observation()
    lost = [begin(seen, {"a": 1}) for _ in range(1000)]
    assert len(seen._steps) < 100
    step(seen, clock, 0.25, {"a": 1})
    assert seen.pace is not None
    assert seen.pace.alone == 0.25
    assert len(lost) == 1000
