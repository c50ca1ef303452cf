from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.stream import StreamRefusedError, StreamState, longest_common_prefix

TOKENS = st.lists(st.integers(0, 3), max_size=400)


def naive_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(st.integers(0, 3), max_size=3000), TOKENS, TOKENS)
def test_the_longest_common_prefix_is_exact(head: list[int], a: list[int], b: list[int]) -> None:
    assert longest_common_prefix(head + a, head + b) == naive_prefix(head + a, head + b)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 191, 192, 193, 5000])
@pytest.mark.parametrize("longer", [0, 1, 64])
def test_a_prefix_of_a_sequence_is_common_as_a_whole(length: int, longer: int) -> None:
    tokens = list(range(length + longer))
    assert longest_common_prefix(tokens[:length], tokens) == length


def test_an_empty_stream_has_version_0_and_one_with_content_version_1() -> None:
    assert StreamState.opened("s", [], ttl=10, now=100).version == 0
    opened = StreamState.opened("s", [1, 2], ttl=10, now=100)
    assert (opened.version, opened.expires_at) == (1, 110)


@given(TOKENS, st.data())
def test_a_write_names_what_it_keeps_and_tells_what_it_lost(tokens: list[int], data: st.DataObject) -> None:
    from dataclasses import replace

    keep = data.draw(st.integers(0, len(tokens)))
    computed = data.draw(st.integers(0, len(tokens)))
    tail = data.draw(TOKENS)
    old = replace(StreamState.opened("s", tokens, ttl=10, now=0), computed=computed)
    new = old.written(0, old.version, writes=2, keep=keep, tail=tail, now=5)

    assert list(new.tokens) == tokens[:keep] + tail
    assert new.lcp == naive_prefix(tokens, tokens[:keep] + tail)
    assert new.computed + new.invalidated == computed
    assert new.computed == min(computed, new.lcp)
    assert (new.version, new.expires_at) == (old.version + 2, 15)
    assert list(old.tokens) == tokens


def test_a_write_on_another_version_is_a_conflict_that_tells_the_current_one() -> None:
    state = StreamState.opened("s", [1, 2, 3], ttl=10, now=0)
    with pytest.raises(StreamRefusedError, match="is at version 1, not 3") as refusal:
        state.written(0, 3, writes=1, keep=0, tail=[], now=1)
    assert (refusal.value.code, refusal.value.version) == ("conflict", 1)


def test_a_write_to_a_stream_that_had_the_id_before_is_a_conflict() -> None:
    state = StreamState.opened("s", [1, 2, 3], ttl=10, now=7)
    with pytest.raises(StreamRefusedError) as refusal:
        state.written(6, 1, writes=1, keep=0, tail=[], now=8)
    assert refusal.value.code == "conflict"


def test_strings_have_a_longest_common_prefix_too() -> None:
    assert longest_common_prefix("x" * 500 + "ab", "x" * 500 + "ac") == 501


def test_a_finished_stream_takes_no_more_writes() -> None:
    state = StreamState.opened("s", [1, 2, 3], ttl=10, now=0).finish()
    assert state.tokens == ()
    with pytest.raises(StreamRefusedError) as refusal:
        state.written(0, 1, writes=1, keep=0, tail=[], now=1)
    assert refusal.value.code == "finished"


@pytest.mark.parametrize(("keep", "writes"), [(4, 1), (-1, 1), (0, 0)])
def test_a_write_that_makes_no_sense_is_an_error(keep: int, writes: int) -> None:
    with pytest.raises(ValueError, match="keep"):
        StreamState.opened("s", [1, 2, 3], ttl=10, now=0).written(0, 1, writes, keep, [], now=1)
