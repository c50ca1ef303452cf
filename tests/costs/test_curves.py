"""Curves never fall, go through their points, and are the nearest such curves to noisy measurements."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.costs.curves import Curve, FitError, fit_monotone

LINE = Curve((10.0, 20.0, 40.0), (1.0, 2.0, 4.0))
seconds = st.floats(0.0, 100.0)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    xs = sorted(draw(st.sets(st.integers(0, 10_000), min_size=2, max_size=12)))
    ys = sorted(draw(st.lists(seconds, min_size=len(xs), max_size=len(xs))))
    return Curve(tuple(map(float, xs)), tuple(ys))


def test_between_points_it_is_straight() -> None:
    assert LINE(10) == 1.0
    assert LINE(15) == pytest.approx(1.5)
    assert LINE(30) == pytest.approx(3.0)


def test_it_goes_on_linearly_outside_and_says_so() -> None:
    assert LINE(80) == pytest.approx(8.0)
    assert LINE(5) == pytest.approx(0.5)
    assert not LINE.covers(80)
    assert not LINE.covers(5)
    assert LINE.covers(10)
    assert LINE.covers(40)


def test_below_the_first_point_it_never_gets_negative() -> None:
    assert Curve((10.0, 11.0), (1.0, 5.0))(1) == 0.0


def test_a_flat_last_segment_does_not_end_the_growth() -> None:
    pooled = Curve((1.0, 50.0, 90.0, 100.0), (1.0, 50.0, 95.0, 95.0))
    assert pooled(200) == pytest.approx(95.0 + 100 * (95 - 50) / 50)


@given(curves(), st.floats(0.0, 50_000.0), st.floats(0.0, 50_000.0))
def test_it_never_falls(curve: Curve, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert curve(low) <= curve(high) + 1e-9 * (1 + curve(high))


@pytest.mark.parametrize(
    ("xs", "ys", "complaint"),
    [
        ((1.0,), (1.0,), "two points"),
        ((1.0, 2.0), (1.0,), "two points"),
        ((1.0, 1.0), (1.0, 2.0), "x values must increase"),
        ((1.0, 2.0), (2.0, 1.0), "y values must not fall"),
        ((1.0, 2.0), (-1.0, 1.0), "not be negative"),
        ((1.0, 2.0), (1.0, math.nan), "finite"),
    ],
)
def test_points_of_another_form_are_refused(xs: tuple[float, ...], ys: tuple[float, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Curve(xs, ys)


def test_points_that_never_fall_are_fitted_exactly() -> None:
    assert fit_monotone([1, 2, 3], [1.0, 1.0, 5.0]) == Curve((1.0, 2.0, 3.0), (1.0, 1.0, 5.0))


@given(st.lists(st.tuples(seconds, st.floats(0.1, 10.0)), min_size=2, max_size=7))
def test_the_fit_is_the_nearest_curve_that_never_falls(points: list[tuple[float, float]]) -> None:
    """Against every way to cut the points into runs of one level: the optimum is among them."""
    ys, weights = zip(*points, strict=True)

    def distance(fitted: tuple[float, ...]) -> float:
        return sum(w * (f - y) ** 2 for w, f, y in zip(weights, fitted, ys, strict=True))

    best = math.inf
    for cuts in itertools.product((False, True), repeat=len(ys) - 1):
        levels: list[float] = []
        start = 0
        for end in [place + 1 for place, cut in enumerate(cuts) if cut] + [len(ys)]:
            mass = sum(weights[start:end])
            mean = sum(w * y for w, y in zip(weights[start:end], ys[start:end], strict=True)) / mass
            levels += [mean] * (end - start)
            start = end
        if all(left <= right + 1e-12 for left, right in itertools.pairwise(levels)):
            best = min(best, distance(tuple(levels)))
    fitted = fit_monotone(range(len(ys)), ys, weights)
    assert distance(fitted.ys) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_the_default_weights_make_the_relative_error_small() -> None:
    fitted = fit_monotone([1, 2], [2.0, 1.0])
    assert fitted.ys[0] == fitted.ys[1] == pytest.approx((2 / 4 + 1 / 1) / (1 / 4 + 1 / 1))


def test_noise_of_a_tenth_is_halved() -> None:
    noise = random.Random(3)
    xs = range(1, 200)
    noisy = [x * noise.uniform(0.9, 1.1) for x in xs]
    fitted = fit_monotone(xs, noisy)
    error = FitError.of([fitted(x) for x in xs], [float(x) for x in xs])
    assert error.median < FitError.of(noisy, [float(x) for x in xs]).median / 2


def test_weights_must_be_positive_and_as_many_as_points() -> None:
    with pytest.raises(ValueError, match="positive"):
        fit_monotone([1, 2], [1.0, 2.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="1 weights"):
        fit_monotone([1, 2], [1.0, 2.0], [1.0])


def test_the_fit_error_is_a_share_of_what_was_measured() -> None:
    assert FitError.of([1.1, 2.0, 2.0], [1.0, 2.0, 4.0]) == FitError(pytest.approx(0.1), 0.5, 3)
    with pytest.raises(ValueError, match="nothing"):
        FitError.of([], [])
    with pytest.raises(ValueError, match="positive"):
        FitError.of([1.0], [0.0])
