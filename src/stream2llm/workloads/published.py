"""The paper's published results, to stand beside ours. The files and where they come from: `paper/README.md`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from stream2llm.workloads.events import Arm, Run

_COLUMNS = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
_WAITING = "non_streaming"
_POLICIES = {"default_streaming": "default"}  # the rest are called as our policies are


@dataclass(frozen=True, slots=True)
class Published:
    """TTFT of one configuration on 2 x H200, Llama-3.1-8B. `seconds` by share, e.g. 0.95; some lack 0.999.

    `ratio`: how many times sooner than waiting, by share; 1 for waiting itself. The paper gives seconds for two of its
    arms and ratios for the rest; what it does not give follows from the waiting row of the same workload, rate and
    delay. `policy` and `preemption` are empty where waiting is concerned.
    """

    workload: str
    qps: float
    delay: float
    preemption: str
    arm: Arm
    policy: str
    seconds: Mapping[float, float]
    ratio: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Preemptions:
    """How often the paper's engine preempted in one run on 2 x H200, by kind."""

    workload: str
    qps: float
    delay: float
    preemption: str
    policy: str
    total: int
    recompute: int
    swap: int


@cache
def ttft() -> tuple[Published, ...]:
    """All published rows."""
    rows = list(_rows("ttft_h200.csv"))
    waiting = {_cell(row): _numbers(row) for row in rows if row["arm"] == _WAITING}
    return tuple(_published(row, waiting[_cell(row)]) for row in rows)


@cache
def preemptions() -> tuple[Preemptions, ...]:
    """All published rows."""
    return tuple(
        Preemptions(
            *_cell(row), row["preemption"], row["policy"], int(row["total"]), int(row["recompute"]), int(row["swap"])
        )
        for row in _rows("preemptions_h200.csv")
    )


def find(workload: str, qps: float, delay: float, arm: Arm, policy: str = "", preemption: str = "") -> Published | None:
    """The published row of such a run; of waiting whatever policy and preemption are. None if there is none."""
    wanted = (workload, qps, delay, arm, *(("", "") if arm is Arm.WAIT else (policy, preemption)))
    return next(
        (row for row in ttft() if (row.workload, row.qps, row.delay, row.arm, row.policy, row.preemption) == wanted),
        None,
    )


def matching(run: Run) -> Published | None:
    """The published row of a run like this one, whatever it ran on."""
    return find(run.workload, run.qps, run.delay, run.arm, run.policy, run.preemption)


def _published(row: Mapping[str, str], waiting: Mapping[float, float]) -> Published:
    given = _numbers(row)
    seconds = given if row["unit"] == "s" else {share: waiting[share] / ratio for share, ratio in given.items()}
    waits = row["arm"] == _WAITING
    return Published(
        *_cell(row),
        preemption="" if waits else row["preemption"],
        arm=Arm.WAIT if waits else Arm.STREAM,
        policy="" if waits else _POLICIES.get(row["arm"], row["arm"]),
        seconds=seconds,
        ratio={share: waiting[share] / value for share, value in seconds.items() if share in waiting},
    )


def _cell(row: Mapping[str, str]) -> tuple[str, float, float]:
    return row["workload"], float(row["qps"]), float(row["delay_multiplier"])


def _numbers(row: Mapping[str, str]) -> dict[float, float]:
    return {share: float(row[column]) for column, share in _COLUMNS.items() if row[column]}


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = (files("stream2llm.workloads") / "paper" / name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())
