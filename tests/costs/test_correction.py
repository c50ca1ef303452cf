"""The correction follows what is observed, slowly, and within bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs_profiles import profile
from stream2llm.costs import CorrectedCosts, Correction


def after(observations: list[tuple[float, float]], start: Correction | None = None) -> Correction:
    correction = start or Correction()
    for predicted, observed in observations:
        correction = correction.observe(predicted, observed)
    return correction


def test_it_converges_to_the_observed_ratio() -> None:
    assert after([(1.0, 2.0)] * 200).ratio == pytest.approx(2.0, rel=1e-3)


def test_it_forgets_by_its_weight() -> None:
    assert Correction(weight=0.5).observe(1.0, 4.0).ratio == pytest.approx(2.0)


def test_twice_and_half_cancel_out() -> None:
    assert after([(1.0, 2.0), (1.0, 0.5)] * 100).ratio == pytest.approx(1.0, abs=0.05)


def test_one_stall_moves_it_a_little() -> None:
    assert after([(0.01, 30.0)]).ratio == pytest.approx(4**0.05)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=50))
def test_it_stays_within_its_bound_whatever_is_observed(observations: list[tuple[float, float]]) -> None:
    assert 0.25 <= after(observations).ratio <= 4.0


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_what_is_no_time_is_ignored(pair: tuple[float, float]) -> None:
    assert Correction().observe(*pair) == Correction()


def test_it_is_a_value() -> None:
    before = Correction()
    before.observe(1.0, 3.0)
    assert before.ratio == 1.0


@pytest.mark.parametrize("fields", [{"weight": 0.0}, {"weight": 1.5}, {"bound": 0.5}, {"ratio": 5.0}])
def test_settings_that_make_no_sense_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a correction needs"):
        Correction(**fields)


def test_each_kind_of_work_has_its_own_ratio() -> None:
    corrected = CorrectedCosts(profile(), Correction(2.0), Correction(0.5), Correction(3.0))
    assert corrected.prefill_seconds(100, 1000) == pytest.approx(2 * profile().prefill_seconds(100, 1000))
    assert corrected.copy_out_seconds(100) == pytest.approx(0.5 * profile().copy_out_seconds(100))
    assert corrected.copy_in_seconds(100) == pytest.approx(3 * profile().copy_in_seconds(100))
