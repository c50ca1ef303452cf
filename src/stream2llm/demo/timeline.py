"""What the demo shows while it runs: a live timeline in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stream2llm.crawl.page import Page


class Timeline:
    """The view of one arm: a line per page and for the first token; in a terminal, bars that fill under them."""

    def __init__(self, console: Console, pages: int, streams: bool) -> None:
        self._console = console
        self._streams = streams
        self._begin = time.monotonic()
        self._count = 0
        self._computed = self._handed = 0
        self._answering = False
        self._progress = Progress(
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._pages = self._add("pages", pages)
        self._tokens = self._add("prefill", None)

    @contextmanager
    def shown(self) -> Iterator[Timeline]:
        """Show it for as long as the arm runs."""
        self._begin = time.monotonic()
        with self._progress:
            yield self

    def page(self, page: Page) -> None:
        self._count += 1
        prefilled = f"   {self._computed:>5} of {self._handed} tokens prefilled" if self._streams else ""
        self._line(f"page {self._count:>2}  {page.title:<44.44}{prefilled}")
        self._progress.update(self._pages, completed=self._count, state=f"{self._count} pages")

    def tokens(self, computed: int, handed: int) -> None:
        self._computed, self._handed = computed, handed
        self._progress.update(self._tokens, completed=computed, total=handed, state=f"{computed} of {handed} tokens")

    def piece(self, text: str) -> None:
        if not self._answering:
            self._line("first token")
            self._progress.update(self._tokens, state="answering")
        self._answering = True

    def _add(self, name: str, total: int | None) -> TaskID:
        return self._progress.add_task(name, total=total, state="")

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self._begin
        self._progress.console.print(f"  {seconds:6.2f} s  {text}", highlight=False, markup=False)
