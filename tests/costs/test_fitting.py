"""Which lengths are measured, and what the fit makes of measurements with a known answer."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.costs.fitting import CopySample, PrefillSample, context_lengths, fit_copy, fit_prefill, lengths

NEW = (16, 64, 256, 1024)
CONTEXTS = (0, 1024, 2048)


def seconds(new: int, context: int) -> float:
    """Overhead, weights, attention: 2 ms + 10 us a token + 5 ns a pair of tokens."""
    return 0.002 + 1e-5 * new + 5e-9 * (new * new / 2 + new * context)


def samples(noise: float = 0.0, seed: int = 0) -> list[PrefillSample]:
    rng = random.Random(seed)
    return [
        PrefillSample(new, context, seconds(new, context) * rng.uniform(1 - noise, 1 + noise))
        for new in NEW
        for context in CONTEXTS
    ]


def test_lengths_double_and_include_both_ends() -> None:
    assert lengths(16, 100) == (16, 32, 64, 100)
    assert lengths(16, 64) == (16, 32, 64)
    assert lengths(16, 64, per_doubling=2) == (16, 23, 32, 45, 64)
    assert lengths(5, 5) == (5,)


def test_lengths_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be measured"):
        lengths(16, 8)


def test_contexts_are_whole_blocks() -> None:
    assert context_lengths(1000, 32) == (224, 480, 736)
    assert context_lengths(100, 32) == (32, 64)
    assert context_lengths(20, 32) == ()


def test_exact_measurements_are_found_again() -> None:
    costs = fit_prefill(samples())
    assert costs.error is not None
    assert costs.error.worst < 1e-9
    assert costs.error.samples == len(NEW) * len(CONTEXTS)
    assert costs.longest_context == 2048
    assert costs.base(256) == pytest.approx(seconds(256, 0))
    assert costs.per_context_token(256) == pytest.approx(5e-9 * 256)


def test_noise_stays_visible_in_the_fit_error_and_small_in_the_fit() -> None:
    costs = fit_prefill(samples(noise=0.1))
    assert costs.error is not None
    assert 0.0 < costs.error.median < 0.1
    for new in NEW:
        for context in CONTEXTS:
            fitted = costs.base(new) + context * costs.per_context_token(new)
            assert fitted == pytest.approx(seconds(new, context), rel=0.15)


@given(st.integers(0, 10_000), st.floats(0.0, 0.5))
def test_the_fit_never_falls_in_new_tokens_or_in_context(seed: int, noise: float) -> None:
    costs = fit_prefill(samples(noise, seed))
    assert list(costs.base.ys) == sorted(costs.base.ys)
    assert list(costs.per_context_token.ys) == sorted(costs.per_context_token.ys)
    assert costs.per_context_token.ys[0] >= 0


def test_lengths_measured_without_context_only_shape_the_base() -> None:
    costs = fit_prefill([*samples(), PrefillSample(4096, 0, seconds(4096, 0))])
    assert costs.base.xs[-1] == 4096
    assert costs.per_context_token.xs[-1] == 1024


def test_one_context_length_is_not_enough() -> None:
    with pytest.raises(ValueError, match="two context lengths"):
        fit_prefill([PrefillSample(16, 0, 1.0), PrefillSample(32, 0, 2.0)])


def test_a_length_never_measured_without_context_is_refused() -> None:
    with pytest.raises(ValueError, match="64 new tokens was not measured without context"):
        fit_prefill([PrefillSample(64, 32, 1.0)])


def test_copies_are_fitted_in_order_of_length() -> None:
    costs = fit_copy([CopySample(64, 2.0), CopySample(32, 1.0), CopySample(128, 1.9)])
    assert costs.seconds.xs == (32.0, 64.0, 128.0)
    assert costs.seconds(128) == costs.seconds(64) == pytest.approx((2 / 4 + 1.9 / 3.61) / (1 / 4 + 1 / 3.61))
    assert costs.error is not None
    assert costs.error.samples == 3


def test_the_median_of_several_runs_is_fitted_and_every_run_counts_in_the_error() -> None:
    stalled = [CopySample(32, seconds) for seconds in (1.0, 9.0, 1.1)] + [CopySample(64, 2.0)]
    costs = fit_copy(stalled)
    assert costs.seconds(32) == 1.1
    assert costs.error is not None
    assert costs.error.samples == 4
    assert costs.error.worst == pytest.approx(7.9 / 9)
    prefill = fit_prefill([*samples(), *samples(), PrefillSample(16, 0, 50.0)])
    assert prefill.base(16) == pytest.approx(seconds(16, 0))
    assert prefill.error is not None
    assert prefill.error.worst > 0.99
