"""The KV connector that gives stock vLLM a host tier: thin, between vLLM's hooks and the tier and its copier.

vLLM 0.32 calls the hooks of each step in this order, in both model runners, also when no token is scheduled:
scheduler `match` and `load` for each admitted request, then `build_connector_meta`; worker `handle_preemptions` (the
fence: nothing of the step has run yet), `start_load_kv`, the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from stream2llm.vllm.offload.copier import Copier, make_copier
from stream2llm.vllm.offload.copies import StepCopies
from stream2llm.vllm.offload.regions import block_regions
from stream2llm.vllm.offload.support import block_bytes, block_tokens, check_engine, check_memory, slot_count
from stream2llm.vllm.offload.tier import HostTier, HostTierStatistics

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.stream2llm.offload")


class HostTierConnector(KVConnectorBase_V1):
    """Keeps KV blocks in host memory. A full tier or a lost copy means that tokens are computed again."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        """Raises `ValueError` for options or an engine that the tier cannot serve."""
        super().__init__(vllm_config, role, kv_cache_config)
        check_engine(vllm_config, kv_cache_config)
        stages = vllm_config.parallel_config.pipeline_parallel_size
        self._slots = slot_count(self._kv_transfer_config.kv_connector_extra_config, kv_cache_config, stages)
        self._tier = HostTier(self._slots, block_tokens(kv_cache_config))
        self.copier: Copier | None = None
        """The worker's; None in the scheduler and before the KV cache is there."""

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a lost copy is a miss in the cache."""
        return False

    # For our scheduler

    def offload(self, blocks: Sequence[KVCacheBlock]) -> int:
        """Copy blocks that are about to lose their last owner to the host, those of a prefix head first.

        Call it before the blocks are freed, between steps (not inside stock `schedule()`). The copies are made at the
        start of the next step. Returns how many of the blocks the tier will hold: partial blocks cannot be found
        again, and those for which the tier has no room are lost, which costs computing them again.
        """
        return self._tier.offload(blocks)

    def held_tokens(self, request: Request, computed_tokens: int) -> int:
        """How many tokens after the first `computed_tokens` could be copied back for the request. No side effect."""
        return self._tier.held_tokens(request, computed_tokens)

    def statistics(self) -> HostTierStatistics:
        return self._tier.statistics()

    # vLLM's hooks in the scheduler

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        return self._tier.match(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._tier.load(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._tier.take_copies()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._tier.forget(request)
        return False, None

    def reset_cache(self) -> bool:
        self._tier.reset()
        return True

    # vLLM's hooks in the worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        slot_bytes = block_bytes(self._kv_cache_config)
        check_memory(self._slots, slot_bytes)
        self.copier = make_copier(block_regions(self._kv_cache_config, kv_caches), self._slots)
        logger.info(
            "Host tier: %d KV blocks of %d tokens, %.2f GiB",
            self._slots,
            block_tokens(self._kv_cache_config),
            self._slots * slot_bytes / (1 << 30),
        )

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, StepCopies)
        assert self.copier is not None
        self.copier.copy_out(kv_connector_metadata.out)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        copies = self._get_connector_metadata()
        assert isinstance(copies, StepCopies)
        assert self.copier is not None
        self.copier.copy_back(copies.back)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: the computing stream waits in `start_load_kv`."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to save: blocks are copied when they are about to be lost."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""

    def shutdown(self) -> None:
        if self.copier is not None:
            self.copier.close()
            self.copier = None


def host_tier(connector: KVConnectorBase_V1 | None) -> HostTierConnector | None:
    """Our connector, if the scheduler's is ours or has ours as a child of vLLM's `MultiConnector`."""
    if isinstance(connector, MultiConnector):
        found = (host_tier(child) for child in connector.sub_connectors)
        return next((tier for tier in found if tier is not None), None)
    return connector if isinstance(connector, HostTierConnector) else None
