"""Decode protection: how many context tokens a step may compute while requests decode. Pure: updates are new values.

Not in the paper, whose decodes run elsewhere. Every token of an open stream that shares a step with decodes makes their
inter-token latency (ITL) longer, on a GPU little up to some number, on a CPU from the first on. So it is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

ITL_FACTOR = 1.5
"""The default: an open stream may make a step of decodes half as long again."""

_WEIGHT = 0.1  # of one observation
_OUTLIER = 2.0  # a step longer than this many times its expectation counts as that: somebody else was on the machine
_GROWTH = 1.5  # the most by which the cap grows at once
_MOST = float(1 << 20)  # no step computes more
_PROBE = 32  # every so many steps one goes without context tokens, to know what decodes alone take


@dataclass(frozen=True, slots=True)
class DecodePace:
    """What steps with decodes take, with and without context tokens, as a running mean; seconds.

    `factor`: the ITL that open streams may cause, over the ITL without them; 1.1 means 10 % more. `alone`: a step of
    decodes only. `excess` and `tokens`: what context tokens added to a step, and how many they were. `cap`: the most
    context tokens for the next step with decodes. `mixed`: steps with context tokens since the last without.
    """

    factor: float
    cap: float = 16.0
    alone: float = 0.0
    excess: float = 0.0
    tokens: float = 0.0
    mixed: int = 0

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ValueError(f"the ITL factor must be above 1, got {self.factor}; leave it out for no protection")

    def context_tokens(self, only_decodes: bool = True) -> int:
        """The most context tokens for the next step with decodes; none in one that is to measure decodes alone, which
        tells nothing unless there are `only_decodes` besides."""
        if only_decodes and (self.alone == 0 or self.mixed >= _PROBE):
            return 0
        return int(self.cap)

    def observe(self, seconds: float, context_tokens: int) -> DecodePace:
        """After a step of decodes and `context_tokens`, and nothing else, that took `seconds`."""
        if not 0 < seconds < math.inf:
            return self
        if context_tokens <= 0:
            seen = min(seconds, _OUTLIER * self.alone) if self.alone else seconds
            return self._capped(replace(self, alone=_mean(self.alone, seen), mixed=0))
        expected = self.alone + self.excess / self.tokens * context_tokens if self.tokens else self.alone
        seen = min(seconds, _OUTLIER * expected) if expected else seconds
        excess, tokens = max(0.0, seen - self.alone), float(context_tokens)
        return self._capped(
            replace(
                self,
                excess=_mean(self.excess, excess) if self.tokens else excess,
                tokens=_mean(self.tokens, tokens),
                mixed=self.mixed + 1,
            )
        )

    def _capped(self, pace: DecodePace) -> DecodePace:
        """The cap at which a step takes `factor` times what decodes alone take, if the excess is in proportion."""
        if not (pace.alone and pace.tokens):
            return pace
        allowed = (pace.factor - 1) * pace.alone
        fitting = pace.tokens * allowed / pace.excess if pace.excess > 0 else math.inf
        return replace(pace, cap=max(1.0, min(fitting, pace.cap * _GROWTH, _MOST)))


def _mean(mean: float, value: float) -> float:
    return (1 - _WEIGHT) * mean + _WEIGHT * value if mean else value
