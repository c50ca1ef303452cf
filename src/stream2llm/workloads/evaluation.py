"""The paper's evaluation as a list of simulated runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stream2llm.costs import Mode
from stream2llm.policy import DEFAULT_POLICY
from stream2llm.workloads.events import Arm
from stream2llm.workloads.marginals import Workload
from stream2llm.workloads.setup import Setup

PAPER_POLICIES = ("default", "fcfs", "lcas", "mcps")


@dataclass(frozen=True)
class Point:
    """A load: its rate in queries a second and its delay multiplier. `ablations`: the pure preemptions, too."""

    workload: Workload
    qps: float
    delay: float = 1.0
    ablations: bool = False


POINTS = (
    *(Point("crawler", qps) for qps in (0.5, 1.0, 2.0, 4.0)),
    *(Point("anns", qps) for qps in (0.25, 0.5, 1.0, 2.0)),
    Point("crawler", 4.0, 10.0, ablations=True),
    Point("anns", 2.0, 30.0, ablations=True),
)
"""The loads for which the paper publishes TTFT on 2 x H200 (section 5)."""


@dataclass(frozen=True)
class Scale:
    """How many queries of each workload, and which seeds."""

    queries: dict[Workload, int]
    seeds: tuple[int, ...] = (0,)


FULL = Scale({"crawler": 4322, "anns": 2000})
"""All of the paper's crawls; of its vector searches as many as give a P99 that does not hang on a few."""

QUICK = Scale({"crawler": 600, "anns": 400})
"""Shows all of it in some minutes; its tails hang on a handful of queries."""


@dataclass(frozen=True)
class Planned:
    """One run to be simulated."""

    point: Point
    setup: Setup
    queries: int
    seed: int

    @property
    def name(self) -> str:
        """Of its event log, without an ending."""
        point = self.point
        return f"{point.workload}-qps{point.qps:g}-x{point.delay:g}-{self.setup.name}-seed{self.seed}"


def planned(scale: Scale, policies: tuple[str, ...] = (*PAPER_POLICIES, DEFAULT_POLICY)) -> Iterator[Planned]:
    """Every run of the evaluation, the longest first, so that the last processes do not wait for a long one."""
    runs = [
        Planned(point, setup, scale.queries[point.workload], seed)
        for seed in scale.seeds
        for point in POINTS
        for setup in _setups(point, policies)
    ]
    return iter(sorted(runs, key=lambda run: -run.queries * run.point.delay))


def _setups(point: Point, policies: tuple[str, ...]) -> Iterator[Setup]:
    yield Setup(Arm.WAIT)
    for policy in policies:
        for mode in (Mode.COST, Mode.RECOMPUTE, Mode.SWAP) if point.ablations else (Mode.COST,):
            yield Setup(Arm.STREAM, policy, mode)
