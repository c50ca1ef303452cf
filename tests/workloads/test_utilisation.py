"""The same load and the same ratio of retrieval to prefill on a smaller machine."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_traces import queries, query
from stream2llm.costs import paper_profile
from stream2llm.workloads.synthetic import queries as synthetic
from stream2llm.workloads.trace import Piece
from stream2llm.workloads.utilisation import TOKEN_SCALES, match, probes, shrunk

CRAWLER = list(synthetic("crawler", 60, 0))
H200 = paper_profile("2xh200", 2048).prefill_seconds


def slow(tokens_per_s):
    return lambda tokens: tokens / tokens_per_s


@given(st.floats(100, 1e6), st.sampled_from([1, 4, 16]), st.floats(0.5, 8))
def test_load_and_ratio_are_those_of_the_large_machine(rate, token_scale, qps):
    found = match(CRAWLER, qps, H200, slow(rate), token_scale=token_scale)
    here = [shrunk(each, token_scale).scaled(found.time_scale) for each in CRAWLER]
    prefill_s = fmean(each.tokens / rate for each in here)
    assert qps / found.time_scale * prefill_s == pytest.approx(found.load, rel=0.02)
    assert fmean(each.retrieval_s for each in here) / prefill_s == pytest.approx(found.retrieval_ratio, rel=0.02)
    assert found.load == pytest.approx(qps * fmean(H200(each.tokens) for each in CRAWLER))


def test_on_the_same_machine_nothing_is_scaled():
    found = match(CRAWLER, 4, H200, H200)
    assert (found.token_scale, found.time_scale) == (1, 1)


@given(st.floats(100, 1e5))
def test_the_token_scale_is_the_one_with_the_time_scale_nearest_to_1(rate):
    found = match(CRAWLER, 4, H200, slow(rate))
    if found.token_scale in TOKEN_SCALES[1:-1]:
        assert 0.7 < found.time_scale < 1.42


def test_prompts_must_fit_the_server():
    longest = max(each.tokens for each in CRAWLER)
    found = match(CRAWLER, 4, H200, H200, longest=longest // 3)
    assert found.token_scale == 4
    with pytest.raises(ValueError, match=f"has {longest} tokens, and the server takes 100: scale the tokens by"):
        match(CRAWLER, 4, H200, H200, longest=100, token_scale=2)


def test_nothing_cannot_be_matched():
    with pytest.raises(ValueError, match="no queries"):
        match([], 4, H200, H200)


@given(queries(), st.sampled_from([1, 2, 3.5, 1000]))
def test_every_piece_with_tokens_keeps_one_at_least(any_query, factor):
    small = shrunk(any_query, factor)
    assert small.operations == any_query.operations
    for name, piece in any_query.pieces.items():
        assert small.pieces[name].tokens == (max(1, round(piece.tokens / factor)) if piece.tokens else 0)


def test_of_a_text_the_front_is_kept():
    small = shrunk(query("a", [1.0], text="x" * 97), 10)
    assert small.pieces["p0"] == Piece(text="0: xxxxxxx")


def test_a_factor_of_0_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        shrunk(query("a", [1.0]), 0)


def test_probes_double_up_to_the_longest_prompt_that_the_server_takes():
    assert probes([query("a", [1.0], tokens=300)]) == (32, 64, 128, 256, 313)
    assert probes([query("a", [1.0], tokens=300)], longest=200) == (32, 64, 128, 200)
    assert probes([query("a", [1.0], tokens=1)]) == (32, 64)
