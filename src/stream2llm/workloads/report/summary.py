"""All figures of a report as one value, for the tables and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from stream2llm.workloads.comparison import Cell, Row, Setting, Spread
from stream2llm.workloads.events import Arm, Clock
from stream2llm.workloads.measured import SHARES, Measured, percentile_name, quantile
from stream2llm.workloads.published import Preemptions
from stream2llm.workloads.report.beside import beside, published_preemptions

SIMULATED = "simulated (virtual clock)"
REAL = "real engine"

Percentiles = Mapping[str, Spread]  # by name: P50, P95, P99, P99.9


class Paper(msgspec.Struct, frozen=True):
    """One figure beside the paper's; `unit`: "s", or "x" for times sooner than waiting."""

    unit: str
    ours: float
    paper: float
    deviation: float
    far: bool


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One variant under one load. Times in seconds, throughput in queries per second; ratios are over waiting's."""

    name: str
    arm: Arm
    policy: str
    preemption: str
    settings: tuple[Setting, ...]
    logs: tuple[str, ...]
    seeds: tuple[int, ...]
    queries: int
    failed: int
    unfinished: int
    ttft_seconds: Percentiles
    times_sooner: Percentiles
    completion_seconds: Percentiles
    throughput: Spread | None
    throughput_ratio: Spread | None
    total_seconds: Spread | None
    total_ratio: Spread | None
    counters: Mapping[str, Spread]
    tokens_needed: Spread | None
    work_ratio: Spread | None
    net_work_ratio: Spread | None
    paper: Mapping[str, Paper]
    paper_preemptions: Preemptions | None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load: the lines may be compared with each other."""

    title: str
    simulated: bool
    workload: str
    qps: float
    delay: float
    time_scale: float
    machine: str
    model: str
    lines: tuple[Line, ...]

    @property
    def clock(self) -> str:
        """Said wherever a figure of it stands."""
        return SIMULATED if self.simulated else REAL


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`notes`: what a reader must know of the logs, e.g. that one was cut off."""

    format: str = "stream2llm-report"
    version: int = 1
    loads: tuple[Load, ...]
    notes: tuple[str, ...]


def summarise(rows: Sequence[Row], notes: Sequence[str] = ()) -> Summary:
    """`rows` as `comparison.compare` gives them."""
    loads = tuple(_load(cell, tuple(of_it)) for cell, of_it in groupby(rows, key=lambda row: row.cell))
    return Summary(loads=loads, notes=tuple(notes))


def _load(cell: Cell, rows: Sequence[Row]) -> Load:
    return Load(
        title=str(cell),
        simulated=cell.clock is Clock.VIRTUAL,
        workload=cell.workload,
        qps=cell.qps,
        delay=cell.delay,
        time_scale=cell.time_scale,
        machine=cell.machine,
        model=cell.model,
        lines=tuple(map(_line, rows)),
    )


def _line(row: Row) -> Line:
    names = sorted({name for run in row.runs for name in run.counters})
    return Line(
        name=str(row.variant),
        arm=row.variant.arm,
        policy=row.variant.policy,
        preemption=row.variant.preemption,
        settings=row.variant.settings,
        logs=tuple(str(run.path) for run in row.runs if run.path),
        seeds=tuple(run.run.seed for run in row.runs),
        queries=sum(len(run.queries) for run in row.runs),
        failed=sum(run.failed for run in row.runs),
        unfinished=sum(len(run.queries) - run.failed - len(run.completion) for run in row.runs),
        ttft_seconds=_percentiles({share: row.seconds(share) for share in SHARES}),
        times_sooner=_percentiles({share: row.times_sooner(share) for share in SHARES}),
        completion_seconds=_percentiles({share: _completion(row, share) for share in SHARES}),
        throughput=row.spread(_throughput),
        throughput_ratio=row.against_waiting(_throughput),
        total_seconds=row.spread(_total_seconds),
        total_ratio=row.against_waiting(_total_seconds),
        counters={name: spread for name in names if (spread := _counter(row, name))},
        tokens_needed=row.spread(lambda run: run.tokens_needed),
        work_ratio=row.spread(lambda run: run.work_ratio),
        net_work_ratio=row.spread(lambda run: run.net_work_ratio),
        paper={percentile_name(b.share): Paper(b.unit, b.ours, b.paper, b.deviation, b.far) for b in beside(row)},
        paper_preemptions=published_preemptions(row),
    )


def _throughput(run: Measured) -> float | None:
    return run.throughput or None


def _total_seconds(run: Measured) -> float | None:
    return run.total_seconds or None


def _counter(row: Row, name: str) -> Spread | None:
    return row.spread(lambda run: run.counters.get(name))


def _completion(row: Row, share: float) -> Spread | None:
    return row.spread(lambda run: quantile(run.completion, share) if run.completion else None)


def _percentiles(spreads: Mapping[float, Spread | None]) -> Percentiles:
    return {percentile_name(share): spread for share, spread in spreads.items() if spread is not None}
