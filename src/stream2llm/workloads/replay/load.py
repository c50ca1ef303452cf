"""What every arm is to see: the queries of a trace, when they arrive, and how both are scaled. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stream2llm.workloads.arrivals import from_gaps, poisson
from stream2llm.workloads.events import Arm, Clock, Run
from stream2llm.workloads.replay.plan import Planned, WorkloadError, plan
from stream2llm.workloads.trace import Query
from stream2llm.workloads.utilisation import Match, shrunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Queries and their arrivals in the trace's own time and tokens, and what they are scaled by.

    `qps`: queries per second in the trace's time; the server sees `qps / time_scale`. `delay`: multiplies gaps only.
    `token_scale`: divides the tokens of all pieces. `seed`: of the arrivals and of the content.
    """

    workload: str
    queries: tuple[Query, ...]
    arrivals: tuple[float, ...]
    qps: float
    delay: float = 1.0
    time_scale: float = 1.0
    token_scale: float = 1.0
    seed: int = 0

    def planned(self) -> tuple[Planned, ...]:
        """The scaled queries, each with its arrival. Raises `WorkloadError`."""
        scaled = [shrunk(query, self.token_scale).delayed(self.delay) for query in self.queries]
        return plan(scaled, self.arrivals, self.time_scale)

    def matched(self, match: Match) -> Load:
        """The same, scaled as `match` says; the time scale to three digits, so that it can be typed again."""
        return replace(self, token_scale=match.token_scale, time_scale=float(f"{match.time_scale:.3g}"))

    def run(
        self, arm: Arm, *, model: str, max_tokens: int, machine: str = "", policy: str = "", preemption: str = ""
    ) -> Run:
        """The header of a log of this load."""
        return Run(
            clock=Clock.REAL,
            arm=arm,
            workload=self.workload,
            policy=policy,
            preemption=preemption,
            qps=self.qps,
            delay=self.delay,
            time_scale=self.time_scale,
            seed=self.seed,
            queries=len(self.queries),
            model=model,
            machine=machine,
            settings={"token_scale": self.token_scale, "max_tokens": max_tokens},
        )


def taken(queries: Sequence[Query], count: int | None) -> tuple[Query, ...]:
    """The first `count` queries; all of them for None. Raises `WorkloadError` if there are fewer, or none."""
    if not queries:
        raise WorkloadError("the trace has no query")
    if count is not None and count > len(queries):
        raise WorkloadError(f"{count} queries are asked for, and the trace has {len(queries)}")
    return tuple(queries[:count])


def poisson_load(workload: str, queries: Sequence[Query], qps: float, seed: int) -> Load:
    """Poisson arrivals by seed. Raises `ValueError`."""
    arrivals = poisson(qps, seed, len(queries))
    return Load(workload=workload, queries=tuple(queries), arrivals=arrivals, qps=qps, seed=seed)


def load_of_gaps(workload: str, queries: Sequence[Query], gaps: Sequence[float], seed: int) -> Load:
    """Arrivals by the first of these gaps, in seconds. Raises `WorkloadError` if there are too few."""
    if len(gaps) < len(queries):
        raise WorkloadError(f"there are {len(gaps)} gaps between arrivals for {len(queries)} queries")
    arrivals = from_gaps(gaps[: len(queries)])
    qps = len(arrivals) / arrivals[-1] if arrivals[-1] > 0 else 0.0
    return Load(workload=workload, queries=tuple(queries), arrivals=arrivals, qps=qps, seed=seed)
