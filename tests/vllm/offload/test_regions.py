"""Every layout of the KV cache that vLLM has: what is copied as a block is what the layers see as that block."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    compute_layout_strides,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from stream2llm.vllm.offload.copier import DirectCopier
from stream2llm.vllm.offload.copies import BlockCopy
from stream2llm.vllm.offload.regions import block_regions, by_block

BLOCKS = 5
LAYERS = 3


def spec(heads: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=8, dtype=torch.float32)


def allocated(layout: KVCacheLayout, *specs: FullAttentionSpec) -> tuple[KVCacheConfig, dict[str, torch.Tensor]]:
    """The KV cache of `LAYERS` layers of each spec, placed and viewed by vLLM's own functions."""
    block_bytes = sum(LAYERS * each.page_size_bytes for each in specs)
    size, offset, placements = block_bytes * BLOCKS, 0, []
    for number, each in enumerate(specs):
        packed = block_bytes if layout.is_block_outermost else None
        layer_stride, block_stride, *_ = compute_layout_strides(
            each, BLOCKS, LAYERS, layout, fixed_strides=(None, packed, None, None, None)
        )
        layers = [f"{number}.{layer}" for layer in range(LAYERS)]
        placements.append(KVCacheTensor(size, layers, layer_stride, block_stride, offset))
        offset += LAYERS * (each.page_size_bytes if layout.is_block_outermost else layer_stride)
    names = [name for placement in placements for name in placement.layers]
    config = KVCacheConfig(BLOCKS, placements, [KVCacheGroupSpec(names, specs[0])])
    buffer = torch.zeros(size, dtype=torch.int8)
    views: dict[str, torch.Tensor] = {}
    for each, placement in zip(specs, placements, strict=True):
        views |= zip(placement.layers, create_kv_cache_views(buffer, each, BLOCKS, layout, placement), strict=True)
    return config, views


@pytest.mark.parametrize(
    ("layout", "heads"),
    [
        *((layout, (2,)) for layout in KVCacheLayout),
        # vLLM packs the heads of all layers together in BHLNC: one page size only.
        *((layout, (2, 4)) for layout in KVCacheLayout if layout is not KVCacheLayout.BHLNC),
    ],
    ids=str,
)
def test_a_block_that_is_copied_out_and_back_elsewhere_is_the_same_in_every_layer(
    layout: KVCacheLayout, heads: tuple[int, ...]
) -> None:
    config, views = allocated(layout, *(spec(count) for count in heads))
    for view in views.values():
        view.copy_(torch.rand(view.shape))
    before = {name: view.clone() for name, view in views.items()}
    regions = block_regions(config, views)
    copier = DirectCopier(regions, slots=2)

    copier.copy_out([BlockCopy(1, 0), BlockCopy(3, 1)])
    copier.copy_back([BlockCopy(4, 0), BlockCopy(2, 1)])

    assert sum(region.shape[1] for region in regions) == config.kv_cache_tensors[0].size // BLOCKS
    for name, view in views.items():
        for block, source in enumerate([0, 1, 3, 3, 1]):
            assert torch.equal(view[block], before[name][source]), (name, block)


def test_a_placement_that_does_not_fit_the_allocation_is_refused() -> None:
    config, views = allocated(KVCacheLayout.LBNHC, spec(2))
    config.kv_cache_tensors[0].layer_stride *= 2
    with pytest.raises(ValueError, match="does not lie as its configuration says"):
        block_regions(config, views)


@pytest.mark.parametrize("layout", KVCacheLayout)
def test_regions_of_one_size_are_one_view_by_block(layout: KVCacheLayout) -> None:
    config, views = allocated(layout, spec(2))
    regions = block_regions(config, views)
    (view,) = by_block(regions)
    assert view.shape == (BLOCKS, len(regions), regions[0].shape[1])
    for part, region in enumerate(regions):
        region.fill_(part + 1)
        assert view[:, part].eq(part + 1).all()


def test_regions_of_two_sizes_and_of_two_allocations_are_views_of_their_own() -> None:
    config, views = allocated(KVCacheLayout.LBNHC, spec(2), spec(4))
    assert [view.shape[1] for view in by_block(block_regions(config, views))] == [LAYERS, LAYERS]
    apart = tuple(torch.zeros(BLOCKS, 16, dtype=torch.int8) for _ in range(3))
    assert [view.shape[1] for view in by_block(apart)] == [1, 1, 1]
