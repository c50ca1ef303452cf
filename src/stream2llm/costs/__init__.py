"""The cost model: what it takes to prefill, and to copy KV blocks to host memory and back. Pure, without vLLM.

`stream2llm profile` measures a `CostProfile`; `decide` compares recompute with swap for a victim (docs/cost-model.md).
"""

from stream2llm.costs.builtin import paper_profile
from stream2llm.costs.correction import CorrectedCosts, Correction
from stream2llm.costs.curves import Curve, FitError
from stream2llm.costs.decision import Costs, Decision, Mode, Preemption, Victim, decide
from stream2llm.costs.profile import (
    CopyCosts,
    CostProfile,
    PrefillCosts,
    ProfileError,
    ProfileMismatchError,
    Source,
    SourceKind,
    Subject,
)

__all__ = [
    "CopyCosts",
    "CorrectedCosts",
    "Correction",
    "CostProfile",
    "Costs",
    "Curve",
    "Decision",
    "FitError",
    "Mode",
    "Preemption",
    "PrefillCosts",
    "ProfileError",
    "ProfileMismatchError",
    "Source",
    "SourceKind",
    "Subject",
    "Victim",
    "decide",
    "paper_profile",
]
