"""The HTTP API against a running server, as its users meet it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from http_calls import Api


@pytest.fixture
def api(server: Any) -> Iterator[Api]:
    """The server's API; every KV block must be free again once the test's streams are closed."""
    with httpx.Client(base_url=server.base_url, timeout=120) as client:
        api = Api(client, server)
        yield api
        for stream in api.get("").json()["data"]:
            api.delete(f"/{stream['id']}")
        assert _kv_cache_usage(api) == 0.0, "KV blocks leaked"


def _kv_cache_usage(api: Api) -> float:
    """The part of the KV cache that is in use after one more request, which makes the engine report it."""
    usage = 1.0
    for _ in range(20):
        api.plain(prompt="report", max_tokens=1)
        metrics = api.client.get("/metrics").text
        found = re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", metrics, re.MULTILINE)
        assert found is not None
        if (usage := float(found[1])) == 0.0:
            break
        time.sleep(0.1)
    return usage
