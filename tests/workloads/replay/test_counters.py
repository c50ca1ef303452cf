"""What of a server's statistics goes into a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream2llm.workloads.replay.counters import LEVELS, numbers, over_the_run

COUNTS = st.dictionaries(st.sampled_from(["steps", "opened", "tokens_computed"]), st.integers(0, 10**9))


def test_numbers_are_taken_and_those_of_the_host_tier_too():
    figures = {"policy": "srpf", "steps": 3, "plan_seconds": 0.5, "streams": {"ready": 1}, "host_tier": {"refused": 2}}
    assert numbers(figures) == {"steps": 3, "plan_seconds": 0.5, "refused": 2}


@given(COUNTS, COUNTS)
def test_what_was_counted_before_the_run_does_not_count(before, run):
    after = {name: before.get(name, 0) + count for name, count in run.items()}
    assert over_the_run(before, after) == run


def test_a_level_is_that_at_the_end():
    before, after = (dict.fromkeys(LEVELS, value) for value in (5.0, 3.0))
    assert over_the_run(before, after) == after


def test_nothing_is_known_of_a_server_that_has_gone():
    assert over_the_run({"steps": 3}, {}) == {}
