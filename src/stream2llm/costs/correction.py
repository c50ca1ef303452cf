"""Online correction of a profile from what steps and copies are seen to take. Pure: every update is a new value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from stream2llm.costs.decision import Costs


@dataclass(frozen=True, slots=True)
class Correction:
    """The running ratio of observed to predicted seconds: an exponentially weighted geometric mean.

    Geometric, since twice as long and half as long must cancel out. `weight`: what one observation counts. Ratios are
    held between 1/`bound` and `bound`, and so is each observation, so that one stall does not turn the model over.
    """

    ratio: float = 1.0
    weight: float = 0.05
    bound: float = 4.0

    def __post_init__(self) -> None:
        if not (0 < self.weight <= 1 and self.bound >= 1 and 1 / self.bound <= self.ratio <= self.bound):
            raise ValueError(f"a correction needs 0 < weight <= 1, bound >= 1, ratio within the bound: {self}")

    def observe(self, predicted_seconds: float, observed_seconds: float) -> Correction:
        """The correction after one more observation; the same if one of the times is not a positive number."""
        if not (0 < predicted_seconds < math.inf and 0 < observed_seconds < math.inf):
            return self
        seen = self._bounded(observed_seconds / predicted_seconds)
        ratio = math.exp((1 - self.weight) * math.log(self.ratio) + self.weight * math.log(seen))
        return replace(self, ratio=self._bounded(ratio))

    def _bounded(self, ratio: float) -> float:
        return min(max(ratio, 1 / self.bound), self.bound)


@dataclass(frozen=True, slots=True)
class CorrectedCosts:
    """The costs of a profile, corrected: each kind of work by its own ratio."""

    costs: Costs
    prefill: Correction = field(default_factory=Correction)
    copy_out: Correction = field(default_factory=Correction)
    copy_in: Correction = field(default_factory=Correction)

    def prefill_seconds(self, new_tokens: float, context_tokens: float = 0) -> float:
        return self.prefill.ratio * self.costs.prefill_seconds(new_tokens, context_tokens)

    def copy_out_seconds(self, tokens: float) -> float:
        return self.copy_out.ratio * self.costs.copy_out_seconds(tokens)

    def copy_in_seconds(self, tokens: float) -> float:
        return self.copy_in.ratio * self.costs.copy_in_seconds(tokens)
