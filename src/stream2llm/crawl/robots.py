"""robots.txt, read once per host, as RFC 9309 asks."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.robotparser import RobotFileParser

import httpx


class Robots:
    """Answers whether `user_agent` may fetch an address and how many seconds apart."""

    def __init__(self, client: httpx.AsyncClient, user_agent: str) -> None:
        self._client = client
        self._user_agent = user_agent
        self._rules: dict[str, RobotFileParser] = {}

    async def allows(self, url: str) -> bool:
        """Whether the host's robots.txt lets us fetch this address."""
        return (await self._rules_for(url)).can_fetch(self._user_agent, url)

    async def delay(self, url: str) -> float:
        """Seconds between two requests that the host asks for; 0.0 when it does not say."""
        return float((await self._rules_for(url)).crawl_delay(self._user_agent) or 0.0)

    async def _rules_for(self, url: str) -> RobotFileParser:
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.netloc}"
        if host not in self._rules:
            self._rules[host] = await self._fetch(f"{host}/robots.txt")
        return self._rules[host]

    async def _fetch(self, url: str) -> RobotFileParser:
        rules = RobotFileParser(url)
        try:
            response = await self._client.get(url, follow_redirects=True)
            found, forbidden = response.is_success, response.is_server_error
        except httpx.HTTPError:
            found, forbidden = False, True
        if found:
            rules.parse(response.text.splitlines())
        else:  # none: everything is allowed; not to be had for now: nothing is
            rules.parse(["User-agent: *", "Disallow: /"] if forbidden else [])
        return rules
