"""What is sent for pieces: the same in every arm and every run, and other tokens for every other seed, query, piece."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_traces import queries, query
from stream2llm.workloads.replay.content import Contents, Vocabulary
from stream2llm.workloads.replay.plan import WorkloadError
from stream2llm.workloads.trace import Piece

WORDS = Vocabulary(100, 199)


def joined(*parts):
    return "".join(parts) if isinstance(parts[0], str) else [token for part in parts for token in part]


@given(queries(text=None))
def test_what_is_streamed_piece_by_piece_is_the_prompt_that_is_sent_in_the_end(any_query):
    streamed, whole = Contents(any_query, WORDS, 0), Contents(any_query, WORDS, 0)
    *before, last = any_query.context or ("",)
    if last:
        parts = [streamed.of([name]) for name in before]
        assert joined(streamed.opening, *parts, streamed.rest([last])) == whole.prompt(any_query.context)
    assert joined(streamed.context(any_query.context), streamed.question) == whole.prompt(any_query.context)


@given(queries())
def test_as_many_tokens_are_drawn_as_the_trace_says_all_of_the_vocabulary(any_query):
    prompt = Contents(any_query, WORDS, 0).prompt(any_query.context)
    assert len(prompt) == any_query.tokens
    assert all(WORDS.first <= token <= WORDS.last for token in prompt)


def test_seed_query_and_piece_each_give_other_tokens():
    one, other = query("a", [1.0, 1.0]), query("b", [1.0, 1.0])
    drawn = [
        Contents(one, WORDS, 0).of(["p0"]),
        Contents(one, WORDS, 0).of(["p1"]),
        Contents(one, WORDS, 1).of(["p0"]),
        Contents(other, WORDS, 0).of(["p0"]),
    ]
    assert len(set(map(tuple, drawn))) == len(drawn)


def test_the_same_seed_gives_the_same_tokens_on_every_machine():
    assert Contents(query("a", [1.0]), Vocabulary(), 0).of(["p0"])[:4] == [9682, 13918, 5633, 14426]


def test_text_and_token_counts_in_one_query_are_refused():
    mixed = msgspec.structs.replace(query("a", [1.0]), question=Piece(text="Why?"))
    with pytest.raises(WorkloadError, match="query 'a' has pieces with `text` and pieces with `tokens`"):
        Contents(mixed, WORDS, 0)


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (5, 5), (6, 5)])
def test_a_vocabulary_without_ids_is_refused(first, last):
    with pytest.raises(ValueError, match=f"{first}:{last}"):
        Vocabulary(first, last)


@given(st.integers(0, 10), queries(text=True))
def test_text_is_sent_as_it_is(seed, any_query):
    contents = Contents(any_query, WORDS, seed)
    assert contents.of(any_query.pieces) == "".join(piece.text for piece in any_query.pieces.values())
