"""A best-first crawl of one site, whose page order does not depend on timing."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator

from stream2llm.crawl.fetcher import Fetcher
from stream2llm.crawl.frontier import Frontier
from stream2llm.crawl.html import Document, Link, normalized, site_of
from stream2llm.crawl.page import Limits, Page, Skip
from stream2llm.crawl.ranking import Candidate, Ranking

Flights = deque[tuple[Candidate, asyncio.Task[tuple[str, Document]]]]


class Crawler:
    """Crawls the site of `start` in the order of `ranking`; iterate over `pages()` once.

    The next page to fetch is chosen only when a page is handed out, so the order depends on the site alone, not on who
    answers first. `skipped` lists (address, reason) of what was left out. Raises `ValueError` if `start` is no address.
    """

    def __init__(self, start: str, ranking: Ranking, fetcher: Fetcher, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.skipped: list[tuple[str, str]] = []
        self._fetcher = fetcher
        self._site: str | None = None  # where the start page turns out to be
        self._frontier = Frontier(ranking)
        self._frontier.add([Candidate(normalized(start), "", 0)])
        self._taken: set[str] = set()
        self._lines: set[str] = set()

    async def pages(self) -> AsyncGenerator[Page, None]:
        """The pages, each as soon as it and all pages before it are here."""
        begin = time.monotonic()
        end = None if self.limits.seconds is None else asyncio.get_running_loop().time() + self.limits.seconds
        flights: Flights = deque()
        count = 0
        try:
            while count < self.limits.pages:
                self._start(flights, self.limits.pages - count)
                if not flights:
                    return
                candidate, task = flights.popleft()
                try:
                    async with asyncio.timeout_at(end):
                        url, document = await task
                    text = self._take(url, document, candidate)
                except Skip as reason:
                    self.skipped.append((candidate.url, str(reason)))
                    continue
                except TimeoutError:
                    self.skipped.append((candidate.url, f"the crawl's {self.limits.seconds:g} s were over"))
                    return
                count += 1
                yield Page(url, document.title, text, candidate.depth, time.monotonic() - begin)
        finally:
            for _, task in flights:
                task.cancel()
            await asyncio.gather(*(task for _, task in flights), return_exceptions=True)

    def _start(self, flights: Flights, wanted: int) -> None:
        while self._frontier and len(flights) < min(self.limits.concurrency, wanted):
            candidate = self._frontier.pop()
            flights.append((candidate, asyncio.create_task(self._fetcher.fetch(candidate.url, self._site))))

    def _take(self, url: str, document: Document, candidate: Candidate) -> str:
        """Follow a page's links; returns its lines that no earlier page had (navigation is read once)."""
        if candidate.depth == 0:
            self._site = site_of(url)
        if url in self._taken:
            raise Skip(f"leads to a page we have: {url}")
        self._taken.add(url)
        self._frontier.know(url)
        if candidate.depth < self.limits.depth:
            self._frontier.add(self._followed(document.links, candidate.depth + 1))
        lines = [line for line in document.lines if line not in self._lines]
        self._lines.update(lines)
        if not lines:
            raise Skip("no text of its own")
        return "\n".join(lines)

    def _followed(self, links: tuple[Link, ...], depth: int) -> list[Candidate]:
        """The links that lead to pages of the site, of those that are not known yet."""
        from courlan import is_not_crawlable

        return [
            Candidate(link.url, link.words, depth)
            for link in links
            if not self._frontier.knows(link.url) and site_of(link.url) == self._site and not is_not_crawlable(link.url)
        ]
