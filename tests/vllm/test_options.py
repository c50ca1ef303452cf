from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stream2llm.costs import Mode
from stream2llm.pacing import ITL_FACTOR
from stream2llm.vllm.options import Options


def test_without_options_ours_is_what_runs() -> None:
    assert Options.parsed({}) == Options("srpf", Mode.COST, None, ITL_FACTOR, True)


def test_every_option_can_be_given() -> None:
    given = {"policy": "lcas", "preemption": "off", "profile": "p.json", "itl_factor": None, "correction": False}
    assert Options.parsed(given) == Options("lcas", Mode.OFF, Path("p.json"), None, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"polcy": "fcfs"}, "unknown option polcy; there are policy, preemption, profile, itl_factor, correction"),
        ({"preemption": "drop"}, "'drop': choose one of cost, recompute, swap, off"),
        ({"itl_factor": 1}, "itl_factor 1: a number above 1, or null"),
        ({"itl_factor": "fast"}, "itl_factor 'fast': a number above 1"),
        ({"correction": 1}, "correction 1: true or false"),
        (["fcfs"], "an object with any of policy"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_would_be(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options.parsed(given)
