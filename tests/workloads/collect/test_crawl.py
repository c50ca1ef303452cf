"""From a crawl to a query of the trace."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.crawl.fetcher import fetching
from stream2llm.crawl.page import Latency, Limits, Page
from stream2llm.workloads.collect.crawl import CrawlRetriever, CrawlSettings, query_of
from stream2llm.workloads.collect.questions import Question
from stream2llm.workloads.collect.run import NothingFound
from stream2llm.workloads.trace import Kind, Query
from web_site import Site, serving_site

QUESTION = Question("Which bird sings?", "http://x.example/")
TIMES = st.lists(st.floats(0, 60), min_size=1, max_size=8).map(sorted)


def retrieved(site: Site, question: str, settings: CrawlSettings) -> Query:
    async def run() -> Query:
        async with fetching(settings.limits, latency=settings.latency) as fetcher:
            retriever = CrawlRetriever(fetcher, settings, lambda page: None)
            return await retriever.retrieve(Question(question, f"{site.url}/"))

    return asyncio.run(run())


@given(TIMES)
def test_each_page_is_appended_at_its_time_and_the_lead_ends_with_the_first(times: list[float]) -> None:
    pages = [Page(f"http://x.example/{n}", f"Page {n}", f"Text {n}.", 1, at) for n, at in enumerate(times)]
    query = query_of(QUESTION, pages, 100)

    assert all(operation.op is Kind.APPEND for operation in query.operations)
    assert query.lead_s == pytest.approx(times[0], abs=1e-5)
    assert query.operations[0].gap_s == 0.0
    moments = itertools.accumulate((operation.gap_s for operation in query.operations), initial=query.lead_s)
    assert list(moments)[1:] == pytest.approx(times, abs=1e-4)
    assert query.context == tuple(page.url for page in pages)
    assert query.pieces["http://x.example/0"].text == "# Page 0\nText 0.\n\n"


def test_a_crawl_becomes_a_query_with_its_pages_in_the_order_of_bm25() -> None:
    with serving_site() as site:
        site.page("/", "All there is to say of birds.", "/sparrow", "/nightingale-sings")
        site.page("/sparrow", "The sparrow is a small bird of the cities.")
        site.page("/nightingale-sings", "The nightingale sings by night. " * 20, delay=0.3)
        query = retrieved(site, "Which bird sings?", CrawlSettings(page_characters=40))

    assert query.context == (f"{site.url}/", f"{site.url}/nightingale-sings", f"{site.url}/sparrow")
    assert query.source == f"{site.url}/"
    assert query.operations[1].gap_s >= 0.3  # of the server
    text = query.pieces[f"{site.url}/nightingale-sings"].text
    assert text == "# /nightingale-sings\nThe nightingale sings by night. The ...\n\n"


def test_added_latency_is_in_the_times_and_in_the_header() -> None:
    settings = CrawlSettings(Limits(pages=1, seconds=5.0), latency=Latency(seed=7, median=0.2, sigma=0.1))
    with serving_site() as site:
        site.page("/", "All there is to say of birds.")
        query = retrieved(site, "Which bird sings?", settings)

    assert query.lead_s >= 0.1
    header = settings.header("a small site", "CC0-1.0")
    assert (header.workload, header.license) == ("crawler", "CC0-1.0")
    assert header.description.startswith("a small site; a crawl for each question: 1 pages at most")
    assert "5 s at most; to each fetch a latency was added: lognormal, median 0.2 s" in header.description
    assert "latency" not in CrawlSettings().header().description


def test_a_crawl_without_pages_says_why() -> None:
    with serving_site() as site, pytest.raises(NothingFound, match=r"/: HTTP 404"):
        retrieved(site, "Which bird sings?", CrawlSettings())
