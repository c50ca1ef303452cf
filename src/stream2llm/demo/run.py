"""The demo from start to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stream2llm.crawl.crawler import Crawler
from stream2llm.crawl.fetcher import fetching
from stream2llm.crawl.page import MEDIAN_GAP, Latency, Limits, Page
from stream2llm.crawl.politeness import Politeness
from stream2llm.crawl.ranking import WordOverlap
from stream2llm.demo.arms import Arms, Asked, replay
from stream2llm.demo.prompt import Prompt
from stream2llm.demo.server import served_model, started_server
from stream2llm.demo.site import pydoc_site
from stream2llm.demo.timeline import Timeline
from stream2llm.embedded import resolve_model

QUESTION = "How does the email package encode text in Base64?"
START_PAGE = "email.html"
POLITE_SECONDS = 0.5  # between two requests to somebody's site


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to crawl and whom to ask. None: the loopback site, a server of our own, the default latency."""

    question: str = QUESTION
    url: str | None = None
    server: str | None = None
    model: str = "default"
    api_key: str | None = field(default=None, repr=False)
    pages: int = 20
    page_characters: int = 700
    delay: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both arms' results."""

    streamed: Asked
    waited: Asked
    added_latency: float  # median seconds added to each page, 0 for a site elsewhere

    @property
    def speedup(self) -> float:
        return self.waited.ttft / self.streamed.ttft

    @property
    def answers_equal(self) -> bool:
        return self.streamed.answer == self.waited.answer

    def json(self) -> dict[str, Any]:
        """The figures as one JSON object; times in seconds."""
        return {
            "ttft_wait_s": round(self.waited.ttft, 3),
            "ttft_stream_s": round(self.streamed.ttft, 3),
            "speedup": round(self.speedup, 2),
            "answers_equal": self.answers_equal,
            "pages": len(self.streamed.pages),
            "prompt_tokens": self.streamed.prompt_tokens,
            "crawl_s": round(self.streamed.crawl, 3),
            "added_latency_median_s": self.added_latency,
            "answer": self.streamed.answer,
        }


def run(options: Options, console: Console) -> Outcome:
    """Crawl, stream, ask; then the same by waiting. Raises `DemoError`, `ServerError` or a client's error."""
    with ExitStack() as stack:
        server = options.server or stack.enter_context(_own_server(options.model, console))
        start, latency = options.url, Latency(options.seed, 0.0)
        if start is None:
            start = stack.enter_context(pydoc_site()) + START_PAGE
            latency = Latency(options.seed, MEDIAN_GAP * options.delay)
        url = server.rstrip("/").removesuffix("/v1")
        prompt = Prompt(options.question, options.page_characters)
        arms = Arms(url, served_model(url, options.api_key), prompt, api_key=options.api_key)
        return asyncio.run(_compare(arms, start, options, latency, console))


@contextmanager
def _own_server(model: str, console: Console) -> Iterator[str]:
    resolve_model(model)  # here, so that its progress is seen
    console.print("Starting vLLM (about half a minute) ...")
    with console.status("waiting for the engine") if console.is_terminal else nullcontext():
        stack = ExitStack()
        url = stack.enter_context(started_server(model))
    with stack:
        yield url


async def _compare(arms: Arms, start: str, options: Options, latency: Latency, console: Console) -> Outcome:
    limits = Limits(pages=options.pages)
    politeness = Politeness(0.0 if options.url is None else POLITE_SECONDS)
    console.print("Warming up ...")
    await arms.warm_up()
    added = f" (a median of {latency.median:.2g} s is added to each fetch from loopback)" if latency.median else ""
    console.print(f"\n[bold]1. Streaming[/]: each page is sent as it comes{added}")
    async with fetching(limits, politeness, latency) as fetcher:
        crawler = Crawler(start, WordOverlap(options.question), fetcher, limits)
        with Timeline(console, options.pages, streams=True).shown() as view:
            streamed = await arms.stream(_some(crawler), view)
    for address, reason in crawler.skipped:
        console.print(f"  left out: {escape(address)}: {escape(reason)}", style="dim")
    console.print(f"\n[bold]Question[/]: {escape(options.question)}\n[bold]Answer[/]: {escape(streamed.answer)}")
    console.print("\n[bold]2. Waiting[/]: the same pages at the same times, sent when all are there")
    with Timeline(console, options.pages, streams=False).shown() as view:
        waited = await arms.wait(replay(streamed.pages), view)
    outcome = Outcome(streamed, waited, latency.median)
    if not outcome.answers_equal:
        console.print(f"\n[bold]Answer[/]: {escape(waited.answer)}")
    console.print()
    console.print(_table(outcome))
    return outcome


async def _some(crawler: Crawler) -> AsyncIterator[Page]:
    """The crawler's pages; raises `DemoError` when there are none."""
    count = 0
    async for page in crawler.pages():
        count += 1
        yield page
    if not count:
        reasons = "; ".join(f"{url}: {reason}" for url, reason in crawler.skipped)
        raise DemoError(f"no page could be crawled ({reasons})")


def _table(outcome: Outcome) -> Table:
    table = Table("", "streaming", "waiting", "")
    streamed, waited = outcome.streamed, outcome.waited
    table.add_row(
        "TTFT after the last page",
        f"{streamed.ttft:.2f} s",
        f"{waited.ttft:.2f} s",
        f"[bold]{outcome.speedup:.1f} times sooner[/]",
    )
    table.add_row(
        "TTFT from the start",
        f"{streamed.crawl + streamed.ttft:.2f} s",
        f"{waited.crawl + waited.ttft:.2f} s",
        "",
    )
    table.add_row("pages", str(len(streamed.pages)), str(len(waited.pages)), "")
    table.add_row("prompt tokens", str(streamed.prompt_tokens), str(waited.prompt_tokens), "")
    table.add_row("answers equal", "[green]yes[/]" if outcome.answers_equal else "[red]NO[/]", "", "")
    return table
