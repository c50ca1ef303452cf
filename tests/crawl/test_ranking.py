"""The order in which links are followed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream2llm.crawl.frontier import Frontier
from stream2llm.crawl.ranking import Bm25, Candidate, Ranking, WordOverlap

URLS = st.lists(st.text("abc/", min_size=1, max_size=6).map(lambda path: f"http://x.example/{path}"), max_size=12)


def drained(frontier: Frontier) -> list[str]:
    taken = []
    while frontier:
        taken.append(frontier.pop().url)
    return taken


def order(ranking: Ranking, *candidates: Candidate) -> list[str]:
    frontier = Frontier(ranking)
    frontier.add(candidates)
    return [url.removeprefix("http://x.example") for url in drained(frontier)]


def link(path: str, words: str = "", depth: int = 1) -> Candidate:
    return Candidate(f"http://x.example{path}", words, depth)


def test_bm25_counts_rare_words_more_and_does_without_stop_words() -> None:
    ranking = Bm25("What is the email parser?")
    links = [link("/the-what-is"), link("/email/a"), link("/email/b"), link("/email/c"), link("/parser")]

    assert order(ranking, *links) == ["/parser", "/email/a", "/email/b", "/email/c", "/the-what-is"]


def test_bm25_reads_the_words_of_the_link_and_of_its_path() -> None:
    ranking = Bm25("base64 encoding")

    assert order(ranking, link("/x"), link("/y", "Base64 data"), link("/z_encoding%20base64.html")) == [
        "/z_encoding%20base64.html",
        "/y",
        "/x",
    ]


def test_without_a_word_in_common_bm25_goes_to_nearer_pages_first() -> None:
    links = [link("/far", depth=2), link("/near"), link("/near2")]
    for question in ("zebra", "the", ""):
        assert order(Bm25(question), *links) == [
            "/near",
            "/near2",
            "/far",
        ]


def test_word_overlap_goes_to_nearer_pages_first() -> None:
    links = [link("/email", depth=2), link("/x"), link("/email2", "email")]
    assert order(WordOverlap("email"), *links) == ["/email2", "/x", "/email"]


@given(URLS, URLS, st.booleans())
def test_each_address_is_given_once_whenever_it_comes(first: list[str], second: list[str], bm25: bool) -> None:
    frontier = Frontier(Bm25("a b") if bm25 else WordOverlap("abc"))
    frontier.add(Candidate(url, "", 1) for url in first)
    taken = [frontier.pop().url] if frontier else []
    frontier.add(Candidate(url, "", 1) for url in second)

    taken += drained(frontier)
    assert sorted(taken) == sorted({*first, *second})
