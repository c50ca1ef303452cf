"""Decode protection: how many context tokens a step may compute while requests decode. Pure: updates are new values.

Not in the paper, whose decodes run elsewhere. Every token of an open stream that shares a step with decodes makes their
inter-token latency (ITL) longer, on a GPU little up to some number, on a CPU from the first on. So it is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

ITL_FACTOR = 1.5
"""The default: open streams may make a step of decodes half as long again."""

_WEIGHT = 0.1  # of one observation
_MARGIN = 0.5  # of what the factor allows, for that steps vary
_OUTLIER = 2.0  # a step longer than this many times its expectation counts as that: somebody else was on the machine
_GROWTH = 1.5  # the most by which the cap grows at once
_MOST = float(1 << 20)  # no step computes more
_FIRST = 8  # steps of decodes alone before context tokens join them
_PROBE = 32  # every so many steps one goes without context tokens, to know what decodes alone take
_RARE = 512  # where a single token is too dear, one step in so many computes `_BURST`: far fewer than a P99 sees
_BURST_WEIGHT = 0.3  # of such a step: there are few of them
_BURST = 16  # also what must fit before every step computes some again: one token costs nearly as much as a few


@dataclass(frozen=True, slots=True)
class DecodePace:
    """What steps with decodes take, with and without context tokens, as a running mean; seconds.

    `factor`: the ITL that open streams may cause, over the ITL without them; 1.1 means 10 % more. `alone`: a step of
    decodes only. `excess` and `tokens`: what context tokens added to a step, and how many they were. `cap`: the most
    context tokens for the next step with decodes, 0 where a single one is too dear. `mixed` and `pure`: the steps with
    and without context tokens since the last of the other kind; `known`: how many steps `alone` was learned from.
    """

    factor: float
    cap: float = 16.0
    alone: float = 0.0
    excess: float = 0.0
    tokens: float = 16.0
    mixed: int = 0
    pure: int = 0
    known: int = 0

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ValueError(f"the ITL factor must be above 1, got {self.factor}; leave it out for no protection")

    def context_tokens(self, only_decodes: bool = True) -> int:
        """The most context tokens for the next step with decodes; none in one that is to measure decodes alone, which
        tells nothing unless there are `only_decodes` besides."""
        if only_decodes and (self.known < _FIRST or self.mixed >= _PROBE):
            return 0
        if self.cap < 1:
            return _BURST if self.pure >= _RARE or not only_decodes else 0
        return int(self.cap)

    def observe(self, seconds: float, context_tokens: int) -> DecodePace:
        """After a step of decodes and `context_tokens`, and nothing else, that took `seconds`."""
        if not 0 < seconds < math.inf:
            return self
        if context_tokens <= 0:
            seen = min(seconds, _OUTLIER * self.alone) if self.alone else seconds
            weight = max(_WEIGHT, 1 / (self.known + 1))
            alone = (1 - weight) * self.alone + weight * seen
            return replace(self, alone=alone, mixed=0, pure=self.pure + 1, known=self.known + 1)._capped()
        expected = self.alone + max(0.0, self.excess) / self.tokens * context_tokens
        seen = min(seconds, _OUTLIER * expected) if expected else seconds
        weight = _WEIGHT if self.cap >= 1 else _BURST_WEIGHT
        # Not only what is above: steps vary both ways, and the mean must not be of one side.
        return replace(
            self,
            excess=(1 - weight) * self.excess + weight * (seen - self.alone),
            tokens=(1 - weight) * self.tokens + weight * context_tokens,
            mixed=self.mixed + 1,
            pure=0,
        )._capped()

    def _capped(self) -> DecodePace:
        """With the cap at which a step takes what the factor allows, if the excess is in proportion to the tokens."""
        if self.known < _FIRST:
            return self
        allowed = _MARGIN * (self.factor - 1) * self.alone
        fitting = self.tokens * allowed / self.excess if self.excess > 0 else math.inf
        rare = self.cap < 1
        if fitting < (_BURST if rare else 1):
            return replace(self, cap=0.0)
        return replace(self, cap=min(fitting, _BURST if rare else self.cap * _GROWTH, _MOST))
