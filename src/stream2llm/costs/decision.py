"""How to preempt a victim: recompute its KV blocks later, or swap them out and in again. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Mode(StrEnum):
    """How victims are preempted, for production (`cost`) and for ablations."""

    COST = "cost"  # whatever is cheaper for the victim
    RECOMPUTE = "recompute"
    SWAP = "swap"  # recompute where host memory is full
    OFF = "off"  # nobody is preempted


class Preemption(StrEnum):
    """What happens to a victim's own computed KV blocks."""

    RECOMPUTE = "recompute"  # dropped, and prefilled again when needed
    SWAP = "swap"  # copied to host memory, and back when needed


class Costs(Protocol):
    """The prices that a decision needs, in seconds; see `CostProfile`."""

    def prefill_seconds(self, new_tokens: float, context_tokens: float = 0, /) -> float: ...
    def copy_out_seconds(self, tokens: float, /) -> float: ...
    def copy_in_seconds(self, tokens: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Victim:
    """What preempting somebody would cost him.

    `exclusive_tokens`: computed tokens in the blocks that he alone holds; blocks that others share, or that stay in the
    prefix cache, cost nothing and are not counted. `context_tokens`: the tokens in front of them, to which they attend
    when they are computed again. `on_host`: the exclusive tokens that have a copy in host memory already.
    """

    exclusive_tokens: int
    context_tokens: int = 0
    on_host: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.on_host <= self.exclusive_tokens or self.context_tokens < 0:
            raise ValueError(f"token counts of a victim are not negative and on_host is a part of the whole: {self}")


@dataclass(frozen=True, slots=True)
class Decision:
    """How to preempt a victim, and the price of both ways. `swap_seconds` is infinite where host memory is full."""

    preemption: Preemption
    recompute_seconds: float
    swap_seconds: float

    @property
    def seconds(self) -> float:
        """The price of what was decided: what it takes until the victim is where it was."""
        return self.swap_seconds if self.preemption is Preemption.SWAP else self.recompute_seconds


def decide(victim: Victim, costs: Costs, mode: Mode = Mode.COST, host_tokens: float = math.inf) -> Decision | None:
    """How to preempt `victim`; None if nobody may be preempted (`Mode.OFF`).

    Compares T_prefill(exclusive tokens) with T_out(those not on the host) + T_in(exclusive tokens), all of the victim,
    not of whoever takes its place. `host_tokens`: the tokens for which there is room in host memory; without room the
    victim is recomputed in every mode. Under `costs`, the price in mode `cost` is never above that in another mode.
    """
    if mode is Mode.OFF:
        return None
    recompute = costs.prefill_seconds(victim.exclusive_tokens, victim.context_tokens)
    to_copy = victim.exclusive_tokens - victim.on_host
    if to_copy > host_tokens:
        return Decision(Preemption.RECOMPUTE, recompute, math.inf)
    swap = costs.copy_out_seconds(to_copy) + costs.copy_in_seconds(victim.exclusive_tokens)
    swaps = victim.exclusive_tokens > 0 and (mode is Mode.SWAP or (mode is Mode.COST and swap < recompute))
    return Decision(Preemption.SWAP if swaps else Preemption.RECOMPUTE, recompute, swap)
