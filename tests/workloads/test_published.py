"""The paper's figures, found by the run that they belong to."""

from __future__ import annotations

import pytest

from event_logs import run
from stream2llm.workloads import published
from stream2llm.workloads.events import Arm


def test_seconds_are_given_or_follow_from_the_ratio_to_waiting() -> None:
    waiting = published.find("crawler", 0.5, 1, Arm.WAIT)
    fcfs = published.find("crawler", 0.5, 1, Arm.STREAM, "fcfs", "cost")
    assert waiting is not None
    assert fcfs is not None
    assert waiting.seconds == {0.5: 0.1164, 0.95: 0.8366, 0.99: 1.7688, 0.999: 4.3583}
    assert set(waiting.ratio.values()) == {1.0}
    assert fcfs.ratio[0.5] == pytest.approx(3.891)
    assert fcfs.seconds[0.5] == pytest.approx(0.1164 / 3.891)


def test_a_run_finds_its_row_and_waiting_finds_it_under_any_policy() -> None:
    default = published.matching(run(policy="default", preemption="cost"))
    assert default is not None
    assert (default.seconds[0.5], default.ratio[0.95]) == (0.0722, pytest.approx(4.3418 / 1.9569))
    assert published.matching(run("wait", policy="fcfs", preemption="swap")) is not None
    assert published.matching(run("warm")) is None
    assert published.matching(run(policy="srpf", preemption="cost")) is None
    assert published.matching(run(policy="fcfs", preemption="cost", qps=3.0)) is None


def test_a_percentile_that_was_not_published_is_missing() -> None:
    row = published.find("anns", 2, 30, Arm.STREAM, "fcfs", "recompute")
    assert row is not None
    assert set(row.seconds) == set(row.ratio) == {0.5, 0.95, 0.99}


def test_every_row_is_read_and_none_stands_twice() -> None:
    keys = [(r.workload, r.qps, r.delay, r.arm, r.policy, r.preemption) for r in published.ttft()]
    assert len(keys) == len(set(keys)) == 58
    assert len(published.preemptions()) == 12
    assert all(row.total == row.recompute + row.swap for row in published.preemptions())
