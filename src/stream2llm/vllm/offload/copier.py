"""The worker's side of the host tier: copies KV blocks between the device and host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stream2llm.vllm.offload.copies import BlockCopy, runs
from stream2llm.vllm.offload.regions import Regions, by_block


class Copier(Protocol):
    """Copies as one step's `StepCopies` say; `copy_out` comes first in each step, even if there is nothing to do."""

    def copy_out(self, copies: Sequence[BlockCopy]) -> None:
        """Block to slot. On return later work of the device may overwrite the blocks."""

    def copy_back(self, copies: Sequence[BlockCopy]) -> None:
        """Slot to block. On return later work of the device finds the blocks filled."""

    def close(self) -> None:
        """Wait for what is under way; let go of the host memory."""


class DirectCopier:
    """For a KV cache in host memory (the CPU engine): copies at once, block by block.

    NumPy's assignment is a plain memory copy for each part of a block: two to six times as fast as indexing with lists
    of rows, which goes through a temporary.
    """

    def __init__(self, regions: Regions, slots: int) -> None:
        self._blocks = [view.numpy() for view in by_block(regions)]
        # Filled now, so that the memory is committed at the start and not at the first eviction.
        self._slots = [np.full((slots, *blocks.shape[1:]), 0, dtype=np.int8) for blocks in self._blocks]

    def copy_out(self, copies: Sequence[BlockCopy]) -> None:
        rows = _row_ranges(copies)
        for blocks, slots in zip(self._blocks, self._slots, strict=True):
            for block, slot in rows:
                slots[slot] = blocks[block]

    def copy_back(self, copies: Sequence[BlockCopy]) -> None:
        rows = _row_ranges(copies)
        for blocks, slots in zip(self._blocks, self._slots, strict=True):
            for block, slot in rows:
                blocks[block] = slots[slot]

    def close(self) -> None:
        self._blocks.clear()
        self._slots.clear()


def _row_ranges(copies: Sequence[BlockCopy]) -> list[tuple[slice, slice]]:
    """The blocks' and the slots' rows, in the order of the blocks (somewhat faster), neighbours joined."""
    return [(slice(block, block + count), slice(slot, slot + count)) for block, slot, count in runs(sorted(copies))]


def make_copier(regions: Regions, slots: int) -> Copier:
    device = regions[0].device
    if device.type == "cpu":
        return DirectCopier(regions, slots)
    from stream2llm.vllm.offload.cuda import CudaStreams, pinned_memory, unpin
    from stream2llm.vllm.offload.staged import StagedCopier

    slot_bytes = sum(region.shape[1] for region in regions)
    memory = pinned_memory(slots, slot_bytes)
    return StagedCopier(regions, memory, CudaStreams(device), on_close=lambda: unpin(memory))
