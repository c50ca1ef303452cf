"""What is told apart by a setup and what is not."""

from __future__ import annotations

import pytest

from stream2llm.costs import Mode
from stream2llm.policy import DEFAULT_POLICY
from stream2llm.workloads.events import Arm
from stream2llm.workloads.setup import Setup


def test_unless_told_otherwise_context_is_streamed_under_our_policy_and_the_cost_model() -> None:
    assert Setup() == Setup(Arm.STREAM, DEFAULT_POLICY, Mode.COST)


@pytest.mark.parametrize(
    ("setup", "streams", "name"),
    [
        (Setup(policy="mcps", preemption=Mode.SWAP), True, "mcps-swap"),
        (Setup(Arm.WAIT, "mcps", Mode.SWAP), False, "wait"),
        (Setup(Arm.WARM), False, "warm"),
    ],
)
def test_only_streaming_has_a_policy_and_a_preemption(setup: Setup, streams: bool, name: str) -> None:
    assert (setup.streams, setup.name) == (streams, name)


def test_streaming_input_is_refused() -> None:
    with pytest.raises(ValueError, match="StreamingInput is not simulated; there are wait, warm, stream"):
        Setup(Arm.INPUT)
