"""The list of runs that repeats the paper's evaluation."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from stream2llm.costs import Mode
from stream2llm.policy import DEFAULT_POLICY
from stream2llm.workloads import published
from stream2llm.workloads.evaluation import FULL, PAPER_POLICIES, POINTS, QUICK, Planned, Point, Scale, planned
from stream2llm.workloads.events import Arm
from stream2llm.workloads.setup import Setup

SMALL = Scale({"crawler": 30, "anns": 20})


def load(point: Point) -> tuple[str, float, float]:
    return point.workload, point.qps, point.delay


def test_the_loads_are_those_for_which_waiting_is_published() -> None:
    waiting = [row for row in published.ttft() if row.arm is Arm.WAIT]
    assert sorted(map(load, POINTS)) == sorted((row.workload, row.qps, row.delay) for row in waiting)


def test_every_published_run_is_simulated() -> None:
    runs = {(load(run.point), run.setup.name) for run in planned(SMALL)}
    for row in published.ttft():
        name = "wait" if row.arm is Arm.WAIT else f"{row.policy}-{row.preemption}"
        assert ((row.workload, row.qps, row.delay), name) in runs


def test_preemption_is_varied_only_where_the_paper_varies_it() -> None:
    modes = defaultdict(set)
    for row in published.ttft():
        if row.arm is Arm.STREAM:
            modes[row.workload, row.qps, row.delay].add(row.preemption)
    assert {load(point) for point in POINTS if point.ablations} == {at for at, of_it in modes.items() if len(of_it) > 1}


@pytest.mark.parametrize("scale", [SMALL, QUICK, FULL])
def test_each_load_is_waited_for_once_and_streamed_under_every_policy_and_ours(scale: Scale) -> None:
    setups = defaultdict(list)
    for run in planned(scale):
        assert run.queries == scale.queries[run.point.workload]
        setups[run.point].append(run.setup)
    assert set(setups) == set(POINTS)
    for point, of_it in setups.items():
        modes = (Mode.COST, Mode.RECOMPUTE, Mode.SWAP) if point.ablations else (Mode.COST,)
        streamed = [Setup(Arm.STREAM, policy, mode) for policy in (*PAPER_POLICIES, DEFAULT_POLICY) for mode in modes]
        assert Counter(of_it) == Counter([Setup(Arm.WAIT), *streamed])


def test_every_run_has_a_name_of_its_own() -> None:
    runs = list(planned(Scale(SMALL.queries, seeds=(0, 1, 2))))
    assert len({run.name for run in runs}) == len(runs) == 3 * len(list(planned(SMALL)))
    run = Planned(Point("anns", 0.25, 30.0), Setup(policy="lcas", preemption=Mode.SWAP), 20, 2)
    assert run.name == "anns-qps0.25-x30-lcas-swap-seed2"


def test_seeds_differ_in_nothing_else() -> None:
    by_seed = defaultdict(set)
    for run in planned(Scale(SMALL.queries, seeds=(3, 7))):
        by_seed[run.seed].add((run.point, run.setup, run.queries))
    assert set(by_seed) == {3, 7}
    assert by_seed[3] == by_seed[7]


def test_only_the_policies_asked_for() -> None:
    assert {run.setup.name for run in planned(SMALL, ("fcfs",))} == {
        "wait", "fcfs-cost", "fcfs-recompute", "fcfs-swap",
    }  # fmt: skip


def test_the_longest_runs_come_first() -> None:
    lengths = [run.queries * run.point.delay for run in planned(SMALL)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 20 * 30
