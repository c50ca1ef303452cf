"""The host tier beside another connector, under vLLM's `MultiConnector`: here the one that keeps blocks on disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepping import BLOCK
from stream2llm.vllm.offload import HostTierConnector, host_tier

Swapping = Any


@pytest.fixture(scope="module")
def swapping(
    model: str, ours: dict[str, Any], start_swapping: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    disk: Path = tmp_path_factory.mktemp("disk")
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(disk)},
    }
    multi = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [ours, example]},
    }
    with start_swapping(model, False, multi) as swapping:
        yield swapping


def test_it_is_found_among_the_children(swapping: Swapping) -> None:
    tier = host_tier(swapping.scheduler.connector)
    assert isinstance(tier, HostTierConnector)
    assert tier is not swapping.scheduler.connector


def test_each_connector_loads_what_it_has(swapping: Swapping) -> None:
    """Evicted blocks come from the host; a prompt that only the disk has comes from there."""
    engine, rng = swapping.engine, random.Random(4)
    prompt = rng.choices(range(10, 49000), k=3 * BLOCK + 5)  # one step: the other connector knows no chunked prefill
    first = engine.ask(prompt, max_tokens=20)
    engine.step(4)
    before = swapping.host.statistics()
    kept = swapping.preempt(first)
    assert kept == 3
    engine.run()
    assert swapping.host.statistics().copied_back - before.copied_back == kept

    assert swapping.scheduler.reset_prefix_cache()
    swapping.host.reset_cache()
    second = engine.ask(prompt, max_tokens=20)
    engine.run()
    assert engine.cached(second) == 3 * BLOCK, "from the disk"
    assert swapping.host.statistics().copied_back - before.copied_back == kept
    assert engine.answer(first) == engine.answer(second)
