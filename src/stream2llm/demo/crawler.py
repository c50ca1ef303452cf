"""An asynchronous, polite, best-first crawler of one site, whose page order does not depend on timing."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from stream2llm.demo.html import Document, Link, normalized, read_document, site_of
from stream2llm.demo.robots import Robots

USER_AGENT = "stream2llm-demo"
MEDIAN_GAP = 0.7  # seconds between two pages of a real crawl; mean 1.05, 95 % below 3.1
_HTML = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True, slots=True)
class Page:
    """A crawled page. `text` is its main text without lines that earlier pages had; `at`: seconds since the start."""

    url: str
    title: str
    text: str
    depth: int
    at: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a crawl: pages, links followed in a row, fetches in flight, bytes a page, seconds."""

    pages: int = 20
    depth: int = 2
    concurrency: int = 2
    page_bytes: int = 2_000_000
    timeout: float = 15.0
    interval: float = 0.0  # least time between two requests


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds added to a fetch: lognormal as in a real crawl, the same for the same path and seed."""

    seed: int = 0
    median: float = MEDIAN_GAP
    sigma: float = 0.9

    def __call__(self, url: str) -> float:
        if self.median <= 0:
            return 0.0
        return random.Random(f"{self.seed} {urlsplit(url).path}").lognormvariate(math.log(self.median), self.sigma)


class Skip(Exception):
    """A page that is left out; the message says why."""


@dataclass(order=True, slots=True)
class _Target:
    depth: int
    irrelevance: int
    number: int
    url: str = field(compare=False)


def terms_of(text: str) -> frozenset[str]:
    """The words of three letters or more, in lower case."""
    return frozenset(re.findall(r"[^\W\d_]{3,}", text.lower()))


class Crawler:
    """Crawls the site of `start` for pages that may answer `question`; iterate over `pages()` once.

    Nearer pages come first, and among those the ones whose link has more words of the question. The next page to
    fetch is chosen only when a page is handed out, so the order depends on the site alone, not on who answers first.
    `skipped` lists (address, reason) of what was left out.
    """

    def __init__(
        self,
        start: str,
        question: str = "",
        limits: Limits | None = None,
        latency: Callable[[str], float] = lambda url: 0.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.skipped: list[tuple[str, str]] = []
        self._site = site_of(start)
        self._terms = terms_of(question)
        self._latency = latency
        self._transport = transport
        self._frontier = [_Target(0, 0, 0, normalized(start))]
        self._known = {self._frontier[0].url}
        self._taken: set[str] = set()
        self._lines: set[str] = set()
        self._turn = asyncio.Lock()
        self._next_request = 0.0

    async def pages(self) -> AsyncIterator[Page]:
        """The pages, each as soon as it and all pages before it are here."""
        begin = time.monotonic()
        flights: deque[tuple[_Target, asyncio.Task[tuple[str, Document]]]] = deque()
        count = 0
        async with self._client() as client:
            robots = Robots(client, USER_AGENT)
            try:
                while count < self.limits.pages:
                    while self._frontier and len(flights) < min(self.limits.concurrency, self.limits.pages - count):
                        target = heapq.heappop(self._frontier)
                        flights.append((target, asyncio.create_task(self._fetch(client, robots, target))))
                    if not flights:
                        return
                    target, task = flights[0]
                    try:
                        url, document = await task
                        text = self._take(url, document, target)
                    except Skip as reason:
                        self.skipped.append((target.url, str(reason)))
                        continue
                    finally:
                        flights.popleft()
                    count += 1
                    yield Page(url, document.title, text, target.depth, time.monotonic() - begin)
            finally:
                for _, task in flights:
                    task.cancel()
                await asyncio.gather(*(task for _, task in flights), return_exceptions=True)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(
            headers={"User-Agent": USER_AGENT, "Accept": "text/html"},
            timeout=self.limits.timeout,
            transport=self._transport,
        ) as client:
            yield client

    async def _fetch(self, client: httpx.AsyncClient, robots: Robots, target: _Target) -> tuple[str, Document]:
        """The page's final address and content. Raises `Skip` with the reason when there is none for us."""
        if not await robots.allows(target.url):
            raise Skip("robots.txt forbids it")
        await self._wait_turn(await robots.delay(target.url))
        await asyncio.sleep(self._latency(target.url))
        try:
            async with asyncio.timeout(self.limits.timeout):
                url, html = await self._download(client, robots, target)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: not an address
            raise Skip(f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise Skip(f"took more than {self.limits.timeout:g} s") from error
        return url, await asyncio.to_thread(read_document, html, url)

    async def _download(self, client: httpx.AsyncClient, robots: Robots, target: _Target) -> tuple[str, bytes]:
        url = target.url
        for _ in range(10):
            async with client.stream("GET", url) as response:
                if response.next_request is not None:
                    url = await self._redirected(str(response.next_request.url), robots, target)
                    continue
                if response.status_code != 200:
                    raise Skip(f"HTTP {response.status_code}")
                kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
                if kind not in _HTML:
                    raise Skip(f"not HTML but {kind or 'of unknown type'}")
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > self.limits.page_bytes:
                        raise Skip(f"larger than {self.limits.page_bytes} bytes")
                return url, bytes(body)
        raise Skip("more than 10 redirects")

    async def _redirected(self, url: str, robots: Robots, target: _Target) -> str:
        url = normalized(url)
        if target.depth == 0:
            self._site = site_of(url)  # the site is where the start page turns out to be
        if site_of(url) != self._site:
            raise Skip(f"leads to another site: {url}")
        if not await robots.allows(url):
            raise Skip(f"robots.txt forbids where it leads: {url}")
        return url

    async def _wait_turn(self, delay: float) -> None:
        interval = max(delay, self.limits.interval)
        if not interval:
            return
        async with self._turn:
            await asyncio.sleep(self._next_request - time.monotonic())
            self._next_request = time.monotonic() + interval

    def _take(self, url: str, document: Document, target: _Target) -> str:
        """Follow a page's links; returns its lines that no earlier page had (navigation is read once)."""
        if url in self._taken:
            raise Skip(f"leads to a page we have: {url}")
        self._taken.add(url)
        self._known.add(url)
        if target.depth < self.limits.depth:
            self._add(document.links, target.depth + 1)
        lines = [line for line in document.lines if line not in self._lines]
        self._lines.update(lines)
        if not lines:
            raise Skip("no text of its own")
        return "\n".join(lines)

    def _add(self, links: tuple[Link, ...], depth: int) -> None:
        from courlan import is_not_crawlable

        for link in links:
            if link.url in self._known or site_of(link.url) != self._site or is_not_crawlable(link.url):
                continue
            self._known.add(link.url)
            matches = len(self._terms & terms_of(f"{urlsplit(link.url).path} {link.words}"))
            heapq.heappush(self._frontier, _Target(depth, -matches, len(self._known), link.url))
