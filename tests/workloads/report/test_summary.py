"""All figures as one value, and as JSON."""

from __future__ import annotations

import json

import msgspec
import pytest

from event_logs import counted, measured
from stream2llm.workloads.comparison import compare
from stream2llm.workloads.events import Clock
from stream2llm.workloads.report.summary import REAL, SIMULATED, summarise


def test_a_load_has_a_line_for_each_variant_with_its_figures() -> None:
    runs = [
        measured([1.0, 2.0], "wait", seed=0),
        measured([0.5, 0.5], seed=0, counters=counted(tokens_computed=306, preempted=2)),
        measured([1.0, 2.0], "wait", seed=1),
        measured([0.25, 0.25], seed=1, counters=counted(tokens_computed=204, preempted=4)),
    ]
    (load,) = summarise(compare(runs)).loads
    wait, stream = load.lines
    assert (load.title, load.simulated, load.clock) == ("crawler, 4 queries/s, delays x1", True, SIMULATED)
    assert (stream.name, stream.seeds, stream.queries, stream.failed, stream.unfinished) == ("stream", (0, 1), 4, 0, 0)
    assert stream.ttft_seconds["P50"].median == 0.375
    assert (stream.times_sooner["P50"].low, stream.times_sooner["P50"].high) == (3.0, 6.0)
    assert wait.times_sooner["P99.9"].median == 1.0
    assert stream.work_ratio is not None
    assert stream.work_ratio.median == 1.25
    assert stream.counters["preempted"].median == 3
    assert stream.total_seconds is not None
    assert stream.total_ratio is not None
    assert stream.total_ratio.median == pytest.approx((3.75 / 5.5 + 4.0 / 5.5) / 2)


def test_real_and_virtual_runs_are_loads_of_their_own_and_say_so() -> None:
    summary = summarise(compare([measured([1.0], clock=Clock.REAL), measured([1.0])]))
    assert [load.clock for load in summary.loads] == [REAL, SIMULATED]


def test_as_json_it_has_a_format_and_every_figure() -> None:
    summary = summarise(compare([measured([1.0], "wait"), measured([0.5])]), ["a note"])
    found = json.loads(msgspec.json.encode(summary))
    assert (found["format"], found["version"], found["notes"]) == ("stream2llm-report", 1, ["a note"])
    stream = found["loads"][0]["lines"][1]
    assert stream["times_sooner"]["P95"] == {"median": 2.0, "low": 2.0, "high": 2.0, "seeds": 1}
    assert found["loads"][0]["simulated"] is True
