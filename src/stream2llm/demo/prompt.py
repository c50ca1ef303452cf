"""The demo's prompt: one user message, of crawled pages and a question at its end; pure."""

from __future__ import annotations

from dataclasses import dataclass

from stream2llm.crawl.page import Page

OPENING = "Here are pages of documentation."


@dataclass(frozen=True, slots=True)
class Prompt:
    """How pages become text. `page_characters`: how much of each page's text is used."""

    question: str
    page_characters: int = 700

    def piece(self, page: Page) -> str:
        """What a page adds to the prompt; cut between two words."""
        text = page.text
        if len(text) > self.page_characters:
            text = text[: self.page_characters].rsplit(maxsplit=1)[0] + " ..."
        return f"\n\n# {page.title}\n{text}"

    @property
    def closing(self) -> str:
        """What follows the last page."""
        return f"\n\nQuestion: {self.question}\nAnswer in one or two sentences."

    def whole(self, pages: list[Page]) -> str:
        """The whole user message."""
        return OPENING + "".join(map(self.piece, pages)) + self.closing
