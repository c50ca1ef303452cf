"""What becomes of KV blocks that an open stream must give up: computed again later, or swapped to the host tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stream2llm.costs import Costs, Mode, Preemption, Victim, decide
from stream2llm.vllm.offload import HostTierConnector, host_tier
from stream2llm.vllm.options import Options

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


@dataclass
class EvictionStatistics:
    """Counters since the engine started."""

    recomputed: int = 0  # victims of whose blocks some were dropped
    swapped: int = 0  # victims of whose blocks some were copied to the host tier
    tokens_recomputed: int = 0  # tokens dropped; what of them survives in the prefix cache is not computed again
    tokens_swapped: int = 0


class Eviction:
    """Decides for each victim, by its own exclusive blocks, and has the host tier keep what is worth it."""

    def __init__(self, block_tokens: int, tier: HostTierConnector | None = None, mode: Mode = Mode.COST) -> None:
        self._tier = tier
        self._mode = mode
        self._block_tokens = block_tokens
        self.statistics = EvictionStatistics()

    @classmethod
    def of(cls, options: Options, connector: KVConnectorBase_V1 | None, block_tokens: int) -> Eviction:
        """Without a host tier every victim is recomputed; raises `ValueError` if it was to be swapped."""
        tier = host_tier(connector)
        if options.preemption is Mode.SWAP and tier is None:
            raise ValueError("preemption 'swap' needs the host tier: start with --host-gib")
        return cls(block_tokens, tier, options.preemption)

    @property
    def allowed(self) -> bool:
        """Whether anybody may be made to give up blocks."""
        return self._mode is not Mode.OFF

    @property
    def decides(self) -> bool:
        """Whether there is anything to decide by costs."""
        return self._tier is not None and self._mode is Mode.COST

    def give_up(self, blocks: Sequence[KVCacheBlock], context_tokens: int, costs: Costs) -> None:
        """Take leave of blocks that are about to lose their last owner, those of the prefix's head first.

        `context_tokens`: the tokens in front of the first of them. To be called before they are freed.
        """
        kept = [block for block in blocks if block.block_hash is not None and not block.is_null]
        tokens = len(kept) * self._block_tokens
        if not tokens:
            return
        held = 0
        if self._tier is not None:
            decision = decide(Victim(tokens, context_tokens), costs, self._mode)
            if decision is not None and decision.preemption is Preemption.SWAP:
                held = self._tier.offload(kept) * self._block_tokens
        self.statistics.swapped += held > 0
        self.statistics.recomputed += held < tokens
        self.statistics.tokens_swapped += held
        self.statistics.tokens_recomputed += tokens - held

    def figures(self) -> dict[str, Any]:
        """The kind of preemption, `EvictionStatistics`, and the host tier's own, for the statistics op."""
        without_tier = self._tier is None and self.allowed
        preemption = Mode.RECOMPUTE if without_tier else self._mode
        tier = {"host_tier": asdict(self._tier.statistics())} if self._tier is not None else {}
        return {"preemption": preemption.value, **asdict(self.statistics), **tier}
