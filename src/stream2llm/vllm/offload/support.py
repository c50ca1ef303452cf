"""Which engines the host tier can serve, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_GIB = 1 << 30
_SPECS = (FullAttentionSpec, MLAAttentionSpec)
_DEVICES = ("cpu", "cuda")


class UnsupportedEngineError(ValueError):
    """The host tier cannot serve this engine; the message says why and what to do."""


def check_engine(config: VllmConfig, kv_cache: KVCacheConfig) -> None:
    """Raise `UnsupportedEngineError` for an engine on which the tier was not tested or cannot be right."""
    without = "or start without the host tier (recompute)"
    if not config.cache_config.enable_prefix_caching:
        raise UnsupportedEngineError(
            "the host tier finds KV blocks by their hash, which needs prefix caching: start without "
            f"--no-enable-prefix-caching, {without}"
        )
    device = config.device_config.device_type
    if device not in _DEVICES:
        raise UnsupportedEngineError(f"the host tier runs on {' and '.join(_DEVICES)}, not on {device}; {without[3:]}")
    if len(kv_cache.kv_cache_groups) != 1:
        raise UnsupportedEngineError(
            f"the host tier serves models with one KV-cache group, this one has {len(kv_cache.kv_cache_groups)}: "
            f"start with --disable-hybrid-kv-cache-manager, {without}"
        )
    spec = _layer_spec(kv_cache)
    if type(spec) not in _SPECS or kv_cache.needs_kv_cache_zeroing:
        # A block of another kind of cache is not a function of its hash alone, and vLLM's model runner V2 zeroes new
        # blocks of a mixed cache before the fence.
        raise UnsupportedEngineError(
            f"the host tier serves full attention of one precision, not a KV cache of {type(spec).__name__}; "
            f"{without[3:]}"
        )
    parallel = config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise UnsupportedEngineError(f"the host tier was not tested with context parallelism: leave it out, {without}")


def block_tokens(kv_cache: KVCacheConfig) -> int:
    return int(_layer_spec(kv_cache).block_size)


def block_bytes(kv_cache: KVCacheConfig) -> int:
    """Bytes of one KV block over all layers of one worker."""
    return int(kv_cache.kv_cache_tensors[0].size // kv_cache.num_blocks)


def slot_count(options: Mapping[str, Any], kv_cache: KVCacheConfig, pipeline_stages: int) -> int:
    """The number of slots that `kv_connector_extra_config` asks for, the same in the scheduler and all workers.

    Either `host_gib` (memory of each worker, so of each GPU) or `host_blocks`. Raises `ValueError`.
    """
    given = [name for name in ("host_gib", "host_blocks") if name in options]
    if len(given) != 1:
        raise ValueError(
            "kv_connector_extra_config of HostTierConnector needs either host_gib (GiB of host memory for each "
            f"worker) or host_blocks (KV blocks); got {' and '.join(given) or 'neither'}"
        )
    name, value = given[0], options[given[0]]
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    if name == "host_blocks":
        if value != int(value):
            raise ValueError(f"host_blocks must be a whole number, got {value!r}")
        return int(value)
    if pipeline_stages > 1:
        # The stages may hold different numbers of layers, so the same memory would give them different slots.
        raise ValueError("with pipeline parallelism, give the host tier's size as host_blocks, not as host_gib")
    slots = int(value * _GIB) // block_bytes(kv_cache)
    if slots < 1:
        raise ValueError(f"host_gib={value} is less than one KV block ({block_bytes(kv_cache) / _GIB:.4f} GiB)")
    return slots


def check_memory(slots: int, slot_bytes: int) -> None:
    """Raise `ValueError` if the host has not that much memory free."""
    import psutil  # type: ignore[import-untyped]  # vLLM depends on it

    available = psutil.virtual_memory().available
    if slots * slot_bytes > available:
        raise ValueError(
            f"the host tier's {slots} blocks need {slots * slot_bytes / _GIB:.2f} GiB, the host has "
            f"{available / _GIB:.2f} GiB free: lower host_gib or host_blocks"
        )


def _layer_spec(kv_cache: KVCacheConfig) -> Any:
    """The spec of the (only) group's layers; where they differ in size only, that of one of them."""
    spec = kv_cache.kv_cache_groups[0].kv_cache_spec
    return getattr(spec, "first_spec", spec)
