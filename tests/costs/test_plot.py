"""The plot shows points where they belong, on logarithmic axes."""

from __future__ import annotations

import pytest

from stream2llm.costs.plot import Series, log_plot


def test_a_power_law_is_a_straight_line() -> None:
    points = [(10.0**power, 10.0 ** (power - 6)) for power in range(1, 6)]
    plot = log_plot([Series("prefill", "x", points, lambda x: x * 1e-6)], width=41, height=5).splitlines()
    marks = [(row, line.index("x") - line.index("│") - 1) for row, line in enumerate(plot[:5])]
    assert marks == [(0, 40), (1, 30), (2, 20), (3, 10), (4, 0)]


def test_axes_and_legend_are_labelled() -> None:
    plot = log_plot([Series("copy out", "o", [(32, 2e-6), (2048, 1.5)], lambda x: x)], width=40, height=8)
    assert "1.5 s" in plot
    assert "2 µs" in plot
    assert "2,048  tokens" in plot
    assert "o copy out" in plot


def test_all_lines_have_room_for_their_series() -> None:
    both = [Series("a", "a", [(1, 1), (100, 1)], lambda x: 1.0), Series("b", "b", [(1, 50), (100, 60)], lambda x: 55.0)]
    plot = log_plot(both)
    assert plot.count("a") >= 2
    assert plot.count("b") >= 2
    assert "·" in plot


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        log_plot([Series("a", "a", [], lambda x: x)])
