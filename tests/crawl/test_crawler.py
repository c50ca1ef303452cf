"""The crawler against a real HTTP server."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from stream2llm.crawl.crawler import Crawler
from stream2llm.crawl.fetcher import fetching
from stream2llm.crawl.page import Latency, Limits, Page
from stream2llm.crawl.politeness import Politeness
from stream2llm.crawl.ranking import Bm25, Ranking, WordOverlap
from web_site import Route, Site, serving_site


@pytest.fixture
def site() -> Iterator[Site]:
    with serving_site() as running:
        yield running


@dataclass
class Crawl:
    start: str
    question: str = ""
    limits: Limits = field(default_factory=Limits)
    ranking: Callable[[str], Ranking] = WordOverlap
    interval: float = 0.0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    async def pages(self) -> AsyncIterator[Page]:
        async with fetching(self.limits, Politeness(self.interval)) as fetcher:
            crawler = Crawler(self.start, self.ranking(self.question), fetcher, self.limits)
            async with aclosing(crawler.pages()) as pages:
                async for page in pages:
                    yield page
            self.skipped = crawler.skipped


def crawl(crawler: Crawl) -> list[Page]:
    async def collect() -> list[Page]:
        return [page async for page in crawler.pages()]

    return asyncio.run(collect())


def paths(site: Site, pages: list[Page]) -> list[str]:
    return [page.url.removeprefix(site.url) for page in pages]


def test_follows_links_of_the_site_and_gives_each_page_once_despite_cycles(site: Site) -> None:
    site.page("/a", "Alpha is the first letter of the alphabet.", "/b", "/a#top", "/c")
    site.page("/b", "Beta is the second letter of the alphabet.", "/a", "/c", "http://elsewhere.invalid/x")
    site.page("/c", "Gamma is the third letter of the alphabet.", "/b", "/a")
    crawler = Crawl(f"{site.url}/a")

    pages = crawl(crawler)

    assert paths(site, pages) == ["/a", "/b", "/c"]
    assert [page.depth for page in pages] == [0, 1, 1]
    assert pages[1].title == "/b"
    assert "second letter" in pages[1].text
    assert sorted(site.paths()) == ["/a", "/b", "/c", "/robots.txt"]
    assert crawler.skipped == []


def test_the_order_of_pages_does_not_depend_on_which_answers_first(site: Site) -> None:
    site.page("/a", "Alpha text.", "/slow", "/quick", "/last")
    site.page("/slow", "Slow text.", "/under-slow", delay=0.3)
    site.page("/quick", "Quick text.", "/under-quick")
    site.page("/last", "Last text.")
    site.page("/under-slow", "Under slow text.")
    site.page("/under-quick", "Under quick text.")
    expected = ["/a", "/slow", "/quick", "/last", "/under-slow", "/under-quick"]

    for concurrency in (1, 2, 6):
        pages = crawl(Crawl(f"{site.url}/a", limits=Limits(concurrency=concurrency)))
        assert paths(site, pages) == expected


def test_links_that_share_words_with_the_question_come_first(site: Site) -> None:
    site.page("/a", "Alpha text.", "/about", "/base64-encoding", "/products")
    for path in ("/about", "/base64-encoding", "/products"):
        site.page(path, f"All there is to say of {path}.")

    pages = crawl(Crawl(f"{site.url}/a", "Which encoding is meant?"))

    assert paths(site, pages) == ["/a", "/base64-encoding", "/about", "/products"]


def test_bm25_follows_the_link_that_fits_the_question_best_however_deep_it_is(site: Site) -> None:
    # "encoding" is said by every link, "quoted" and "printable" by one: BM25 weighs the rare words more.
    site.page("/a", "Alpha text.", "/encoding", "/encoding-base64", "/hub-quoted")
    site.page("/encoding", "What an encoding is.")
    site.page("/encoding-base64", "What that encoding is.")
    site.page("/hub-quoted", "Where more is to be found.", "/quoted-printable")
    site.page("/quoted-printable", "Some characters are quoted.")
    question = "What does the quoted printable encoding do?"

    best_first = crawl(Crawl(f"{site.url}/a", question, Limits(concurrency=1), Bm25))
    nearest_first = crawl(Crawl(f"{site.url}/a", question))

    assert paths(site, best_first)[:3] == ["/a", "/hub-quoted", "/quoted-printable"]
    assert paths(site, nearest_first)[-1] == "/quoted-printable"


def test_ends_when_its_time_is_over_with_the_pages_it_has(site: Site) -> None:
    site.page("/a", "Alpha text.", "/b", "/c")
    site.page("/b", "Beta text.", delay=3.0)
    site.page("/c", "Gamma text.")
    crawler = Crawl(f"{site.url}/a", limits=Limits(seconds=1.0))

    assert paths(site, crawl(crawler)) == ["/a"]
    assert crawler.skipped == [(f"{site.url}/b", "the crawl's 1 s were over")]


def test_keeps_to_its_limits_of_pages_and_depth(site: Site) -> None:
    for number in range(9):
        site.page(f"/{number}", f"Text of page {number}.", f"/{number + 1}")

    assert paths(site, crawl(Crawl(f"{site.url}/0", limits=Limits(depth=2)))) == ["/0", "/1", "/2"]
    assert paths(site, crawl(Crawl(f"{site.url}/0", limits=Limits(pages=2, depth=9)))) == ["/0", "/1"]


def test_has_no_more_fetches_in_flight_than_allowed_but_as_many(site: Site) -> None:
    site.page("/a", "Alpha text.", *(f"/{number}" for number in range(6)))
    for number in range(6):
        site.page(f"/{number}", f"Text of page {number}.", delay=0.2)

    def seconds(concurrency: int) -> float:
        begin = time.monotonic()
        assert len(crawl(Crawl(f"{site.url}/a", limits=Limits(concurrency=concurrency)))) == 7
        return time.monotonic() - begin

    assert seconds(3) < 0.8 * seconds(1)
    assert seconds(1) > 1.2


def test_obeys_robots_txt(site: Site) -> None:
    site.routes["/robots.txt"] = Route("User-agent: *\nDisallow: /private\n", content_type="text/plain")
    site.page("/a", "Alpha text.", "/private/b", "/c")
    site.page("/c", "Gamma text.")
    site.redirect("/d", "/private/e")
    crawler = Crawl(f"{site.url}/a")

    assert paths(site, crawl(crawler)) == ["/a", "/c"]
    assert crawler.skipped == [(f"{site.url}/private/b", "robots.txt forbids it")]
    assert "/private/b" not in site.paths()


def test_obeys_robots_txt_where_a_redirect_leads(site: Site) -> None:
    site.routes["/robots.txt"] = Route("User-agent: *\nDisallow: /private\n", content_type="text/plain")
    site.redirect("/a", "/private/b")
    crawler = Crawl(f"{site.url}/a")

    assert crawl(crawler) == []
    assert crawler.skipped == [(f"{site.url}/a", f"leads to {site.url}/private/b: robots.txt forbids it")]
    assert "/private/b" not in site.paths()


def test_a_robots_txt_that_cannot_be_had_for_now_forbids_everything(site: Site) -> None:
    site.routes["/robots.txt"] = Route(status=503)
    site.page("/a", "Alpha text.")

    crawler = Crawl(f"{site.url}/a")

    assert crawl(crawler) == []
    assert site.paths() == ["/robots.txt"]
    assert crawler.skipped == [(f"{site.url}/a", "its robots.txt cannot be had: HTTP 503")]


def test_asks_again_for_a_robots_txt_that_could_not_be_had(site: Site) -> None:
    site.page("/a", "Alpha text.")

    async def crawls(*statuses: int) -> list[int]:
        counts = []
        async with fetching(Limits()) as fetcher:
            for status in statuses:
                site.routes["/robots.txt"] = Route("", status=status, content_type="text/plain")
                crawler = Crawler(f"{site.url}/a", WordOverlap(""), fetcher)
                counts.append(len([page async for page in crawler.pages()]))
        return counts

    assert asyncio.run(crawls(503, 200, 503)) == [0, 1, 1]
    assert site.paths().count("/robots.txt") == 2


def test_waits_between_requests_as_robots_txt_and_the_limits_ask(site: Site) -> None:
    site.page("/a", "Alpha text.", "/b", "/c")
    site.page("/b", "Beta text.")
    site.page("/c", "Gamma text.")

    crawl(Crawl(f"{site.url}/a", interval=0.2))

    times = [at for at, path in site.requests if path != "/robots.txt"]
    assert all(later - earlier >= 0.15 for earlier, later in pairwise(times))

    site.routes["/robots.txt"] = Route("User-agent: *\nCrawl-delay: 1\n", content_type="text/plain")
    begin = time.monotonic()
    crawl(Crawl(f"{site.url}/a", limits=Limits(pages=2)))
    assert time.monotonic() - begin >= 1.0


def test_follows_redirects_within_the_site_and_gives_where_they_end_once(site: Site) -> None:
    site.redirect("/", "/a")
    site.page("/a", "Alpha text.", "/old", "/b", "/away", "/loop")
    site.redirect("/old", "/b")
    site.page("/b", "Beta text.")
    site.redirect("/away", "http://elsewhere.invalid/")
    site.redirect("/loop", "/loop")
    crawler = Crawl(f"{site.url}/")

    assert paths(site, crawl(crawler)) == ["/a", "/b"]
    reasons = dict(crawler.skipped)
    assert reasons[f"{site.url}/b"].startswith("leads to a page we have")
    assert reasons[f"{site.url}/away"].startswith("leads to another site")
    assert reasons[f"{site.url}/loop"] == "more than 10 redirects"


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (Route("gone", status=404), "HTTP 404"),
        (Route("broken", status=500), "HTTP 500"),
        (Route("%PDF", content_type="application/pdf"), "not HTML but application/pdf"),
        (Route("<p>" + "x" * 5000), "larger than 4000 bytes"),
        (Route("<p>late</p>", delay=1.0), "took more than 0.5 s"),
        (Route("<html></html>"), "no text of its own"),
        (Route(status=302, location="http://[::1/"), "RemoteProtocolError"),
    ],
)
def test_says_why_it_leaves_a_page_out_and_goes_on(site: Site, route: Route, reason: str) -> None:
    site.page("/a", "Alpha text.", "/odd", "/b")
    site.routes["/odd"] = route
    site.page("/b", "Beta text.")
    crawler = Crawl(f"{site.url}/a", limits=Limits(page_bytes=4000, timeout=0.5))

    assert paths(site, crawl(crawler)) == ["/a", "/b"]
    ((url, why),) = crawler.skipped
    assert url == f"{site.url}/odd"
    assert reason in why


def test_a_site_that_does_not_answer_gives_no_pages_and_a_reason() -> None:
    crawler = Crawl("http://127.0.0.1:9/")

    assert crawl(crawler) == []
    ((_, reason),) = crawler.skipped
    assert "ConnectError" in reason


def test_navigation_that_every_page_repeats_is_read_once(site: Site) -> None:
    for path, link in (("/a", "/b"), ("/b", "/a")):
        site.page(path, f"Home | News | Contact</p><p>What only {path} says.", link)

    first, second = crawl(Crawl(f"{site.url}/a"))

    assert "Contact" in first.text
    assert "Contact" not in second.text
    assert "What only /b says." in second.text


def test_leaving_the_crawl_early_ends_its_fetches(site: Site) -> None:
    site.page("/a", "Alpha text.", "/b", "/c")
    site.page("/b", "Beta text.", delay=0.5)
    site.page("/c", "Gamma text.", delay=0.5)

    async def first() -> tuple[Page, int]:
        pages = Crawl(f"{site.url}/a").pages()
        page = await anext(pages)
        await pages.aclose()
        return page, len(asyncio.all_tasks())

    page, tasks = asyncio.run(first())
    assert page.url == f"{site.url}/a"
    assert tasks == 1


def test_added_latency_is_that_of_a_real_crawl_and_repeats_with_its_seed() -> None:
    urls = [f"http://127.0.0.1:{8000 + number}/page/{number}" for number in range(4000)]
    delays = [Latency(seed=1)(url) for url in urls]

    assert statistics.median(delays) == pytest.approx(0.70, rel=0.1)
    assert statistics.mean(delays) == pytest.approx(1.05, rel=0.1)
    assert statistics.quantiles(delays, n=20)[-1] == pytest.approx(3.08, rel=0.15)
    assert Latency(seed=1)("http://127.0.0.1:1/page/7") == delays[7]
    assert Latency(seed=2)(urls[7]) != delays[7]
    assert Latency(median=0.0)(urls[0]) == 0.0
