"""Many simulated runs, in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from stream2llm.cli.quiet import quiet_libraries
from stream2llm.workloads.arrivals import poisson
from stream2llm.workloads.evaluation import Planned
from stream2llm.workloads.events import Run
from stream2llm.workloads.machines import STEP_TOKENS, paper_machine
from stream2llm.workloads.measured import Measured, read
from stream2llm.workloads.synthetic import queries


def run_all(
    planned: Iterable[Planned], folder: Path, machine: str, processes: int | None, progress: Callable[[int], None]
) -> list[Measured]:
    """Simulate each that has no event log in `folder` yet; in the order in which they end.

    `processes`: None for one on each core. `progress` is told how many have ended. Raises what a run raised, after
    those under way have ended, and `OSError`.
    """
    cores = len(os.sched_getaffinity(0))
    spawning = multiprocessing.get_context("spawn")  # vLLM must not be forked
    with ProcessPoolExecutor(processes or cores, mp_context=spawning) as pool:
        futures = [pool.submit(run_one, run, folder / f"{run.name}.jsonl.gz", machine) for run in planned]
        results = []
        try:
            for future in as_completed(futures):
                results.append(future.result())
                progress(len(results))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return results


def run_one(run: Planned, log: Path, machine: str) -> Measured:
    """Simulate one, or read what an earlier run left: a log has its name only when it is complete."""
    target = paper_machine(machine, STEP_TOKENS[run.point.workload])
    if log.exists():
        earlier = read(log)
        if _is_of(earlier.run, run) and earlier.run.machine == target.profile.subject.hardware:
            return earlier
    with quiet_libraries():
        from stream2llm.vllm.simulate.log import Load, simulate

        point = run.point
        played = list(queries(point.workload, run.queries, run.seed))
        load = Load(point.workload, played, poisson(point.qps, run.seed, len(played)), point.qps, point.delay, run.seed)
        unfinished = log.with_name(f"unfinished-{log.name}")
        measured = simulate(target, run.setup, load, unfinished)
        unfinished.rename(log)
        return replace(measured, path=log)


def _is_of(header: Run, run: Planned) -> bool:
    point, setup = run.point, run.setup
    told = (setup.policy, setup.preemption) if setup.streams else ("", "")
    return (
        (header.workload, header.qps, header.delay, header.seed, header.queries)
        == (point.workload, point.qps, point.delay, run.seed, run.queries)
    ) and (header.arm, header.policy, header.preemption) == (setup.arm, *told)
