"""A simulated run, and its event log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stream2llm.vllm.simulate.run import Simulation
from stream2llm.workloads.events import Clock, Counters, Event, Run, What, writing_events
from stream2llm.workloads.machines import Machine
from stream2llm.workloads.measured import Measured, measure
from stream2llm.workloads.playable import check
from stream2llm.workloads.setup import Setup
from stream2llm.workloads.trace import Query


@dataclass(frozen=True)
class Load:
    """What is played: queries as they are in the trace, the arrivals in seconds, and how both are called."""

    workload: str
    queries: Sequence[Query]
    arrivals: Sequence[float]
    qps: float
    delay: float = 1.0
    seed: int = 0


def simulate(
    machine: Machine,
    setup: Setup,
    load: Load,
    path: Path | None = None,
    progress: Callable[[int], None] = lambda ended: None,
) -> Measured:
    """Run it; `path`: where the event log goes. `progress` is told how many queries have their answer.

    Raises `ValueError` for what the machine cannot serve (`workloads.playable`), before anything runs, and `OSError`.
    """
    queries = [query.delayed(load.delay) for query in load.queries]
    check(queries, machine, setup)
    run = Run(
        clock=Clock.VIRTUAL,
        arm=setup.arm,
        workload=load.workload,
        policy=setup.policy if setup.streams else "",
        preemption=setup.preemption if setup.streams else "",
        qps=load.qps,
        delay=load.delay,
        seed=load.seed,
        queries=len(load.queries),
        model=machine.profile.subject.model,
        machine=machine.profile.subject.hardware,
        settings={
            "kv_tokens": machine.kv_tokens,
            "host_tokens": machine.host_tokens,
            "step_tokens": machine.step_tokens,
        },
    )
    records = _told(Simulation(machine, setup, queries, load.arrivals).run(), progress)
    if path is None:
        return measure(run, records)
    with writing_events(path, run) as lines:
        return replace(measure(run, lines.passing(records)), path=path)


def _told(records: Iterator[Event | Counters], progress: Callable[[int], None]) -> Iterator[Event | Counters]:
    ended = 0
    for record in records:
        if isinstance(record, Event) and record.what is What.END:
            ended += 1
            progress(ended)
        yield record
