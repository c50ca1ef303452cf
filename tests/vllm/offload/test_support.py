"""What the host tier refuses at start, on the real engine's configuration; and how its size is given."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from stream2llm.vllm.offload.support import (
    UnsupportedEngineError,
    block_bytes,
    block_tokens,
    check_engine,
    check_memory,
    slot_count,
)

SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float16}
FULL = FullAttentionSpec(**SHAPE)
BLOCK_BYTES = FULL.page_size_bytes


def kv_cache(*specs: Any, blocks: int = 100) -> KVCacheConfig:
    """One group for each spec, of one layer each."""
    placement = KVCacheTensor(blocks * BLOCK_BYTES, ["0"], blocks * BLOCK_BYTES, BLOCK_BYTES)
    return KVCacheConfig(blocks, [placement], [KVCacheGroupSpec([str(n)], spec) for n, spec in enumerate(specs)])


@pytest.fixture(scope="module")
def config(model: str) -> Any:
    """A `VllmConfig`, as the engine has it."""
    from vllm import EngineArgs

    return EngineArgs(
        model=model, dtype="float32", max_model_len=2048, enable_prefix_caching=True
    ).create_engine_config()


def changed(config: Any, part: str, **values: Any) -> Any:
    """A copy of the configuration with other values in one part."""
    result = copy.copy(config)
    setattr(result, part, copy.copy(getattr(config, part)))
    for name, value in values.items():
        setattr(getattr(result, part), name, value)
    return result


@pytest.mark.parametrize(
    "spec",
    [
        FULL,
        MLAAttentionSpec(**SHAPE | {"num_kv_heads": 1}),
        # A model with sliding windows whose hybrid KV-cache manager is off.
        FullAttentionSpec(**SHAPE, sliding_window=128),
        UniformTypeKVCacheSpecs(16, {"0": FULL, "1": FullAttentionSpec(**SHAPE | {"num_kv_heads": 4})}),
    ],
    ids=["full attention", "MLA", "window as full attention", "two page sizes"],
)
def test_full_attention_is_served(config: Any, spec: Any) -> None:
    check_engine(config, kv_cache(spec))
    assert block_tokens(kv_cache(spec)) == 16


def test_other_kinds_of_kv_cache_are_refused(config: Any) -> None:
    with pytest.raises(UnsupportedEngineError, match=r"one KV-cache group, this one has 2: .*--disable-hybrid"):
        check_engine(config, kv_cache(FULL, FULL))
    with pytest.raises(UnsupportedEngineError, match="not a KV cache of SlidingWindowSpec"):
        check_engine(config, kv_cache(SlidingWindowSpec(**SHAPE, sliding_window=128)))
    mixed = UniformTypeKVCacheSpecs(16, {"0": FULL, "1": FullAttentionSpec(**SHAPE | {"dtype": torch.float32})})
    with pytest.raises(UnsupportedEngineError, match="of one precision"):
        check_engine(config, kv_cache(mixed))


def test_engines_that_it_was_not_tested_on_are_refused(config: Any) -> None:
    cache = kv_cache(FULL)
    with pytest.raises(UnsupportedEngineError, match="without --no-enable-prefix-caching"):
        check_engine(changed(config, "cache_config", enable_prefix_caching=False), cache)
    with pytest.raises(UnsupportedEngineError, match="context parallelism"):
        check_engine(changed(config, "parallel_config", decode_context_parallel_size=2), cache)
    with pytest.raises(UnsupportedEngineError, match="runs on cpu and cuda, not on tpu"):
        check_engine(changed(config, "device_config", device_type="tpu"), cache)


def test_the_size_is_given_in_gib_for_each_worker_or_in_blocks() -> None:
    cache = kv_cache(FULL)
    assert block_bytes(cache) == BLOCK_BYTES
    assert slot_count({"host_gib": 0.5}, cache, pipeline_stages=1) == (1 << 29) // BLOCK_BYTES
    assert slot_count({"host_blocks": 7}, cache, pipeline_stages=2) == 7


@pytest.mark.parametrize(
    ("options", "stages", "message"),
    [
        ({}, 1, "either host_gib .* or host_blocks .* got neither"),
        ({"host_gib": 1, "host_blocks": 1}, 1, "got host_gib and host_blocks"),
        ({"host_gib": "4"}, 1, "host_gib must be a positive number, got '4'"),
        ({"host_blocks": 0}, 1, "host_blocks must be a positive number"),
        ({"host_blocks": 1.5}, 1, "host_blocks must be a whole number"),
        ({"host_gib": 1e-6}, 1, "less than one KV block"),
        ({"host_gib": 1}, 2, "pipeline parallelism, give .* host_blocks"),
    ],
)
def test_a_size_that_means_nothing_is_refused(options: dict[str, Any], stages: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slot_count(options, kv_cache(FULL), stages)


def test_more_than_the_host_has_free_is_refused() -> None:
    check_memory(1, 1 << 20)
    with pytest.raises(ValueError, match=r"1024 blocks need 1048576.00 GiB, the host has .* lower host_gib"):
        check_memory(1024, 1 << 40)
