"""What becomes of KV blocks that an open stream must give up: computed again later, or swapped to the host tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm.costs import Costs, Mode, Preemption, Victim, decide
from stream2llm.vllm.offload import HostTierConnector, host_tier
from stream2llm.vllm.subject import costs_for

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

_MODES = (Mode.COST, Mode.RECOMPUTE, Mode.SWAP)


@dataclass
class EvictionStatistics:
    """Counters since the engine started."""

    recomputed: int = 0  # victims of whose blocks some were dropped
    swapped: int = 0  # victims of whose blocks some were copied to the host tier
    tokens_recomputed: int = 0  # tokens dropped; what of them survives in the prefix cache is not computed again
    tokens_swapped: int = 0


class Eviction:
    """Decides for each victim, by its own exclusive blocks, and has the host tier keep what is worth it."""

    def __init__(
        self,
        block_tokens: int,
        tier: HostTierConnector | None = None,
        costs: Costs | None = None,
        mode: Mode = Mode.COST,
    ) -> None:
        """`costs` are needed where there is a `tier`."""
        self._tier = tier
        self._costs = costs
        self._mode = mode
        self._block_tokens = block_tokens
        self.statistics = EvictionStatistics()

    @classmethod
    def of(cls, config: VllmConfig, connector: KVConnectorBase_V1 | None, block_tokens: int) -> Eviction:
        """As the server was started: `--additional-config '{"stream2llm": {"preemption": ..., "profile": ...}}'`.

        Without a host tier every victim is recomputed. Raises `ValueError` for an option that is not understood, and
        `ProfileError` for a profile that is not of this engine.
        """
        tier = host_tier(connector)
        options = _options(config.additional_config)
        mode = _mode(options.get("preemption", Mode.COST), tier is not None)
        path = options.get("profile")
        costs = costs_for(config, Path(path) if path is not None else None) if tier is not None else None
        return cls(block_tokens, tier, costs, mode)

    def give_up(self, blocks: Sequence[KVCacheBlock], context_tokens: int) -> None:
        """Take leave of blocks that are about to lose their last owner, those of the prefix's head first.

        `context_tokens`: the tokens in front of the first of them. To be called before they are freed.
        """
        kept = [block for block in blocks if block.block_hash is not None and not block.is_null]
        tokens = len(kept) * self._block_tokens
        if not tokens:
            return
        held = 0
        if self._tier is not None and self._costs is not None:
            decision = decide(Victim(tokens, context_tokens), self._costs, self._mode)
            if decision is not None and decision.preemption is Preemption.SWAP:
                held = self._tier.offload(kept) * self._block_tokens
        self.statistics.swapped += held > 0
        self.statistics.recomputed += held < tokens
        self.statistics.tokens_swapped += held
        self.statistics.tokens_recomputed += tokens - held

    def figures(self) -> dict[str, Any]:
        """`EvictionStatistics`, and the host tier's own, for the statistics op."""
        tier = {"host_tier": asdict(self._tier.statistics())} if self._tier is not None else {}
        return {**asdict(self.statistics), **tier}


def _options(additional_config: Any) -> dict[str, Any]:
    options = additional_config.get("stream2llm", {}) if isinstance(additional_config, dict) else {}
    unknown = set(options) - {"preemption", "profile"}
    if unknown:
        raise ValueError(f"additional config stream2llm: unknown option {', '.join(sorted(unknown))}")
    return dict(options)


def _mode(name: str, has_tier: bool) -> Mode:
    if name not in _MODES:
        raise ValueError(f"preemption {name!r}: choose one of {', '.join(_MODES)}")
    mode = Mode(name)
    if mode is Mode.SWAP and not has_tier:
        raise ValueError("preemption 'swap' needs the host tier: start with --host-gib")
    return mode
