"""What the scheduler tells the workers to copy in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


class BlockCopy(NamedTuple):
    """A KV block of the device and the slot of the host tier that it is copied to, or from."""

    block: int
    slot: int


@dataclass(frozen=True)
class StepCopies(KVConnectorMetadata):
    """The copies of one step: `out` (block to slot) at the fence, then `back` (slot to block), then the forward pass.

    No slot occurs twice in `out`, no block twice in `back`.
    """

    out: tuple[BlockCopy, ...] = ()
    back: tuple[BlockCopy, ...] = ()


def runs(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Join copies of neighbours to neighbours: (first source, first target, length) of each run."""
    start = 0
    for end in range(1, len(pairs) + 1):
        source, target = pairs[start]
        if end == len(pairs) or pairs[end] != (source + end - start, target + end - start):
            yield source, target, end - start
            start = end
