"""The scheduler's side of the host tier: what to copy out, what a request finds there, what to copy back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from stream2llm.hostpool import HostPool
from stream2llm.vllm.offload.copies import BlockCopy, StepCopies

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

_GROUP = 0  # of the KV cache; one group is all that is supported


@dataclass(frozen=True, slots=True)
class HostTierStatistics:
    """Counters since the engine started, in KV blocks; `held_blocks` is the present state."""

    capacity_blocks: int
    held_blocks: int
    copied_out: int
    copied_back: int
    already_held: int  # offloaded again while their copy was there: nothing had to be copied
    refused: int  # offloaded when every slot was in use by the same step
    evicted: int  # gave their slot to another block


class HostTier:
    """Plans the copies of each step. `block_tokens` is the size of a KV block in tokens."""

    def __init__(self, slots: int, block_tokens: int) -> None:
        self._pool = HostPool(slots)
        self._block_tokens = block_tokens
        self._out: list[BlockCopy] = []
        self._back: list[BlockCopy] = []
        self._matched: dict[str, int] = {}  # by request id: the first block that the last look-up found here
        self._copied_out = self._copied_back = self._already_held = self._refused = 0

    def offload(self, blocks: Sequence[KVCacheBlock]) -> int:
        """Copy blocks out in the next step, those of a prefix head first; how many of them the tier will hold.

        Only full blocks have a hash, and only they can be found again: others are passed over. To be called between
        steps: `schedule()` gives hashes to blocks before they are computed, and a hash stands for computed content
        only once their step has been handed to the workers.
        """
        kept = 0
        for block in blocks:
            block_hash = block.block_hash
            if block_hash is None or block.is_null:
                continue
            if block_hash in self._pool:
                self._pool.touch(block_hash)
                self._already_held += 1
                kept += 1
                continue
            slot = self._pool.store(block_hash)
            if slot is None:
                self._refused += 1
                continue
            self._out.append(BlockCopy(block.block_id, slot))
            self._copied_out += 1
            kept += 1
        return kept

    def held_tokens(self, request: Request, computed_tokens: int) -> int:
        """Tokens after the first `computed_tokens` that could be copied back: whole blocks, and not the last token,
        which the model must see to answer."""
        first = computed_tokens // self._block_tokens
        most = max(0, (request.num_tokens - 1) // self._block_tokens - first)
        return self._pool.prefix(self._hashes(request, first, most)) * self._block_tokens

    def match(self, request: Request, computed_tokens: int) -> int:
        """As `held_tokens`, on behalf of the scheduler, which may call `load` next."""
        tokens = self.held_tokens(request, computed_tokens)
        if tokens:
            self._matched[request.request_id] = computed_tokens // self._block_tokens
        else:
            self.forget(request)
        return tokens

    def load(self, request: Request, block_ids: Sequence[int], tokens: int) -> None:
        """Copy back the `tokens` that `match` found, into the request's blocks; 0: they are not wanted."""
        first = self._matched.pop(request.request_id, None)
        count = tokens // self._block_tokens
        if not count:
            return
        assert first is not None, "tokens to load were not matched here"
        for index, block_hash in enumerate(self._hashes(request, first, count), start=first):
            self._back.append(BlockCopy(block_ids[index], self._pool.touch(block_hash)))
        self._copied_back += count

    def forget(self, request: Request) -> None:
        self._matched.pop(request.request_id, None)

    def take_copies(self) -> StepCopies:
        """The step's copies. From here on the slots may be reused: later copies come after these on the workers."""
        copies = StepCopies(tuple(self._out), tuple(self._back))
        self._out.clear()
        self._back.clear()
        self._pool.settle()
        return copies

    def reset(self) -> None:
        """Forget every block, and what was to be copied out."""
        assert not self._back, "a load was planned and not taken"
        self._out.clear()
        self._matched.clear()
        self._pool.clear()

    def statistics(self) -> HostTierStatistics:
        return HostTierStatistics(
            capacity_blocks=self._pool.capacity,
            held_blocks=len(self._pool),
            copied_out=self._copied_out,
            copied_back=self._copied_back,
            already_held=self._already_held,
            refused=self._refused,
            evicted=self._pool.evicted,
        )

    @staticmethod
    def _hashes(request: Request, first: int, count: int) -> Iterator[bytes]:
        for block_hash in request.block_hashes[first : first + count]:
            yield make_block_hash_with_group_id(block_hash, _GROUP)
