"""How the context gets to the engine, and what its scheduler does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stream2llm.costs import Mode
from stream2llm.policy import DEFAULT_POLICY
from stream2llm.workloads.events import Arm


@dataclass(frozen=True)
class Setup:
    """Only `Arm.STREAM` has a policy of ours and our preemption; the other arms are stock vLLM.

    Raises `ValueError` for `Arm.INPUT`, which is not simulated.
    """

    arm: Arm = Arm.STREAM
    policy: str = DEFAULT_POLICY
    preemption: Mode = Mode.COST

    def __post_init__(self) -> None:
        if self.arm is Arm.INPUT:
            raise ValueError("`arm` is input: vLLM's StreamingInput is not simulated; there are wait, warm, stream")

    @property
    def streams(self) -> bool:
        return self.arm is Arm.STREAM

    @property
    def name(self) -> str:
        """E.g. "wait" or "srpf-cost"."""
        return f"{self.policy}-{self.preemption}" if self.streams else self.arm
