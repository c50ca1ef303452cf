"""What the scheduler learns from the time that steps take: the pace of decodes, and how right the cost profile is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stream2llm.costs import CorrectedCosts, CostProfile
from stream2llm.pacing import DecodePace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

_PREFILL_TOKENS = 64  # a step with fewer tells little about prefill
_SAMPLED = 8  # one of so many steps corrects the profile: to reckon a step takes a look at all of its requests
_LOST = 64  # outputs whose end was never seen, at the most


@dataclass(frozen=True, slots=True)
class _Step:
    begun: float
    context_tokens: int
    only_decodes: bool  # apart from the context tokens
    predicted_seconds: float  # 0: not reckoned


class Observation:
    """Times steps, also overlapping ones: a step begins when it is scheduled, or when the one before has ended."""

    def __init__(self, costs: CostProfile, itl_factor: float | None, correct: bool, spec_tokens: int) -> None:
        """`spec_tokens`: what a decode may compute in a step beside its next token."""
        self.costs = CorrectedCosts(costs)
        self.pace = DecodePace(itl_factor) if itl_factor is not None else None
        self._profile = costs
        self._correct = correct
        self._decode_tokens = 1 + spec_tokens
        self._steps: dict[int, _Step] = {}
        self._begun = self._ended = 0.0
        self._count = 0

    def context_tokens(self, decodes: int, only_decodes: bool) -> float:
        """The most context tokens for the next step, in which so many requests decode; `only_decodes`: and no complete
        request is prefilled."""
        return self.pace.context_tokens(only_decodes) if self.pace is not None and decodes else math.inf

    @property
    def wanted(self) -> bool:
        """Whether anything is to be learned from steps."""
        return self.pace is not None or self._correct

    def step_begins(self) -> None:
        self._begun = time.perf_counter()

    def scheduled(self, output: SchedulerOutput, versions: Sequence[int], requests: Mapping[str, Request]) -> None:
        """`versions`: the tokens that each version computes in the step."""
        total, context = output.total_num_scheduled_tokens, sum(versions)
        if not total:
            return
        others = len(output.num_scheduled_tokens) - len(versions)
        decoding = 0 < total - context <= others * self._decode_tokens
        predicted = 0.0
        self._count += 1
        if self._correct and self._count % _SAMPLED == 0 and total - others >= _PREFILL_TOKENS:
            chunks = [(new, requests[id].num_computed_tokens - new) for id, new in output.num_scheduled_tokens.items()]
            predicted = self._profile.step_seconds(chunks)
        if len(self._steps) >= _LOST:
            self._steps.clear()
        self._steps[id(output)] = _Step(self._begun, context, decoding, predicted)

    def step_ends(self, output: SchedulerOutput) -> None:
        step = self._steps.pop(id(output), None)
        now = time.perf_counter()
        if step is not None:
            seconds = now - max(step.begun, self._ended)
            if self.pace is not None and step.only_decodes:
                self.pace = self.pace.observe(seconds, step.context_tokens)
            if step.predicted_seconds:
                seen = self.costs.prefill.observe(step.predicted_seconds, seconds)
                self.costs = replace(self.costs, prefill=seen)
        self._ended = now

    def figures(self) -> dict[str, float]:
        """For the statistics op: the present cap while requests decode, and the correction of prefill times."""
        pace = {"context_token_cap": self.pace.cap} if self.pace is not None else {}
        return {**pace, "prefill_correction": self.costs.prefill.ratio}
