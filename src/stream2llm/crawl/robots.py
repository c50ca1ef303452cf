"""robots.txt as RFC 9309 asks, read once per host once it is to be had."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.robotparser import RobotFileParser

import httpx


class _Unavailable(Exception):
    """A host's robots.txt is not to be had for now; the message says why."""


class Robots:
    """Answers whether `user_agent` may fetch an address and how many seconds apart."""

    def __init__(self, client: httpx.AsyncClient, user_agent: str) -> None:
        self._client = client
        self._user_agent = user_agent
        self._rules: dict[str, RobotFileParser] = {}

    async def refusal(self, url: str) -> str:
        """Why the host's robots.txt does not let us fetch this address; empty if it does."""
        try:
            allowed = (await self._rules_for(url)).can_fetch(self._user_agent, url)
        except _Unavailable as reason:
            return f"its robots.txt cannot be had: {reason}"
        return "" if allowed else "robots.txt forbids it"

    async def delay(self, url: str) -> float:
        """Seconds between two requests that the host asks for; 0.0 when it does not say."""
        try:
            return float((await self._rules_for(url)).crawl_delay(self._user_agent) or 0.0)
        except _Unavailable:
            return 0.0

    async def _rules_for(self, url: str) -> RobotFileParser:
        host = _host(url)
        if host not in self._rules:
            self._rules[host] = await self._fetch(host)
        return self._rules[host]

    async def _fetch(self, host: str) -> RobotFileParser:
        """Raises `_Unavailable`: nothing is allowed then."""
        rules = RobotFileParser(f"{host}/robots.txt")
        try:
            response = await self._client.get(f"{host}/robots.txt", follow_redirects=True)
        except httpx.HTTPError as error:
            raise _Unavailable(f"{type(error).__name__}: {error}") from error
        if response.is_server_error:
            raise _Unavailable(f"HTTP {response.status_code}")
        rules.parse(response.text.splitlines() if response.is_success else [])  # none: everything is allowed
        return rules


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
