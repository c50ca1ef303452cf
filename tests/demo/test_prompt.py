"""The demo's prompt."""

from __future__ import annotations

from stream2llm.crawl.page import Page
from stream2llm.demo.prompt import OPENING, Prompt


def page(title: str, text: str) -> Page:
    return Page(f"http://site.example/{title}", title, text, depth=0, at=0.0)


def test_the_pieces_as_they_come_make_up_the_whole() -> None:
    prompt = Prompt("Why?")
    pages = [page("one", "First text."), page("two", "Second text.")]

    assert OPENING + "".join(map(prompt.piece, pages)) + prompt.closing == prompt.whole(pages)
    assert prompt.whole(pages).index("First") < prompt.whole(pages).index("Second") < prompt.whole(pages).index("Why?")


def test_a_long_page_is_cut_between_two_words() -> None:
    piece = Prompt("Why?", page_characters=12).piece(page("one", "alpha beta gamma delta"))
    assert piece == "\n\n# one\nalpha beta ..."
