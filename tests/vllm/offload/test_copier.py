"""Both copiers against a plain reference: whatever overlaps with whatever, no copy is early, late or elsewhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stream2llm.vllm.offload.copier import Copier, DirectCopier, make_copier
from stream2llm.vllm.offload.copies import BlockCopy
from stream2llm.vllm.offload.staged import StagedCopier

BLOCKS, SLOTS, SIZES = 12, 8, (16, 40)
MakeStreams = Callable[..., Any]


def memory(*, words: bool) -> tuple[torch.Tensor, ...]:
    """Regions of `SIZES` bytes a block; without `words`, of one byte more, so not of whole words."""
    return tuple(torch.zeros(BLOCKS, size + (not words), dtype=torch.int8) for size in SIZES)


def test_the_cpu_engine_gets_the_direct_copier() -> None:
    assert isinstance(make_copier(memory(words=True), SLOTS), DirectCopier)


class Reference:
    """What each block and slot holds, one number for all bytes of it, if every step is done at once and in order."""

    def __init__(self) -> None:
        self.blocks, self.slots = [0] * BLOCKS, [0] * SLOTS

    def copy_out(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            self.slots[copy.slot] = self.blocks[copy.block]

    def copy_back(self, copies: list[BlockCopy]) -> None:
        for copy in copies:
            self.blocks[copy.block] = self.slots[copy.slot]

    def write(self, blocks: list[int], value: int) -> None:
        for block in blocks:
            self.blocks[block] = value


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["direct", "staged", "staged, not in words"])
def test_random_steps_leave_what_a_plain_reference_leaves(kind: str, seed: int, thread_streams: MakeStreams) -> None:
    """Steps as the engine makes them: copies out, copies back, then blocks are written; all streams have delays."""
    dice = random.Random(seed)
    regions = memory(words=kind != "staged, not in words")
    streams = thread_streams(lambda: dice.choice([0, 0, 0.002]), computing=kind != "direct")
    copier: Copier = DirectCopier(regions, SLOTS)
    if kind != "direct":
        block_bytes = sum(region.shape[1] for region in regions)
        host = torch.zeros(SLOTS, block_bytes, dtype=torch.int8)
        # Two blocks at a time, so that buffers are reused within a step.
        copier = StagedCopier(regions, host, streams, staging_bytes=2 * block_bytes)
    reference = Reference()

    def write(count: int, value: int) -> None:
        blocks = dice.sample(range(BLOCKS), count)
        reference.write(blocks, value)
        streams.compute.run(lambda: [region.index_fill_(0, torch.tensor(blocks), value) for region in regions])

    for step in range(1, 30):
        slots = dice.sample(range(SLOTS), dice.choice([0, 0, 1, 3, SLOTS]))
        out = [BlockCopy(dice.randrange(BLOCKS), slot) for slot in slots]
        copier.copy_out(out)
        reference.copy_out(out)
        write(4, -1)  # freed blocks are poisoned as soon as they may be overwritten
        blocks = dice.sample(range(BLOCKS), dice.choice([0, 0, 1, 3, BLOCKS]))
        back = [BlockCopy(block, dice.randrange(SLOTS)) for block in blocks]
        copier.copy_back(back)
        reference.copy_back(back)
        if dice.random() < 0.3:
            streams.compute.record().wait(60)
            for region in regions:
                assert region.eq(torch.tensor(reference.blocks, dtype=torch.int8)[:, None]).all(), step
        write(3, step)
    streams.compute.record().wait(60)
    copier.close()


def test_computing_goes_on_while_blocks_are_copied_to_the_host(thread_streams: MakeStreams) -> None:
    regions = memory(words=True)
    host = torch.zeros(SLOTS, sum(SIZES), dtype=torch.int8)
    copier = StagedCopier(regions, host, thread_streams(lambda: 0.2))
    regions[0][5] = regions[1][5] = 7

    started = time.perf_counter()
    copier.copy_out([BlockCopy(5, 2)])
    assert time.perf_counter() - started < 0.15, "the copy to the host was waited for"
    regions[0][5] = regions[1][5] = 9  # the next owner's
    copier.close()

    assert host[2].eq(7).all()
