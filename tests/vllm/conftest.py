from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from stepping import Engine, left_empty, running_engine

BLOCKS = 161  # 160 blocks of 32 tokens: 5,120 tokens


HOST_BLOCKS = 120  # less than what is evicted in some tests


@pytest.fixture(scope="package", params=["asynchronous", "synchronous", "swapping"])
def shared_engine(request: pytest.FixtureRequest, model: str) -> Iterator[Engine]:
    """The engine of this package's tests: with and without asynchronous scheduling, and with a small host tier."""
    options = host_tier_options() if request.param == "swapping" else {}
    with running_engine(model, asynchronous=request.param != "synchronous", blocks=BLOCKS, **options) as engine:
        yield engine


def host_tier_options() -> dict[str, Any]:
    """Every victim is swapped, as far as the host tier has room."""
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="HostTierConnector",
        kv_connector_module_path="stream2llm.vllm.offload",
        kv_role="kv_producer",
        kv_connector_extra_config={"host_blocks": HOST_BLOCKS},
    )
    return {"kv_transfer_config": transfer, "additional_config": {"stream2llm": {"preemption": "swap"}}}


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20)


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """An empty engine; whatever the test did, every KV block must be free again once its streams are closed."""
    with left_empty(shared_engine, BLOCKS - 1):
        yield shared_engine
