"""Runs side by side: which are compared with which, and the figures that come out."""

from __future__ import annotations

import pytest

from event_logs import counted, measured
from stream2llm.workloads.comparison import Cell, Spread, compare
from stream2llm.workloads.events import Arm, Clock


def test_each_run_is_compared_with_waiting_under_the_same_load() -> None:
    rows = compare([measured([1.0] * 4), measured([6.0] * 4, "wait"), measured([9.0] * 4, "wait", qps=2.0)])
    assert [(row.cell.qps, row.variant.arm) for row in rows] == [(2.0, Arm.WAIT), (4.0, Arm.WAIT), (4.0, Arm.STREAM)]
    assert rows[-1].times_sooner(0.5) == Spread(6.0, 6.0, 6.0, 1)
    assert rows[1].times_sooner(0.5) == Spread(1.0, 1.0, 1.0, 1)


def test_each_seed_is_compared_with_its_own_and_the_median_taken() -> None:
    streams = [measured([1.0], seed=seed) for seed in (0, 1, 2)]
    waits = [measured([seconds], "wait", seed=seed) for seed, seconds in ((2, 9.0), (0, 2.0), (1, 4.0))]
    *_, row = compare([*streams, *waits])
    assert row.times_sooner(0.5) == Spread(4.0, 2.0, 9.0, 3)
    assert row.seconds(0.5) == Spread(1.0, 1.0, 1.0, 3)


def test_without_waiting_of_the_same_seed_there_is_no_ratio() -> None:
    *_, row = compare([measured([1.0], seed=1), measured([2.0], "wait", seed=0)])
    assert row.times_sooner(0.5) is None
    assert row.against_waiting(lambda run: run.throughput) is None


@pytest.mark.parametrize(
    "other",
    [{"clock": Clock.REAL}, {"machine": "b"}, {"model": "b"}, {"workload": "b"}, {"delay": 9.0}, {"time_scale": 9.0}],
)
def test_runs_of_different_loads_are_not_compared(other: dict[str, object]) -> None:
    rows = compare([measured([1.0]), measured([2.0], "wait", **other)])
    assert len({row.cell for row in rows}) == 2
    assert not any(row.times_sooner(0.5) for row in rows if row.variant.arm is Arm.STREAM)


def test_runs_of_one_seed_that_differ_in_a_setting_are_rows_of_their_own() -> None:
    rows = compare(
        [
            measured([2.0], "wait", settings={"pool": 100}),
            measured([8.0], "wait", settings={"pool": 50}),
            measured([1.0], settings={"pool": 100, "host_gib": 2}),
            measured([2.0], settings={"pool": 50, "host_gib": 2}),
        ]
    )
    assert {str(row.variant): row.times_sooner(0.5).median for row in rows if row.times_sooner(0.5)} == {  # type: ignore[union-attr]
        "wait pool=100": 1.0,
        "wait pool=50": 1.0,
        "stream pool=100": 2.0,
        "stream pool=50": 4.0,
    }


def test_the_same_run_measured_twice_is_one_row() -> None:
    (row,) = compare([measured([1.0]), measured([3.0])])
    assert row.seconds(0.5) == Spread(2.0, 1.0, 3.0, 2)


def test_figures_over_waiting_and_figures_that_some_runs_lack() -> None:
    *_, row = compare(
        [measured([1.0], counters=counted(preempted=4)), measured([1.0], seed=1), measured([3.5], "wait")]
    )
    assert row.spread(lambda run: run.counters.get("preempted")) == Spread(4, 4, 4, 1)
    assert row.spread(lambda run: run.counters.get("parked")) is None
    assert row.against_waiting(lambda run: run.total_seconds) == Spread(3.5 / 6, 3.5 / 6, 3.5 / 6, 1)


def test_variants_and_loads_are_called_by_what_sets_them_apart() -> None:
    wait, stream = compare([measured([1.0], policy="fcfs", preemption="cost"), measured([1.0], "wait", policy="fcfs")])
    assert (str(wait.variant), str(stream.variant)) == ("wait", "stream fcfs cost")
    assert str(wait.cell) == "crawler, 4 queries/s, delays x1"
    assert str(Cell(Clock.REAL, "", "", "anns", 30, 0.25, 2)) == "anns, 0.25 queries/s, delays x30, times x2"
