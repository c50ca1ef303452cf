"""Our figures beside the paper's, with the deviation. Pure.

Waiting is compared in seconds, on the paper's machine only; everything else in times sooner than waiting, which is
what the paper publishes and what a machine matched in load can be held to.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream2llm.workloads import published
from stream2llm.workloads.comparison import Row
from stream2llm.workloads.events import Arm
from stream2llm.workloads.measured import SHARES
from stream2llm.workloads.published import Preemptions, Published

FAR = 0.35
"""The deviation from which on a figure is marked."""

MACHINE = "H200"  # the paper's rows are those of two of them


@dataclass(frozen=True, slots=True)
class Beside:
    """One figure at one quantile, ours and the paper's. `unit`: "s" for seconds, "x" for times sooner than waiting."""

    share: float
    unit: str
    ours: float
    paper: float

    @property
    def deviation(self) -> float:
        """Ours over the paper's, less 1."""
        return self.ours / self.paper - 1

    @property
    def far(self) -> bool:
        return abs(self.deviation) > FAR


def on_paper_machine(row: Row) -> bool:
    """Whether the row's machine, real or simulated, is the one that the paper's rows were measured on."""
    return MACHINE in row.cell.machine


def published_row(row: Row) -> Published | None:
    """The paper's row for this load and variant, if it has one."""
    cell, variant = row.cell, row.variant
    return published.find(cell.workload, cell.qps, cell.delay, variant.arm, variant.policy, variant.preemption)


def beside(row: Row) -> tuple[Beside, ...]:
    """The row's figures that the paper has too; none where it has no such row."""
    paper = published_row(row)
    if paper is None:
        return ()
    if row.variant.arm is Arm.WAIT:
        pairs = (
            [(share, row.seconds(share), paper.seconds.get(share)) for share in SHARES] if on_paper_machine(row) else []
        )
        unit = "s"
    else:
        pairs = [(share, row.times_sooner(share), paper.ratio.get(share)) for share in SHARES]
        unit = "x"
    return tuple(Beside(share, unit, ours.median, value) for share, ours, value in pairs if ours and value)


def published_preemptions(row: Row) -> Preemptions | None:
    """How often the paper's engine preempted in such a run, if it says."""
    cell, variant = row.cell, row.variant
    key = (cell.workload, cell.qps, cell.delay, variant.policy, variant.preemption)
    for found in published.preemptions():
        if (found.workload, found.qps, found.delay, found.policy, found.preemption) == key:
            return found
    return None
