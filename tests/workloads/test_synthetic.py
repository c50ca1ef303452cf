"""Synthetic traces: the published marginals at any seed, and what is modelled beside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm.workloads.marginals import WORKLOADS, Marginal, Workload, published
from stream2llm.workloads.synthetic import POOL, queries
from stream2llm.workloads.trace import Kind

MEAN_AND_MEDIAN, P95 = 0.05, 0.10  # what is allowed


def must_be_close(values: Sequence[float], marginal: Marginal) -> None:
    at = quantiles(values, n=100, method="inclusive")
    assert fmean(values) == pytest.approx(marginal.mean, rel=MEAN_AND_MEDIAN)
    assert at[49] == pytest.approx(marginal.percentiles[50], rel=MEAN_AND_MEDIAN)
    if 95 in marginal.percentiles:
        assert at[94] == pytest.approx(marginal.percentiles[95], rel=P95)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("count", "seed"), [(4000, 0), (4000, 1), (4321, -7), (6000, 2**40)])
def test_means_medians_and_p95_are_the_published_ones(workload: Workload, count: int, seed: int) -> None:
    trace = list(queries(workload, count, seed))
    assert len(trace) == count
    marginals = published(workload)
    must_be_close([op.gap_s for query in trace for op in query.operations[1:]], marginals.gap_s)
    must_be_close([len(query.operations) for query in trace], marginals.chunks)
    must_be_close([query.tokens for query in trace], marginals.tokens)
    must_be_close([query.retrieval_s for query in trace], marginals.duration_s)


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
    for query in queries("crawler", 50, 0):
        assert {operation.op for operation in query.operations} == {Kind.APPEND}
        assert query.context == tuple(query.pieces)
        assert all(len(operation.pieces) == 1 for operation in query.operations)
        assert query.lead_s > 0


def test_a_pool_is_replaced_by_one_with_a_newcomer_and_as_long_after_a_long_first_search() -> None:
    trace = list(queries("anns", 300, 0))
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
    assert fmean(query.operations[0].gap_s for query in trace) == pytest.approx(3.9, rel=0.05)


@pytest.mark.parametrize(
    ("workload", "count", "says"),
    [("web", 1, "`workload` is 'web'; there are crawler, anns"), ("anns", 0, "`count` is 0; it must be 1 or more")],
)
def test_what_cannot_be_generated_is_refused_at_once(workload: Workload, count: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        queries(workload, count, 0)
