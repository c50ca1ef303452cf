"""Our figures beside the paper's."""

from __future__ import annotations

from typing import Any

import pytest

from event_logs import measured
from stream2llm.workloads.comparison import Row, compare
from stream2llm.workloads.report.beside import beside, published_preemptions

H200 = "2 x NVIDIA H200"


def rows(*, machine: str = H200, **stream: Any) -> tuple[Row, Row]:
    """Waiting, and a stream that is twice as soon, at the paper's load of 4 crawler queries per second."""
    fields = {"policy": "fcfs", "preemption": "cost", **stream}
    wait, streamed = compare([measured([0.8], "wait", machine=machine), measured([0.4], machine=machine, **fields)])
    return wait, streamed


def test_waiting_is_compared_in_seconds_and_streams_in_times_sooner() -> None:
    wait, stream = rows()
    first, second = beside(wait)[0], beside(stream)[0]
    assert (first.unit, first.ours, first.paper) == ("s", pytest.approx(0.8), 0.7521)
    assert (second.unit, second.ours, second.paper) == ("x", pytest.approx(2.0), pytest.approx(11.021))
    assert [b.share for b in beside(stream)] == [0.5, 0.95, 0.99, 0.999]


def test_the_deviation_is_a_share_of_the_papers_figure_and_marked_above_35_percent() -> None:
    wait, stream = rows()
    assert beside(wait)[0].deviation == pytest.approx(0.8 / 0.7521 - 1)
    assert not beside(wait)[0].far
    assert beside(stream)[0].deviation == pytest.approx(2 / 11.021 - 1)
    assert beside(stream)[0].far


def test_seconds_of_another_machine_are_not_compared_but_ratios_are() -> None:
    wait, stream = rows(machine="2 cores")
    assert beside(wait) == ()
    assert beside(stream)


def test_what_the_paper_has_not_run_stands_alone() -> None:
    assert beside(rows(policy="srpf")[1]) == ()
    assert published_preemptions(rows()[1]) is None


def test_preemptions_are_found_by_load_and_policy() -> None:
    (row,) = compare([measured([1.0], policy="lcas", preemption="recompute", delay=10.0)])
    found = published_preemptions(row)
    assert found is not None
    assert (found.recompute, found.swap) == (12564, 0)
