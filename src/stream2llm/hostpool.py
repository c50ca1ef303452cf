"""Which slot of the host tier holds which KV block: decisions only, no memory and no device. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class HostPool:
    """A fixed number of slots, each holding one KV block, found by the block's hash.

    What is stored or loaded for a step is *busy* until `settle` ends the step: it is not evicted meanwhile, so no slot
    has two uses in one step. Everything else may be evicted, least recently used first. Callers name the blocks of a
    prefix head first; its tail is evicted first, since a tail cannot be found without its head.
    """

    def __init__(self, capacity: int) -> None:
        """`capacity` is in slots; raises `ValueError` if there is none."""
        if capacity < 1:
            raise ValueError(f"a host pool needs at least one slot, got {capacity}")
        self.capacity = capacity
        self.evicted = 0
        """Blocks that gave their slot to another since the pool was made."""
        self._free = list(range(capacity - 1, -1, -1))  # popped from the end: slots fill in ascending order
        self._idle: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._busy: dict[bytes, int] = {}

    def __len__(self) -> int:
        """The number of blocks held."""
        return len(self._idle) + len(self._busy)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._idle or block_hash in self._busy

    def prefix(self, block_hashes: Iterable[bytes]) -> int:
        """How many of the hashes, from the first on, are held without a gap."""
        held = 0
        for block_hash in block_hashes:
            if block_hash not in self:
                break
            held += 1
        return held

    def store(self, block_hash: bytes) -> int | None:
        """Give the block a slot to be written in this step; None, and nothing changes, if all slots are busy.

        Raises `ValueError` if the block is held already: use `touch`.
        """
        if block_hash in self:
            raise ValueError("the block is held already")
        if self._free:
            slot = self._free.pop()
        elif self._idle:
            _, slot = self._idle.popitem(last=False)
            self.evicted += 1
        else:
            return None
        self._busy[block_hash] = slot
        return slot

    def touch(self, block_hash: bytes) -> int:
        """The slot of a held block that is used in this step; raises `KeyError` if it is not held."""
        if block_hash not in self._busy:
            self._busy[block_hash] = self._idle.pop(block_hash)
        return self._busy[block_hash]

    def settle(self) -> None:
        """End the step: what was busy becomes the most recently used."""
        self._idle.update(reversed(self._busy.items()))
        self._busy.clear()

    def clear(self) -> None:
        """Forget every block."""
        self._idle.clear()
        self._busy.clear()
        self._free = list(range(self.capacity - 1, -1, -1))
