"""What a crawl is told and what it gives; plain values."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from urllib.parse import urlsplit

MEDIAN_GAP = 0.7  # seconds between two pages of a real crawl; mean 1.05, 95 % below 3.1


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
    timeout: float = 15.0  # of a fetch
    seconds: float | None = None  # of the whole crawl


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
