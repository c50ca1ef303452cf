"""What the pictures show: the data in them, their labels, and that they become PNGs for either page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from costs_profiles import profile
from event_logs import counted, measured
from stream2llm.costs import paper_profile
from stream2llm.workloads.comparison import Row, Variant, compare
from stream2llm.workloads.events import Arm, Clock
from stream2llm.workloads.report import costs, distributions, pictures, sweep
from stream2llm.workloads.report.style import DARK, LIGHT, Lines, colour

VALUES = st.lists(st.floats(0.001, 1e3), min_size=1, max_size=40)


def two(**fields: Any) -> tuple[Row, ...]:
    return compare([measured([1.0, 2.0], "wait", **fields), measured([0.5, 1.0], policy="fcfs", **fields)])


def curves(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def names(rows: Sequence[Row]) -> set[str]:
    return {picture.name.split("-")[0] for picture in pictures.of_load(rows[0].cell, rows)}


def test_a_tail_tells_the_share_of_values_that_are_greater() -> None:
    assert distributions.longer([3.0, 1.0, 2.0, 4.0]) == ([1.0, 1.0, 2.0, 3.0, 4.0], [1.0, 0.75, 0.5, 0.25, 0.0])
    assert distributions.within([2.0, 1.0]) == ([1.0, 1.0, 2.0], [0.0, 0.5, 1.0])


@given(VALUES)
def test_a_tail_never_rises_and_is_exact_at_every_value(values: list[float]) -> None:
    xs, ys = distributions.longer(values)
    assert ys == sorted(ys, reverse=True)
    for x in values:
        share = min(y for x_, y in zip(xs, ys, strict=True) if x_ == x)
        assert share == pytest.approx(sum(value > x for value in values) / len(values))


def test_the_ttft_picture_has_a_curve_for_each_variant_on_logarithmic_axes_with_units() -> None:
    axes = distributions.ttft(two(), LIGHT, title="Time").axes[0]
    assert curves(axes) == {
        "wait": ([1.0, 1.0, 2.0], [1.0, 0.5, 0.0]),
        "stream fcfs": ([0.5, 0.5, 1.0], [1.0, 0.5, 0.0]),
    }
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel().endswith("[s]")


def test_the_completion_picture_shows_the_seeds_together() -> None:
    rows = compare([measured([1.0], seed=0), measured([2.0], seed=1)])
    axes = distributions.completion(rows, LIGHT, title="Time").axes[0]
    assert curves(axes) == {"stream": ([3.5, 3.5, 4.5], [0.0, 0.5, 1.0])}


def test_queries_without_invalidated_tokens_lower_the_curve() -> None:
    replaced = counted(by_query={distributions.COUNTER: {"q0": 300.0, "q2": 0.0}})
    rows = compare([measured([1.0] * 4, counters=replaced)])
    axes = distributions.invalidated(rows, LIGHT, title="Tokens").axes[0]
    assert curves(axes) == {"stream": ([300.0, 300.0], [0.25, 0.0])}


def test_the_sweep_has_the_rates_and_the_papers_figures_on_its_machine() -> None:
    rows = [row for qps in (1.0, 4.0) for row in two(qps=qps, machine="2 x NVIDIA H200")]
    figure = sweep.draw(rows, LIGHT, title="Time")
    first = figure.axes[0]
    assert curves(first)["wait"] == ([1.0, 4.0], [1.5, 1.5])
    hollow = [line for line in first.get_lines() if line.get_markerfacecolor() == "none"]
    assert [list(line.get_ydata()) for line in hollow] == [[0.1313, 0.7521]]  # fcfs without preemption is not theirs
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == ["P50", "P95", "P99"]
    elsewhere = sweep.draw([row for qps in (1.0, 4.0) for row in two(qps=qps)], LIGHT, title="Time")
    assert not [line for line in elsewhere.axes[0].get_lines() if line.get_markerfacecolor() == "none"]


def test_the_cost_curves_are_the_profiles() -> None:
    found = paper_profile("2xh200")
    figure = costs.draw(found, LIGHT)
    xs, ys = curves(figure.axes[0])["prefill behind 8,192 tokens"]
    assert ys == [found.prefill_seconds(x, 8192) for x in xs]
    assert "estimated" in costs.title(found)
    assert "measured" in costs.title(profile())
    assert costs.swapped_from(found) == 16


def test_a_load_has_the_pictures_that_its_logs_can_fill() -> None:
    assert names(two()) == {"ttft", "completion"}
    replaced = counted(by_query={distributions.COUNTER: {"q0": 3.0}})
    assert names(compare([measured([1.0], counters=replaced)])) == {"ttft", "completion", "invalidated"}
    assert list(pictures.of_sweeps(two())) == []
    assert len(list(pictures.of_sweeps([*two(), *two(qps=1.0), *two(workload="anns")]))) == 1


def test_simulated_pictures_say_so_and_real_ones_do_not() -> None:
    def titles(clock: Clock) -> list[str]:
        rows = [*two(clock=clock), *two(clock=clock, qps=1.0)]
        made = [*pictures.of_load(rows[0].cell, rows[:2]), *pictures.of_sweeps(rows)]
        figures = [picture.draw(LIGHT) for picture in made]
        return [figure.get_suptitle() or figure.axes[0].get_title() for figure in figures]

    assert len(titles(Clock.VIRTUAL)) == 3
    assert all("simulated (virtual clock)" in title for title in titles(Clock.VIRTUAL))
    assert not any("simulated" in title for title in titles(Clock.REAL))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_a_picture_becomes_a_png_on_the_pages_ground(theme: Any) -> None:
    rows = two()
    picture = next(pictures.of_load(rows[0].cell, rows))
    image = Image.open(io.BytesIO(pictures.png(picture, theme))).convert("RGB")
    assert image.width > 1000
    assert "#{:02x}{:02x}{:02x}".format(*image.getpixel((1, 1))) == theme.background  # type: ignore[misc]
    assert pictures.png(picture, theme) == pictures.png(picture, theme)


def test_an_arm_or_policy_has_one_colour_and_those_that_matter_differ() -> None:
    variants = [Variant(arm) for arm in (Arm.WAIT, Arm.WARM, Arm.INPUT)]
    variants += [Variant(Arm.STREAM, policy) for policy in ("srpf", "default", "fcfs", "lcas", "mcps")]
    for theme in (LIGHT, DARK):
        assert len({colour(variant, theme) for variant in variants}) == len(variants)
    assert colour(Variant(Arm.STREAM, "fcfs", "swap"), LIGHT) == colour(Variant(Arm.STREAM, "fcfs", "cost"), LIGHT)
    assert colour(Variant(Arm.STREAM, "theirs"), LIGHT) == colour(Variant(Arm.STREAM, "theirs"), LIGHT)


def test_lines_of_one_colour_are_told_apart_otherwise() -> None:
    lines = Lines(LIGHT)
    looks = [
        (style["color"], str(style["linestyle"]), style["marker"])
        for style in map(
            lines.of,
            [
                Variant(Arm.STREAM, "fcfs", "cost"),
                Variant(Arm.STREAM, "fcfs", "swap"),
                Variant(Arm.STREAM, "fcfs", "recompute"),
                Variant(Arm.STREAM, "fcfs", "swap", (("pool", 100),)),
                Variant(Arm.WAIT),
                Variant(Arm.WAIT, settings=(("pool", 100),)),
            ],
        )
    ]
    assert len(set(looks)) == len(looks)
    assert lines.of(Variant(Arm.WAIT)) == lines.of(Variant(Arm.WAIT))
