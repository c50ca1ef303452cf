"""KV blocks held for an open stream between its versions, so that an idle stream needs no request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


@dataclass(frozen=True, slots=True)
class _Pin:
    group: int  # of the KV cache
    end: int  # the block holds the KV of tokens up to this position
    block: KVCacheBlock


class Pins:
    """References of one stream to cached blocks. A block let go of stays in the prefix cache until it is needed."""

    __slots__ = ("_longest", "_manager", "_pins", "tokens")

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._pins: list[_Pin] = []
        self._longest = 0
        self.tokens = 0
        """The length of the prefix whose blocks are held, in every group of the KV cache."""

    def __bool__(self) -> bool:
        return bool(self._pins)

    @property
    def exclusive_blocks(self) -> int:
        """The number of blocks that nobody else holds: what `release` gives back to the pool."""
        return sum(pin.block.ref_cnt == 1 for pin in self._pins)

    def exclusive(self) -> tuple[list[KVCacheBlock], int]:
        """The blocks that nobody else holds, in order, and the end of the prefix before the first of them."""
        mine = [pin for pin in self._pins if pin.block.ref_cnt == 1]
        before = [pin.end for pin in self._pins if mine and pin.end < mine[0].end]
        return [pin.block for pin in mine], max(before, default=0)

    def take_over(self, request_id: str) -> None:
        """Pin the cached blocks of a request that is about to free them; what was pinned before is released.

        Only full blocks have a hash, and only they can be found again. A request that holds none changes nothing.
        """
        pins = [
            _Pin(group, (index + 1) * manager.block_size, block)
            for group, (manager, blocks) in enumerate(
                zip(
                    self._manager.coordinator.single_type_managers,
                    self._manager.get_blocks(request_id).blocks,
                    strict=True,
                )
            )
            for index, block in enumerate(blocks)
            if block.block_hash is not None and not block.is_null
        ]
        if pins:
            self._manager.block_pool.touch([pin.block for pin in pins])
            self._replace(pins)

    def trim(self, tokens: int) -> None:
        """Let go of the blocks that reach beyond the first `tokens` tokens: a new version differs from there."""
        if self._longest > tokens:
            kept = [pin for pin in self._pins if pin.end <= tokens]
            self._manager.block_pool.touch([pin.block for pin in kept])
            self._replace(kept)

    def release(self) -> None:
        if self._pins:
            self._replace([])

    def _replace(self, pins: list[_Pin]) -> None:
        """Hold `pins`, whose references were taken already, instead of the present ones."""
        released, self._pins = self._pins, pins
        ends = {pin.group: pin.end for pin in pins}  # the last of each group, since they are in order
        self._longest = max(ends.values(), default=0)
        self.tokens = min(ends.values()) if len(ends) == self._manager.num_kv_cache_groups else 0
        # Last first: of what is free to be overwritten, the tail of a prefix goes before its head.
        self._manager.block_pool.free_blocks([pin.block for pin in reversed(released)])
