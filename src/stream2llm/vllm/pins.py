"""KV blocks held for somebody who has no request running: a stream between its versions, a preempted request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


@dataclass(frozen=True, slots=True)
class _Pin:
    end: int  # the block holds the KV of tokens up to this position
    group: int  # of the KV cache
    block: KVCacheBlock


class Pins:
    """References of one holder to cached blocks. A block let go of stays in the prefix cache until it is needed."""

    __slots__ = ("_manager", "_pins", "tokens")

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._pins: list[_Pin] = []  # in the order of their ends
        self.tokens = 0
        """The length of the prefix whose blocks are held, in every group of the KV cache."""

    def __bool__(self) -> bool:
        return bool(self._pins)

    def blocks(self) -> Iterator[KVCacheBlock]:
        """The blocks held, in the order of the prefix."""
        return (pin.block for pin in self._pins)

    @property
    def exclusive_blocks(self) -> int:
        """The number of blocks that nobody else holds: what `release` gives back to the pool."""
        return sum(pin.block.ref_cnt == 1 for pin in self._pins)

    def tail(self, blocks: int) -> tuple[list[KVCacheBlock], int]:
        """The last `blocks` blocks that nobody else holds, in order, and the end of the prefix before them."""
        mine = [pin for pin in self._pins if pin.block.ref_cnt == 1]
        tail = mine[max(0, len(mine) - blocks) :]
        before = [pin.end for pin in self._pins if tail and pin.end < tail[0].end]
        return [pin.block for pin in tail], max(before, default=0)

    def take_over(self, request_id: str) -> None:
        """Pin the cached blocks of a request that is about to free them; what was pinned before is released.

        Only full blocks have a hash, and only they can be found again. A request that holds none changes nothing.
        """
        groups = zip(
            self._manager.coordinator.single_type_managers, self._manager.get_blocks(request_id).blocks, strict=True
        )
        pins = [
            _Pin((index + 1) * manager.block_size, group, block)
            for group, (manager, blocks) in enumerate(groups)
            for index, block in enumerate(blocks)
            if block.block_hash is not None and not block.is_null
        ]
        if not pins:
            return
        if self._manager.num_kv_cache_groups > 1:
            pins.sort(key=lambda pin: pin.end)
        self._manager.block_pool.touch([pin.block for pin in pins])
        released, self._pins = self._pins, pins
        self._released(released)

    def trim(self, tokens: int) -> None:
        """Let go of the blocks that reach beyond the first `tokens` tokens: a new version differs from there."""
        kept = len(self._pins)
        while kept and self._pins[kept - 1].end > tokens:
            kept -= 1
        self._keep(kept)

    def shrink(self, blocks: int) -> None:
        """Let go of the end of the prefix, so that `blocks` blocks go back to the pool (all, if there are fewer)."""
        kept = len(self._pins)
        while kept and blocks > 0:
            kept -= 1
            blocks -= self._pins[kept].block.ref_cnt == 1
        # A prefix ends at one place in all groups.
        while kept and kept < len(self._pins) and self._pins[kept - 1].end == self._pins[kept].end:
            kept -= 1
        self._keep(kept)

    def release(self) -> None:
        self._keep(0)

    def _keep(self, count: int) -> None:
        if count < len(self._pins):
            released = self._pins[count:]
            del self._pins[count:]
            self._released(released)

    def _released(self, released: list[_Pin]) -> None:
        """Give back references; `self._pins` is what is held from now on."""
        groups = self._manager.num_kv_cache_groups
        ends: dict[int, int] = {}
        for pin in reversed(self._pins):
            ends.setdefault(pin.group, pin.end)
            if len(ends) == groups:
                break
        self.tokens = min(ends.values()) if len(ends) == groups else 0
        # Last first: of what is free to be overwritten, the tail of a prefix goes before its head.
        self._manager.block_pool.free_blocks([pin.block for pin in reversed(released)])


class KeptBlocks:
    """The blocks of complete requests that were preempted by a plan, until they run again."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._pins: dict[str, Pins] = {}

    def __bool__(self) -> bool:
        return bool(self._pins)

    def items(self) -> Iterable[tuple[str, Pins]]:
        """By request id."""
        return self._pins.items()

    def keep(self, request_id: str) -> None:
        """Pin the blocks of a running request, which is about to free them."""
        pins = self._pins.setdefault(request_id, Pins(self._manager))
        pins.take_over(request_id)

    def of(self, request_id: str) -> Pins | None:
        return self._pins.get(request_id)

    def release(self, request_id: str) -> None:
        pins = self._pins.pop(request_id, None)
        if pins is not None:
            pins.release()

    def release_all(self) -> None:
        for request_id in list(self._pins):
            self.release(request_id)
