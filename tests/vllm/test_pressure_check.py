"""`check pressure`: the workload that is drawn, and the figures that are made of what was seen. No engine."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from stream2llm.stream import longest_common_prefix
from stream2llm.vllm.check_engine import Answer
from stream2llm.vllm.pressure import Observed, Pressure, Report, Run, measured, pool_blocks, pressures
from stream2llm.vllm.pressure_workload import LONG_ANSWER, Fate, Workload, draw

LONGEST = 300
TEXT = range(100_000)
COUNTERS = {
    "tokens_computed": 1300,
    "tokens_invalidated": 100,
    "tokens_recomputed": 64,
    "tokens_swapped": 32,
    "preempted": 2,
    "pins_evicted": 3,
}


@pytest.fixture(scope="module")
def workload() -> Workload:
    return draw(64, 0, LONGEST, TEXT)


def test_one_stream_in_eight_is_abandoned_and_some_are_closed_and_aborted(workload: Workload) -> None:
    fates = Counter(case.fate for case in workload.streams)
    assert fates == {Fate.FINISHED: 48, Fate.ABANDONED: 8, Fate.CLOSED: 4, Fate.ABORTED: 4}
    assert len(workload.plain) == 16


def test_every_third_later_write_replaces_the_middle_and_the_others_append(workload: Workload) -> None:
    kinds: Counter[str] = Counter()
    for case in workload.streams:
        for before, after in zip(case.versions, case.versions[1:], strict=False):
            common = longest_common_prefix(before, after)
            if common == len(before):
                kinds["append"] += len(after) > len(before)
            else:
                assert len(before) // 4 <= common <= len(before) * 3 // 4
                assert len(after) == len(before)
                kinds["replacement"] += 1
    assert kinds["replacement"] / kinds.total() == pytest.approx(1 / 3, abs=0.05)
    assert kinds.total() == sum(len(case.versions) - 1 for case in workload.streams)


def test_a_final_prompt_continues_the_last_version_and_no_prompt_is_too_long(workload: Workload) -> None:
    for case in workload.streams:
        assert case.final[: len(case.versions[-1])] == case.versions[-1]
        assert LONGEST // 2 <= len(case.versions[-1]) <= len(case.final) <= LONGEST
        assert len(case.pauses) == len(case.versions) + 1
    assert max(len(case.prompt) for case in workload.plain) <= LONGEST
    assert sum(case.answer_tokens == LONG_ANSWER for case in workload.finals) == 8


def test_a_seed_draws_the_same_workload_again_and_another_seed_another(workload: Workload) -> None:
    assert draw(64, 0, LONGEST, TEXT) == workload
    assert draw(64, 1, LONGEST, TEXT) != workload


def test_what_the_streams_want_is_their_largest_prompts_in_whole_blocks(workload: Workload) -> None:
    answered = (Fate.FINISHED, Fate.ABORTED)
    largest = [
        len(case.final) + case.answer_tokens if case.fate in answered else max(map(len, case.versions))
        for case in workload.streams
    ]
    assert workload.wanted_blocks(32) == sum(math.ceil(tokens / 32) for tokens in largest)


def test_the_pool_is_a_share_of_it_but_holds_a_request() -> None:
    assert pool_blocks(50, 101, 64) == 1 + 51
    assert pool_blocks(25, 8, 320) == 1 + 10


@pytest.mark.parametrize(
    ("pools", "preemption", "runs"),
    [
        ([50, 25], None, [(50, "swap"), (25, "swap"), (50, "recompute")]),
        ([50, 25], "cost", [(50, "cost"), (25, "cost")]),
        ([25], "both", [(25, "swap"), (25, "recompute")]),
    ],
)
def test_the_runs_that_are_asked_for(pools: list[int], preemption: str | None, runs: list[tuple[int, str]]) -> None:
    assert pressures(pools, preemption) == [Pressure(*run) for run in runs]


def run_of(workload: Workload, pool_percent: int = 50, **changes: Any) -> Run:
    cold = {"a": [1, 2], "b": [3], "c": [4]}
    waits = {"a": 0.5, "b": 2.0, "c": 1.0}
    answers = {name: Answer(tokens, 0, waits[name]) for name, tokens in cold.items()}
    counts = {"streams_at_once": 64, "streams_without_memory": 30, "leaked_blocks": 0}
    seen = {"answers": answers, "spent": COUNTERS, "seconds": 9.0, **counts, **changes}
    pressure = Pressure(pool_percent, "swap")
    return measured(pressure, 100, workload, cold, Observed(**seen))


def test_tokens_are_counted_against_what_endless_memory_would_compute(workload: Workload) -> None:
    run = run_of(workload)
    asked = sum(len(case.final) + case.answer_tokens - 1 for case in workload.streams if case.fate is Fate.FINISHED)
    asked += sum(len(case.prompt) + case.answer_tokens - 1 for case in workload.plain)
    unanswered = sum(len(case.versions[-1]) for case in workload.streams if case.fate is not Fate.FINISHED)
    assert run.tokens_needed == asked + unanswered + 100
    assert run.work_ratio == pytest.approx(1300 / run.tokens_needed, abs=0.001)
    assert run.work_ratio_strict == pytest.approx(1300 / asked, abs=0.001)


def test_preemptions_are_of_streams_and_of_requests_and_waits_are_the_longest(workload: Workload) -> None:
    run = run_of(workload)
    assert (run.preemptions, run.preemptions_per_request) == (5, 1.667)
    assert run_of(workload, spent={**COUNTERS, "preempted_complete": 4}).preemptions == 9
    assert (run.longest_wait_seconds, run.wait_p99_seconds) == (2.0, 2.0)
    assert run.passed


@pytest.mark.parametrize(
    ("changes", "finished", "equal"),
    [
        ({"answers": {"a": Answer([1, 2], 0, 0.1), "b": Answer([3], 0, 0.1)}}, 2, 2),
        ({"answers": {name: Answer([4], 0, 0.1) for name in "abc"}}, 3, 1),
        ({"leaked_blocks": 1}, 3, 3),
        ({"answers": {}}, 0, 0),
    ],
)
def test_an_unfinished_request_another_answer_and_a_lost_block_each_fail(
    workload: Workload, changes: dict[str, Any], finished: int, equal: int
) -> None:
    run = run_of(workload, **changes)
    assert (run.finished, run.equal, run.passed) == (finished, equal, False)


def test_the_report_adds_the_runs_up_and_shows_the_worst(workload: Workload) -> None:
    runs = (
        run_of(workload),
        run_of(workload, 25, leaked_blocks=1, spent={**COUNTERS, "pins_evicted": 10}),
    )
    report = Report(runs, 64, 700, "a-model")
    shown = report.as_dict()
    assert not report.passed
    assert (shown["requests"], shown["finished"], shown["equal"], shown["leaked_blocks"]) == (6, 6, 6, 1)
    assert shown["preemptions_per_request"] == 4.0
    assert shown["work_ratio"] == runs[0].work_ratio
    assert [run["pool_percent"] for run in shown["runs"]] == [50, 25]
    assert Report(runs[1:], 64, 700, "a-model").as_dict()["work_ratio"] is None
