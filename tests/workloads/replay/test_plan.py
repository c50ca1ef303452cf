"""When operations are due, and how much context is open: pure, on any query."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_traces import queries, query
from stream2llm.workloads.replay.plan import (
    Planned,
    WorkloadError,
    most_open_tokens,
    plan,
    require_appends,
    timeline,
)
from stream2llm.workloads.trace import Kind

ARRIVALS = st.floats(0, 100)


@given(queries())
def test_operations_are_due_after_the_lead_and_the_gaps_before_them(any_query):
    due = timeline(any_query)
    assert [item.number for item in due] == list(range(len(any_query.operations)))
    gaps = accumulate((operation.gap_s for operation in any_query.operations), initial=any_query.lead_s)
    assert [item.at_s for item in due] == list(gaps)[1:]
    assert due[-1].at_s == pytest.approx(any_query.retrieval_s)


@given(queries())
def test_each_has_the_context_after_it_and_what_it_appends(any_query):
    context = ()
    for due, operation in zip(timeline(any_query), any_query.operations, strict=True):
        if operation.op is Kind.REPLACE:
            assert due.added is None
            context = operation.pieces
        else:
            assert due.added == operation.pieces
            context += operation.pieces
        assert due.context == context
    assert due.tokens + any_query.question.length == any_query.tokens


@given(st.lists(st.tuples(queries(), ARRIVALS), min_size=1, max_size=5))
def test_most_open_tokens_is_the_maximum_over_the_moments_at_which_something_changes(items):
    planned = [Planned(any_query, arrival) for any_query, arrival in items]

    def open_at(moment):
        total = 0
        for item in planned:
            *before, last = timeline(item.query)
            if item.arrival_s + last.at_s > moment:
                total += next((due.tokens for due in reversed(before) if item.arrival_s + due.at_s <= moment), 0)
        return total

    moments = [item.arrival_s + due.at_s for item in planned for due in timeline(item.query)]
    assert most_open_tokens(planned) == max(map(open_at, moments))


def test_times_are_scaled_with_the_arrivals():
    (planned,) = plan([query("a", [1.0, 2.0], lead_s=0.5)], [3.0], time_scale=2.0)
    assert planned.arrival_s == 6.0
    assert [due.at_s for due in timeline(planned.query)] == [3.0, 7.0]


def test_two_queries_with_one_id_are_refused():
    with pytest.raises(WorkloadError, match="'a' twice"):
        plan([query("a", [1.0]), query("b", [1.0]), query("a", [1.0])], [1.0, 2.0, 3.0])


def test_a_replacement_is_refused_where_only_appending_is_possible():
    require_appends([query("a", [1.0, 1.0])])
    with pytest.raises(WorkloadError, match=r"'b': operations\[1\] replaces .*arm `stream`"):
        require_appends([query("a", [1.0]), query("b", [1.0, 1.0], replaces={1})])
