"""Fetches pages of a site: robots.txt, politeness, redirects, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx

from stream2llm.crawl.html import Document, normalized, read_document, site_of
from stream2llm.crawl.page import Limits, Skip
from stream2llm.crawl.politeness import Politeness
from stream2llm.crawl.robots import Robots

USER_AGENT = "stream2llm"
_HTML = ("text/html", "application/xhtml+xml")
_REDIRECTS = 10


class Fetcher:
    """Several crawls may share one: its connections, what it knows of robots.txt, its politeness."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        limits: Limits,
        politeness: Politeness,
        latency: Callable[[str], float] = lambda url: 0.0,
    ) -> None:
        self._client = client
        self._robots = Robots(client, USER_AGENT)
        self._limits = limits
        self._politeness = politeness
        self._latency = latency

    async def fetch(self, url: str, site: str | None) -> tuple[str, Document]:
        """The page's final address and content. `site`: where redirects must stay; None: anywhere.

        Raises `Skip` with the reason when there is no page for us.
        """
        if refusal := await self._robots.refusal(url):
            raise Skip(refusal)
        await self._politeness.turn(urlsplit(url).netloc, await self._robots.delay(url))
        await asyncio.sleep(self._latency(url))
        try:
            async with asyncio.timeout(self._limits.timeout):
                found, html = await self._download(url, site)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: not an address
            raise Skip(f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise Skip(f"took more than {self._limits.timeout:g} s") from error
        return found, await asyncio.to_thread(read_document, html, found)

    async def _download(self, url: str, site: str | None) -> tuple[str, bytes]:
        for _ in range(_REDIRECTS):
            async with self._client.stream("GET", url) as response:
                if response.next_request is not None:
                    url = await self._redirected(str(response.next_request.url), site)
                    continue
                if response.status_code != 200:
                    raise Skip(f"HTTP {response.status_code}")
                kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
                if kind not in _HTML:
                    raise Skip(f"not HTML but {kind or 'of unknown type'}")
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > self._limits.page_bytes:
                        raise Skip(f"larger than {self._limits.page_bytes} bytes")
                return url, bytes(body)
        raise Skip(f"more than {_REDIRECTS} redirects")

    async def _redirected(self, url: str, site: str | None) -> str:
        url = normalized(url)
        if site is not None and site_of(url) != site:
            raise Skip(f"leads to another site: {url}")
        if refusal := await self._robots.refusal(url):
            raise Skip(f"leads to {url}: {refusal}")
        return url


@asynccontextmanager
async def fetching(
    limits: Limits, politeness: Politeness | None = None, latency: Callable[[str], float] = lambda url: 0.0
) -> AsyncIterator[Fetcher]:
    """A fetcher with connections of its own, for as long as the block runs."""
    headers = {"User-Agent": USER_AGENT, "Accept": "text/html"}
    async with httpx.AsyncClient(headers=headers, timeout=limits.timeout) as client:
        yield Fetcher(client, limits, politeness or Politeness(), latency)
