"""What an event log says, on logs whose figures are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_logs import counted, events, measured, run, write
from stream2llm.workloads.events import Event, What
from stream2llm.workloads.lines import FormatError
from stream2llm.workloads.measured import Times, measure, percentile_name, quantile, read

FIGURES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


def test_ttft_runs_from_the_last_piece_and_completion_from_the_arrival() -> None:
    times = measured([0.25]).queries[0]
    assert times == Times("q0", arrival=0.0, last=2.0, first=2.25, end=2.75, operations=2, tokens=100, generated=3)
    assert (times.ttft, times.completion) == (0.25, 2.75)


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    found = measured([4.0, 1.0, 3.0, 2.0])
    assert found.ttft == (1.0, 2.0, 3.0, 4.0)
    assert [found.quantile(share) for share in (0, 0.5, 0.9, 1)] == pytest.approx([1.0, 2.5, 3.7, 4.0])


def test_throughput_is_over_the_time_from_the_first_arrival_to_the_last_end() -> None:
    found = measured([0.5] * 4)  # arrivals 0 to 3 s, the last ends 2 + 0.5 + 0.5 s after its own
    assert found.total_seconds == 6.0
    assert found.throughput == pytest.approx(4 / 6)


def test_the_log_need_not_begin_at_zero_nor_be_in_order() -> None:
    later = [Event(event.t + 100, event.query, event.what, tokens=event.tokens) for event in events([0.5] * 4)]
    assert measure(run(), reversed(later)).throughput == pytest.approx(4 / 6)


def test_a_query_that_failed_counts_for_nothing_but_as_failed() -> None:
    found = measure(run(), [*events([1.0, 2.0]), Event(9.0, "q1", What.ERROR, detail="HTTP 503")])
    assert (found.ttft, found.failed, len(found.completion)) == ((1.0,), 1, 1)
    assert found.queries[1].error == "HTTP 503"


def test_a_failure_without_a_word_is_a_failure() -> None:
    assert measure(run(), [Event(1.0, "q", What.ERROR)]).failed == 1


def test_nothing_measured_is_no_quantile_and_no_throughput() -> None:
    found = measure(run(), [Event(0.0, "q0", What.ARRIVED)])
    assert (found.ttft, found.throughput, found.work_ratio) == ((), 0.0, None)
    with pytest.raises(ValueError, match="one value at least"):
        found.quantile(0.5)


def test_the_work_ratio_is_tokens_computed_over_prompts_and_answers() -> None:
    found = measured([1.0, 1.0], counters=counted(tokens_computed=306))
    assert found.tokens_needed == 2 * (100 + 2)  # of three generated tokens the last is not computed with
    assert found.work_ratio == 1.5


def test_the_net_work_ratio_counts_what_was_replaced_as_needed() -> None:
    found = measured([1.0, 1.0], counters=counted(tokens_computed=612, tokens_invalidated=204))
    assert (found.work_ratio, found.net_work_ratio) == (3.0, 1.5)
    assert measured([1.0], counters=counted(tokens_computed=612, tokens_invalidated=0)).net_work_ratio is None


def test_without_prompt_lengths_or_counters_there_is_no_work_ratio() -> None:
    unknown = [Event(event.t, event.query, event.what) for event in events([1.0])]
    assert measure(run(), [*unknown, counted(tokens_computed=10)]).work_ratio is None
    assert measured([1.0]).work_ratio is None


def test_counters_are_kept_for_the_run_and_by_query() -> None:
    found = measured([1.0], counters=counted(by_query={"invalidated_tokens": {"q0": 7}}, preempted=3))
    assert found.counters["preempted"] == 3
    assert found.by_query["invalidated_tokens"]["q0"] == 7


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_log_is_read_back(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, run(), [*events([0.5] * 4), counted(steps=9)])
    found = read(path)
    assert (found.ttft, found.counters, found.cut_off, found.path) == ((0.5,) * 4, {"steps": 9}, "", path)


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_log_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, run(), list(events([0.5] * 400)))
    path.write_bytes(path.read_bytes()[:-60])
    found = read(path)
    assert str(path) in found.cut_off
    assert 100 < len(found.ttft) <= 400


def test_what_is_no_event_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"format": "stream2llm-trace", "version": 1, "workload": "x"}\n')
    with pytest.raises(FormatError, match="not a stream2llm-events file"):
        read(tmp_path / "a.jsonl")


def test_a_first_token_before_the_last_piece_is_refused_with_the_query(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", run(), list(events([1.0, -1.0])))
    with pytest.raises(FormatError, match=r"log\.jsonl: query 'q1' has its first token 1 s before its last piece"):
        read(path)


@given(FIGURES, st.floats(0, 1))
def test_a_quantile_lies_within_the_values_whatever_their_order(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert min(values) <= found <= max(values)
    assert found == quantile(sorted(values, reverse=True), share)


@given(FIGURES, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_never_fall_as_the_share_grows(values: list[float], a: float, b: float) -> None:
    low, high = quantile(values, min(a, b)), quantile(values, max(a, b))
    assert low <= high or low == pytest.approx(high)


@given(FIGURES)
def test_the_share_of_values_up_to_a_quantile_is_the_share(values: list[float]) -> None:
    ranks = len(values) - 1
    for rank, value in enumerate(sorted(values)):
        assert quantile(values, rank / ranks if ranks else 0.5) == pytest.approx(value)


def test_percentiles_are_called_as_usual() -> None:
    assert [percentile_name(share) for share in (0.5, 0.95, 0.99, 0.999)] == ["P50", "P95", "P99", "P99.9"]
