from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stepping import Engine, running_engine

BLOCKS = 161  # 160 blocks of 32 tokens: 5,120 tokens


@pytest.fixture(scope="package", params=["asynchronous", "synchronous"])
def shared_engine(request: pytest.FixtureRequest, model: str) -> Iterator[Engine]:
    """The engine of this package's tests, once with and once without asynchronous scheduling."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with running_engine(model, asynchronous=request.param == "asynchronous", blocks=BLOCKS) as engine:
        yield engine
    os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING")


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """An empty engine; whatever the test did, every KV block must be free again once its streams are closed."""
    free = shared_engine.free_blocks
    assert free == BLOCKS - 1
    yield shared_engine
    shared_engine.settle()
    assert shared_engine.free_blocks == free, "KV blocks leaked"
