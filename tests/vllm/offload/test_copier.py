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
MakeStreams = Callable[[Callable[[], float]], Any]


def memory(*, words: bool) -> tuple[torch.Tensor, ...]:
    """Regions of `SIZES` bytes a block; without `words`, of one byte more, so not of whole words."""
    return tuple(torch.zeros(BLOCKS, size + (not words), dtype=torch.int8) for size in SIZES)


def test_the_cpu_engine_gets_the_direct_copier() -> None:
    assert isinstance(make_copier(memory(words=True), SLOTS), DirectCopier)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["direct", "staged", "staged, not in words"])
def test_random_steps_leave_what_a_plain_reference_leaves(kind: str, seed: int, thread_streams: MakeStreams) -> None:
    """Steps as the engine makes them: copies out, copies back, then every block may be written."""
    dice = random.Random(seed)
    regions = memory(words=kind != "staged, not in words")
    copier: Copier
    if kind == "direct":
        copier = DirectCopier(regions, SLOTS)
    else:
        sizes = sum(region.shape[1] for region in regions)
        streams = thread_streams(lambda: dice.choice([0, 0, 0.002]))
        # Two blocks at a time, so that buffers are reused within a step.
        copier = StagedCopier(regions, torch.zeros(SLOTS, sizes, dtype=torch.int8), streams, staging_bytes=2 * sizes)
    blocks, slots = [0] * BLOCKS, [0] * SLOTS
    for step in range(1, 40):
        out = [
            BlockCopy(dice.randrange(BLOCKS), slot)
            for slot in dice.sample(range(SLOTS), dice.choice([0, 0, 1, 3, SLOTS]))
        ]
        back = [
            BlockCopy(block, dice.randrange(SLOTS))
            for block in dice.sample(range(BLOCKS), dice.choice([0, 0, 1, 3, BLOCKS]))
        ]
        copier.copy_out(out)
        for copy in out:
            slots[copy.slot] = blocks[copy.block]
        written = dice.sample(range(BLOCKS), 4)
        for block in written:  # freed blocks are poisoned as soon as they are copied
            blocks[block] = -1
            for region in regions:
                region[block] = -1
        copier.copy_back(back)
        for copy in back:
            blocks[copy.block] = slots[copy.slot]
        for region in regions:
            assert region.eq(torch.tensor(blocks, dtype=torch.int8)[:, None]).all(), step
        for block in dice.sample(range(BLOCKS), 3):
            blocks[block] = step
            for region in regions:
                region[block] = step
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
