"""Where the bytes of each KV block lie, whatever the layout of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

Regions = tuple[torch.Tensor, ...]
"""Views of the KV cache, int8 of shape (blocks, bytes) each. Row b of all of them together is what block b holds."""


def block_regions(kv_cache: KVCacheConfig, kv_caches: Mapping[str, torch.Tensor]) -> Regions:
    """Find the regions from the placement in the KV-cache configuration.

    `kv_caches` are the layers' views by name, all of one allocation. A layout that has the layers outermost gives a
    region for each layer (for each layer and KV head, if the heads come next); one that has the blocks outermost
    gives a single region, whose rows hold all layers. Raises `ValueError` if the placement is not as documented.
    """
    blocks = kv_cache.num_blocks
    regions: dict[int, torch.Tensor] = {}  # by address: tensors of one packed block share their region
    for placement in kv_cache.kv_cache_tensors:
        layer = kv_caches[placement.layers[0]]
        allocation = torch.empty(0, dtype=torch.int8, device=layer.device).set_(layer.untyped_storage())
        span = blocks * placement.block_stride
        layers_outermost = placement.layer_stride >= span
        start = placement.offset if layers_outermost else 0
        size = len(placement.layers) * placement.layer_stride if layers_outermost else span
        if size % span or start + size > allocation.numel():
            raise ValueError(
                f"the KV cache of {placement.layers[0]} and others does not lie as its configuration says "
                f"({allocation.numel()} bytes, {placement}); start without the host tier"
            )
        for region in allocation[start : start + size].view(-1, blocks, placement.block_stride):
            regions.setdefault(region.data_ptr(), region)
    return tuple(regions.values())


def by_block(regions: Regions) -> list[torch.Tensor]:
    """Views of shape (blocks, parts, bytes): regions of one size that lie at equal distances, joined."""
    views: list[torch.Tensor] = []
    start = 0
    for end in range(1, len(regions) + 1):
        if end < len(regions) and _continues(regions[start : end + 1]):
            continue
        first, parts = regions[start], end - start
        distance = regions[start + 1].data_ptr() - first.data_ptr() if parts > 1 else 0
        shape = (first.shape[0], parts, first.shape[1])
        views.append(first.as_strided(shape, (first.stride(0), distance, 1)))
        start = end
    return views


def _continues(regions: Regions) -> bool:
    """Whether the last region follows as the one before it did."""
    *_, before, last = regions
    distance = regions[1].data_ptr() - regions[0].data_ptr()
    same_kind = (last.shape, last.stride()) == (before.shape, before.stride())
    same_allocation = last.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
    return same_kind and same_allocation and last.data_ptr() - before.data_ptr() == distance > 0
