"""What `stream2llm collect` shows meanwhile: a bar for each thing that is done, on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

    from stream2llm.crawl.page import Page
    from stream2llm.workloads.collect.questions import Question
    from stream2llm.workloads.trace import Query

ASKED = "questions"


class Bars:
    """Bars, and a line for each question that nothing was found for."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True, soft_wrap=True)
        self._progress = Progress(*bar, TextColumn("{task.fields[now]}", markup=False), console=console)
        self._tasks: dict[str, TaskID] = {}
        self._question = ""
        self._pages = 0

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int, now: str = "") -> None:
        """Move the bar of `what`; a new one if there is none."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, now="")
        self._progress.update(self._tasks[what], completed=done, total=total, now=now)

    def questions(self, total: int, done: int) -> None:
        """So many questions, of which so many were collected before."""
        self.show(ASKED, done, total)

    def begins(self, question: Question) -> None:
        self._question, self._pages = question.text, 0
        self._progress.update(self._tasks[ASKED], now=question.text)

    def page(self, page: Page) -> None:
        """The question's crawl has one more page."""
        self._pages += 1
        self._progress.update(self._tasks[ASKED], now=f"{self._question} (page {self._pages}: {page.title})")

    def ends(self, question: Question, query: Query | None, reason: str) -> None:
        if query is None:
            self._progress.console.print(
                f"nothing found for {question.text!r}: {reason}", markup=False, highlight=False
            )
        self._progress.update(self._tasks[ASKED], advance=1, now="")
