"""How content is laid out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream2llm.crawl.page import Latency
from stream2llm.workloads.collect.prompt import added, cut, name_of


@given(st.text("ab \n", max_size=60), st.integers(min_value=5, max_value=50))
def test_a_text_is_cut_between_two_words(text: str, characters: int) -> None:
    short = cut(text, characters)

    if len(text) <= characters:
        assert short == text
        return
    kept = short.removesuffix(" ...")
    assert len(short) <= characters
    assert short.endswith(" ...")
    assert text.startswith(kept)
    words = text[: characters - 4].split()
    if len(words) > 1:  # there is a place between two words
        assert text[len(kept)].isspace()


def test_a_long_word_is_cut_where_it_must_be() -> None:
    assert cut("x" * 20, 10) == "xxxxxx ..."
    assert cut("one two three", 11) == "one two ..."


def test_a_name_is_the_address_or_as_much_as_fits_and_stays_another_ones() -> None:
    assert name_of("http://x.example/a") == "http://x.example/a"
    long, other = name_of("http://x.example/" + "a" * 600), name_of("http://x.example/" + "a" * 601)
    assert len(long) == len(other) == 500
    assert long != other


def test_added_latency_is_said_and_only_where_there_is_some() -> None:
    assert added("fetch", Latency(seed=3, median=0.7)) == (
        "to each fetch a latency was added: lognormal, median 0.7 s, sigma 0.9, seed 3"
    )
    assert added("fetch", Latency(median=0.0)) == ""
