"""A version whose blocks a connector is loading is neither running nor waiting: nothing may be done to it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ownership import check_invariants
from stepping import BLOCK, Engine, running_engine, tokens
from steps import computed, finished

BLOCKS = 161


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[Engine]:
    from vllm.config import KVTransferConfig

    connector = KVTransferConfig(
        kv_connector="LoadingConnector", kv_role="kv_both", kv_connector_module_path="loading_connector"
    )
    with running_engine(model, asynchronous=True, blocks=BLOCKS, kv_transfer_config=connector) as engine:
        yield engine


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


def test_streams_keep_their_blocks_while_all_that_could_run_is_loading(engine: Engine) -> None:
    """Nothing can be scheduled then, and it is no stall."""
    rng = random.Random(7)
    for number in range(2):
        engine.open(f"s{number}", tokens(rng, 20 * BLOCK))
        engine.run()
    stalls = engine.figures["stalls"]
    requests = [engine.ask(tokens(rng, 1900), max_tokens=4) for _ in range(3)]
    engine.step()
    assert len(engine.scheduler.kv_holding_waiting) == 2
    assert not engine.scheduler.running
    check_invariants(engine)
    assert computed(engine) == {"s0": 20 * BLOCK, "s1": 20 * BLOCK}
    engine.run()
    assert all(finished(engine, request) for request in requests)
    assert engine.figures["stalls"] == stalls
    for number in range(2):
        engine.close(f"s{number}")
    engine.run()
    assert engine.free_blocks == BLOCKS - 1
