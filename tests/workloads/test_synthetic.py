"""Synthetic traces: the published marginals at any seed, and what is modelled beside them."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm.workloads.characteristics import QUANTITIES, characterise, deviations
from stream2llm.workloads.marginals import WORKLOADS, Workload, published
from stream2llm.workloads.synthetic import POOL, queries
from stream2llm.workloads.trace import Kind

MEAN_AND_MEDIAN, P95 = 0.05, 0.10  # how far each may be from the published one


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("count", "seed"), [(4000, 0), (4000, 1), (4321, -7), (6000, 2**40)])
def test_means_medians_and_p95_are_the_published_ones(workload: Workload, count: int, seed: int) -> None:
    found = characterise(workload, queries(workload, count, seed))
    assert len(found.values["chunks"]) == count
    for quantity in QUANTITIES:
        off = deviations(quantity, found.summary(quantity), workload)
        assert abs(off["mean"]) <= MEAN_AND_MEDIAN, quantity
        assert abs(off["p50"]) <= MEAN_AND_MEDIAN, quantity
        assert abs(off.get("p95", 0.0)) <= P95, quantity
        assert ("p95" in off) == (quantity != "chunks")  # of which none is published


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(WORKLOADS), st.integers(1, 60), st.integers())
def test_a_trace_is_whole_at_any_length_and_the_same_for_its_seed(workload: Workload, count: int, seed: int) -> None:
    trace = list(queries(workload, count, seed))
    assert len({query.id for query in trace}) == count
    assert trace == list(queries(workload, count, seed))
    for query in trace:
        assert query.lead_s + query.operations[0].gap_s > 0
        assert all(operation.gap_s > 0 for operation in query.operations[1:])
        assert all(piece.length >= 1 for piece in query.pieces.values())
        assert query.opening.length > 0 < query.question.length


def test_seeds_differ() -> None:
    assert list(queries("crawler", 5, 0)) != list(queries("crawler", 5, 1))


def test_a_crawl_appends_one_page_after_another_behind_a_search() -> None:
    trace = list(queries("crawler", 500, 0))
    for query in trace:
        assert {operation.op for operation in query.operations} == {Kind.APPEND}
        assert query.context == tuple(query.pieces)
        assert all(len(operation.pieces) == 1 for operation in query.operations)
    assert fmean(len(query.operations) for query in trace) == pytest.approx(6.86, rel=0.02)
    assert fmean(query.lead_s for query in trace) == pytest.approx(2.0, rel=0.1)


def test_each_pool_has_one_newcomer_and_they_are_as_long_as_the_last_which_comes_late() -> None:
    trace = list(queries("anns", 500, 0))
    kept = []
    for query in trace:
        assert {operation.op for operation in query.operations} == {Kind.REPLACE}
        assert query.lead_s == 0
        for before, after in pairwise(query.contexts()):
            assert len(before) == len(set(before)) == len(after) == POOL
            (newcomer,) = set(after) - set(before)
            rank = after.index(newcomer)
            assert after == (*before[:rank], newcomer, *before[rank:-1])
            kept.append(rank)
    assert fmean(kept) == pytest.approx((POOL - 1) / 2, rel=0.1)
    lengths = [sum(q.pieces[name].length for name in pool) for q in trace for pool in q.contexts()]
    assert fmean(lengths) == pytest.approx(published("anns").tokens.mean, rel=0.1)
    assert fmean(query.operations[-1].gap_s for query in trace) == pytest.approx(3.9, rel=0.05)
    assert fmean(query.operations[0].gap_s for query in trace if len(query.operations) > 1) < 0.3


@pytest.mark.parametrize(
    ("workload", "count", "says"),
    [("web", 1, "`workload` is 'web'; there are crawler, anns"), ("anns", 0, "`count` is 0; it must be 1 or more")],
)
def test_what_cannot_be_generated_is_refused_at_once(workload: Workload, count: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        queries(workload, count, 0)
