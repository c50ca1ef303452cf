"""What `stream2llm collect` shows meanwhile, on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream2llm.cli.bars import Bars

if TYPE_CHECKING:
    from stream2llm.crawl.page import Page
    from stream2llm.workloads.collect.questions import Question
    from stream2llm.workloads.trace import Query

ASKED = "questions"
WIDTH = 70  # characters of what is asked just now


class CollectBars(Bars):
    """A bar for the questions with the one that is asked just now, and a line for each that nothing was found for."""

    def __enter__(self) -> CollectBars:
        return self

    def questions(self, total: int, done: int) -> None:
        """So many questions, of which so many were collected before."""
        self._asked = ""
        self._pages = 0
        self._done = done
        self.show(ASKED, done, total)

    def begins(self, question: Question) -> None:
        self._asked, self._pages = question.text, 0
        self._say(self._asked)

    def page(self, page: Page) -> None:
        """The question's crawl has one more page."""
        self._pages += 1
        self._say(f"{self._asked} (page {self._pages}: {page.title})")

    def ends(self, question: Question, query: Query | None, reason: str) -> None:
        if query is None:
            said = f"nothing found for {question.text!r}: {reason}"
            self._progress.console.print(said, markup=False, highlight=False, soft_wrap=True)
        self._done += 1
        self._say("")

    def _say(self, now: str) -> None:
        from rich.markup import escape

        described = escape(f"{ASKED} {now}"[:WIDTH])
        self._progress.update(self._tasks[ASKED], description=described)
        self.show(ASKED, self._done)
