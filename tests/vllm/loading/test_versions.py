"""A version whose blocks a connector is loading is neither running nor waiting: nothing may be done to it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from stepping import Engine, running_engine

BLOCKS = 161


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[Engine]:
    from vllm.config import KVTransferConfig

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    connector = KVTransferConfig(
        kv_connector="LoadingConnector", kv_role="kv_both", kv_connector_module_path="loading_connector"
    )
    with running_engine(model, asynchronous=True, blocks=BLOCKS, kv_transfer_config=connector) as engine:
        yield engine
    os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)


@pytest.mark.parametrize("steps", range(1, 6))
@pytest.mark.parametrize("event", ["complete", "supersede", "close"])
def test_anything_may_happen_while_a_version_is_loading(engine: Engine, steps: int, event: str) -> None:
    rng = random.Random(steps)
    context = rng.choices(range(10, 49000), k=900)
    engine.open("s", context)
    engine.step(steps)
    if event == "complete":
        request = engine.ask(context[:300])
        engine.run()
        assert engine.outputs[request].finished
        assert engine.status("s")["state"] == "ready"
    elif event == "supersede":
        engine.put("s", [*context, *context[:100]], keep=900)
        engine.run()
        assert engine.status("s")["state"] == "ready"
    if event != "close":
        assert "error" not in engine.close("s")
    else:
        engine.close("s")
    engine.run()
    assert engine.free_blocks == BLOCKS - 1
