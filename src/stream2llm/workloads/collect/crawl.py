"""Traces of a crawl: for each question the pages of a site, appended as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from stream2llm.crawl.crawler import Crawler
from stream2llm.crawl.fetcher import Fetcher
from stream2llm.crawl.page import Latency, Limits, Page
from stream2llm.crawl.ranking import Bm25
from stream2llm.workloads.collect.prompt import OPENING, added, asked, cut, name_of, titled
from stream2llm.workloads.collect.questions import Question
from stream2llm.workloads.collect.run import NothingFound
from stream2llm.workloads.trace import Header, Kind, Operation, Query

WORKLOAD = "crawler"


@dataclass(frozen=True, slots=True)
class CrawlSettings:
    """How to crawl. `page_characters`: how much of a page's text is taken; `interval`: seconds between two requests."""

    limits: Limits = field(default_factory=Limits)
    page_characters: int = 6000
    interval: float = 0.5
    latency: Latency = field(default_factory=lambda: Latency(median=0.0))

    def header(self, description: str = "", license: str = "") -> Header:
        """The trace's header; it says what the times are made of."""
        limits = self.limits
        crawl = (
            f"a crawl for each question: {limits.pages} pages at most, {limits.depth} links deep, "
            f"{limits.concurrency} fetches in flight, {self.page_characters} characters of a page, "
            f"{self.interval:g} s between two requests to a host, links by BM25"
        )
        end = "" if limits.seconds is None else f"{limits.seconds:g} s at most"
        parts = (description, crawl, end, added("fetch", self.latency))
        return Header(WORKLOAD, "; ".join(filter(None, parts)), license)


class CrawlRetriever:
    """Crawls from a question's start page. `on_page` is told of each page."""

    def __init__(self, fetcher: Fetcher, settings: CrawlSettings, on_page: Callable[[Page], None]) -> None:
        self._fetcher = fetcher
        self._settings = settings
        self._on_page = on_page

    async def retrieve(self, question: Question) -> Query:
        """Raises `NothingFound` with the reasons when no page could be had."""
        crawler = Crawler(question.start, Bm25(question.text), self._fetcher, self._settings.limits)
        pages: list[Page] = []
        async with aclosing(crawler.pages()) as coming:
            async for page in coming:
                pages.append(page)
                self._on_page(page)
        if not pages:
            raise NothingFound("; ".join(f"{url}: {reason}" for url, reason in crawler.skipped))
        return query_of(question, pages, self._settings.page_characters)


def query_of(question: Question, pages: Sequence[Page], page_characters: int) -> Query:
    """The crawl as a query: the lead lasts until the first page is there, then each page is appended after its gap."""
    operations = []
    before = pages[0].at
    for page in pages:
        operations.append(Operation(Kind.APPEND, round(page.at - before, 6), (name_of(page.url),)))
        before = page.at
    return Query(
        id=question.id,
        question=asked(question.text),
        operations=tuple(operations),
        pieces={name_of(page.url): titled(page.title, cut(page.text, page_characters)) for page in pages},
        lead_s=round(pages[0].at, 6),
        opening=OPENING,
        source=question.start,
    )
