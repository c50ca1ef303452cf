"""How a trace is scaled, and which arrivals it gets."""

from __future__ import annotations

import pytest

from replay_traces import query
from stream2llm.workloads.arrivals import poisson
from stream2llm.workloads.events import Arm
from stream2llm.workloads.replay.load import Load, load_of_gaps, poisson_load, taken
from stream2llm.workloads.replay.plan import WorkloadError, timeline
from stream2llm.workloads.utilisation import Match

QUERIES = tuple(query(name, [1.0, 2.0], tokens=80, lead_s=1.0) for name in "abc")


def test_the_delay_multiplies_gaps_only_and_the_time_scale_everything():
    load = Load(workload="crawler", queries=QUERIES[:1], arrivals=(4.0,), qps=1, delay=10, time_scale=0.5)
    (planned,) = load.planned()
    assert planned.arrival_s == 2.0
    assert [due.at_s for due in timeline(planned.query)] == [0.5 * (1 + 10), 0.5 * (1 + 30)]


def test_tokens_are_divided():
    load = Load(workload="crawler", queries=QUERIES, arrivals=(1.0, 2.0, 3.0), qps=1, token_scale=8)
    assert [item.query.tokens for item in load.planned()] == [1 + 2 * 10 + 1] * 3


def test_poisson_arrivals_are_those_of_the_seed():
    load = poisson_load("crawler", QUERIES, 2.0, 7)
    assert load.arrivals == poisson(2.0, 7, 3)
    assert (load.qps, load.seed) == (2.0, 7)


def test_gaps_from_a_file_give_the_rate():
    load = load_of_gaps("crawler", QUERIES, [1.0, 0.5, 0.5, 9.0], 0)
    assert load.arrivals == (1.0, 1.5, 2.0)
    assert load.qps == 1.5


def test_too_few_gaps_are_refused():
    with pytest.raises(WorkloadError, match="2 gaps between arrivals for 3 queries"):
        load_of_gaps("crawler", QUERIES, [1.0, 1.0], 0)


def test_more_queries_than_there_are_and_none_are_refused():
    assert taken(QUERIES, 2) == QUERIES[:2]
    assert taken(QUERIES, None) == QUERIES
    with pytest.raises(WorkloadError, match="4 queries are asked for, and the trace has 3"):
        taken(QUERIES, 4)
    with pytest.raises(WorkloadError, match="no query"):
        taken((), None)


def test_the_header_tells_which_logs_may_be_compared():
    load = poisson_load("crawler", QUERIES, 4.0, 1).matched(Match(8, 1.23456, 0.8, 40))
    run = load.run(Arm.STREAM, model="tiny", max_tokens=1, policy="srpf")
    assert (run.workload, run.qps, run.time_scale, run.seed, run.queries) == ("crawler", 4.0, 1.23, 1, 3)
    assert run.settings == {"token_scale": 8, "max_tokens": 1}
