"""What an engine has counted, and how much of it in the course of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from stream2llm.client.stream_flows import ROUTES

_METRIC = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
# What stock vLLM counts, by the name that it has in the log.
STOCK_COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "prompt_tokens_cached": "vllm:prompt_tokens_cached_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "stock_preemptions": "vllm:num_preemptions_total",
}

# Not counters: the state of a moment, or of the server's whole life.
LEVELS = frozenset(
    {
        *("pinned_blocks", "free_blocks", "total_blocks", "block_size", "capacity_blocks", "held_blocks"),
        *("wait_max_seconds", "wait_p99_seconds", "context_token_cap", "prefill_correction"),
    }
)


async def counted(http: httpx.AsyncClient) -> dict[str, float]:
    """What the engine has counted since its start, summed over its ranks.

    The scheduler's statistics where the server has context streams, and vLLM's own counters (`STOCK_COUNTERS`); nothing
    of a server that has gone.
    """
    try:
        return await _counted(http)
    except httpx.HTTPError:
        return {}


async def _counted(http: httpx.AsyncClient) -> dict[str, float]:
    counters: dict[str, float] = {}
    statistics = await http.get(f"{ROUTES}/statistics")
    if statistics.is_success:
        for rank in statistics.json()["data"]:
            for name, value in numbers(rank).items():
                counters[name] = counters.get(name, 0) + value
    metrics = await http.get("/metrics")
    if metrics.is_success:
        found: dict[str, float] = {}
        for name, value in _METRIC.findall(metrics.text):
            found[name] = found.get(name, 0) + float(value)
        counters |= {ours: found[name] for ours, name in STOCK_COUNTERS.items() if name in found}
    return counters


def over_the_run(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The counters' increase; of `LEVELS`, the value at the end. Pure."""
    return {name: value if name in LEVELS else value - before.get(name, 0) for name, value in after.items()}


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the scheduler's statistics, those of the host tier among them. Pure."""
    tier = figures.get("host_tier") or {}
    found = {**figures, **tier}
    return {name: value for name, value in found.items() if type(value) in (int, float)}
