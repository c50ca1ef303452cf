"""A profile prices prefill, steps and copies, and refuses to speak of what it is not a profile of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costs_profiles import SUBJECT, profile
from stream2llm.costs import ProfileMismatchError, SourceKind, paper_profile


def test_prefill_grows_with_new_tokens_and_with_context() -> None:
    assert profile().prefill_seconds(100) == pytest.approx(0.1)
    assert profile().prefill_seconds(100, 1000) == pytest.approx(0.1 + 100 * 1000 * 1e-6)


def test_nothing_costs_nothing() -> None:
    assert profile().prefill_seconds(0, 4000) == 0.0
    assert profile().copy_out_seconds(0) == 0.0
    assert profile().copy_in_seconds(0) == 0.0
    assert profile().step_seconds([]) == 0.0


def test_copies_have_their_own_price_each_way() -> None:
    assert profile().copy_out_seconds(500) == pytest.approx(0.05)
    assert profile().copy_in_seconds(500) == pytest.approx(0.1)


def test_a_step_shares_the_pass_over_the_weights_and_attends_separately() -> None:
    chunks = [(100, 1000), (100, 500), (1, 2000), (1, 4000)]
    attention = 1e-6 * (100 * 1000 + 100 * 500 + 2000 + 4000)
    assert profile().step_seconds(chunks) == pytest.approx(0.202 + attention)


def test_a_step_of_one_chunk_is_a_prefill() -> None:
    assert profile().step_seconds([(300, 700)]) == pytest.approx(profile().prefill_seconds(300, 700))


def test_it_says_where_it_extrapolates() -> None:
    assert profile().covers_prefill(1000, 4000)
    assert not profile().covers_prefill(1001)
    assert not profile().covers_prefill(10, 4001)
    assert profile().covers_copy(1000)
    assert not profile().covers_copy(1001)


def test_it_serves_its_own_subject() -> None:
    assert profile().require(SUBJECT) == profile()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hardware", "8 x Other GPU"),
        ("model", "org/other"),
        ("engine", "vllm 0.33.0"),
        ("dtype", "float32"),
        ("block_size", 128),
    ],
)
def test_another_subject_is_refused_unless_forced(field: str, value: str | int) -> None:
    other = replace(SUBJECT, **{field: value})
    with pytest.raises(ProfileMismatchError, match=f"{field} .* instead of {value!r}.*stream2llm profile"):
        profile().require(other)
    assert profile().require(other, force=True) == profile()


def test_an_estimate_holds_for_every_engine_but_not_for_every_machine() -> None:
    estimate = profile(SourceKind.ESTIMATE)
    assert estimate.require(replace(SUBJECT, engine="vllm 1.0", block_size=128)) == estimate
    with pytest.raises(ProfileMismatchError, match="hardware"):
        estimate.require(replace(SUBJECT, hardware="4 x Test GPU"))


def test_efficient_tokens_are_the_fewest_that_cost_hardly_more_each_than_a_full_step() -> None:
    paper = paper_profile("2xh200", 8192)
    tokens = paper.efficient_tokens(0.1)

    def each(count: int) -> float:
        return paper.prefill_seconds(count) / count

    assert each(tokens) <= 1.1 * each(8192) < each(tokens - 1)
    assert paper.efficient_tokens(0.5) < tokens < paper.efficient_tokens(0.01) < 8192
