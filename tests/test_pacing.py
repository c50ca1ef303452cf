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
def test_steps_settle_at_the_factor_or_at_one_token(
    factor: float, alone: float, per_token: float, noise: float
) -> None:
    steps = paced(factor, alone, per_token, noise=noise)[300:]
    mean = sum(seconds for _, seconds in steps) / len(steps)
    assert mean <= alone * factor * (1 + noise) + per_token
    used = sum(tokens for tokens, _ in steps) / len(steps)
    allowed = (factor - 1) * alone / per_token
    assert used >= min(1, allowed) * 0.5
    if allowed > 4 and noise < 0.02:
        assert used >= 0.6 * allowed


def test_where_context_tokens_cost_nothing_the_cap_grows_out_of_the_way() -> None:
    assert paced(1.1, 0.008, 0.0)[-1][0] > 100_000 or paced(1.1, 0.008, 0.0)[-2][0] > 100_000


def test_streams_always_get_a_token_however_dear_it_is() -> None:
    tokens = [tokens for tokens, _ in paced(1.05, 0.005, 0.01)[50:]]
    assert set(tokens) == {0, 1}
    assert tokens.count(1) > 0.9 * len(tokens)


def test_a_step_that_somebody_else_held_up_changes_little() -> None:
    pace = DecodePace(1.2)
    for _ in range(100):
        tokens = int(pace.context_tokens())
        pace = pace.observe(0.01 + 0.0001 * tokens, tokens)
    disturbed = pace.observe(5.0, int(pace.context_tokens()))
    assert disturbed.cap > 0.5 * pace.cap
    assert pace.observe(math.inf, 3) == pace == pace.observe(0.0, 3)


@pytest.mark.parametrize("factor", [1.0, 0.5, math.nan])
def test_a_factor_that_protects_nothing_or_forbids_everything_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="must be above 1"):
        DecodePace(factor)
