from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm.pacing import DecodePace


def paced(
    factor: float, alone: float, per_token: float, fixed: float = 0.0, noise: float = 0.0, steps: int = 600
) -> list[tuple[int, float]]:
    """Context tokens and seconds of each step of a machine that computes as many as it may."""
    pace, seen, rng = DecodePace(factor), [], random.Random(7)
    for _ in range(steps):
        tokens = int(pace.context_tokens())
        seconds = (alone + (fixed if tokens else 0) + per_token * tokens) * rng.uniform(1 - noise, 1 + noise)
        pace = pace.observe(seconds, tokens)
        seen.append((tokens, seconds))
    return seen


@settings(deadline=None, max_examples=60)
@given(st.floats(1.05, 2), st.floats(0.004, 0.1), st.floats(2e-5, 2e-3), st.floats(0, 0.1))
def test_steps_stay_within_the_factor(factor: float, alone: float, per_token: float, noise: float) -> None:
    steps = paced(factor, alone, per_token, noise=noise)[300:]
    mean = sum(seconds for _, seconds in steps) / len(steps)
    burst = 16 * per_token / 512  # where a single token is too dear, there is one in 512 steps
    assert mean <= max(alone * factor, alone + burst) * (1 + noise / 5)
    allowed = (factor - 1) * alone / per_token  # tokens
    if allowed > 10 and noise < 0.02:
        assert sum(tokens for tokens, _ in steps) / len(steps) >= 0.3 * allowed


@settings(deadline=None, max_examples=40)
@given(st.floats(0.05, 0.5), st.floats(0.2, 2))
def test_where_a_token_is_too_dear_streams_go_on_in_fewer_steps_than_a_p99_sees(allowed: float, dear: float) -> None:
    """A request more in the step costs more than the factor allows, whatever it computes."""
    steps = paced(1 + allowed, alone=0.01, per_token=1e-5, fixed=0.01 * max(dear, allowed), steps=4000)[1000:]
    with_context = [tokens for tokens, _ in steps if tokens]
    assert 0 < len(with_context) < 0.01 * len(steps)


def test_where_context_tokens_cost_nothing_the_cap_grows_out_of_the_way() -> None:
    assert paced(1.1, 0.008, 0.0)[-1][0] > 100_000 or paced(1.1, 0.008, 0.0)[-2][0] > 100_000


def test_a_step_that_somebody_else_held_up_changes_little() -> None:
    pace = DecodePace(1.2)
    for _ in range(100):
        tokens = int(pace.context_tokens())
        pace = pace.observe(0.01 + 0.0001 * tokens, tokens)
    disturbed = pace.observe(5.0, int(pace.context_tokens()))
    assert disturbed.cap > 0.4 * pace.cap
    assert pace.observe(math.inf, 3) == pace == pace.observe(0.0, 3)


@pytest.mark.parametrize("factor", [1.0, 0.5, math.nan])
def test_a_factor_that_protects_nothing_or_forbids_everything_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="must be above 1"):
        DecodePace(factor)
