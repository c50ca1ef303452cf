"""Draws from a distribution of which percentiles are known."""

import random
from statistics import NormalDist, fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.workloads.sampling import Counts, LogNormalPieces, divided, stratified

POINTS = {0: 0.5, 5: 2.0, 50: 10.0, 95: 90.0, 100: 400.0}


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_quantile_function_rises_from_the_smallest_to_the_largest_value(one: float, other: float) -> None:
    quantile = LogNormalPieces(POINTS, 1000)
    low, high = sorted((one, other))
    assert 0.4999 <= quantile(low) <= quantile(high) <= 400.01


def test_it_passes_through_the_known_percentiles() -> None:
    quantile = LogNormalPieces(POINTS, 1000)
    assert [quantile(percent / 100) for percent in (5, 50, 95)] == pytest.approx([2, 10, 90])
    assert quantile(0) == pytest.approx(0.5)
    assert quantile(1) == pytest.approx(400)


def test_between_percentiles_of_a_log_normal_distribution_it_is_that_distribution() -> None:
    known = NormalDist(1, 0.7)
    points = {percent: 2.718281828459045 ** known.inv_cdf(percent / 100) for percent in (1, 30, 50, 99)}
    quantile = LogNormalPieces(points, 1000)
    for probability in (0.02, 0.2, 0.4, 0.6, 0.9):
        assert quantile(probability) == pytest.approx(2.718281828459045 ** known.inv_cdf(probability))


@given(st.integers(1, 200), st.integers())
def test_one_value_comes_from_each_equally_likely_part(count: int, seed: int) -> None:
    values = stratified(float, count, random.Random(seed))
    assert [int(value * count) for value in sorted(values)] == list(range(count))


def test_order_is_random() -> None:
    values = stratified(float, 100, random.Random(0))
    assert values != sorted(values)
    assert values != stratified(float, 100, random.Random(1))


@pytest.mark.parametrize(
    ("mean", "smallest", "largest", "dispersion"), [(7.86, 2, 17, 1000), (4.42, 1, 26, 2), (1.5, 1, 9, 1)]
)
def test_counts_have_the_mean_and_the_range(mean: float, smallest: int, largest: int, dispersion: float) -> None:
    quantile = Counts(mean, smallest, largest, dispersion)
    counts = [quantile((k + 0.5) / 5_000) for k in range(5_000)]
    assert fmean(counts) == pytest.approx(mean, rel=0.01)
    assert counts == sorted(counts)
    assert (quantile(0.0), quantile(1.0)) == (smallest, largest)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.integers(0, 100_000))
def test_a_total_is_divided_in_whole_parts_of_at_least_one(weights: list[float], more: int) -> None:
    total = len(weights) + more
    parts = divided(total, weights)
    assert sum(parts) == total
    assert len(parts) == len(weights)
    for part, weight in zip(parts, weights, strict=True):
        assert part >= 1
        assert abs(part - 1 - more * weight / sum(weights)) <= 1
