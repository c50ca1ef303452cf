"""Simulated runs, one by one and in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm.vllm.simulate.pool import run_all, run_one
from stream2llm.workloads.evaluation import Planned, Point
from stream2llm.workloads.events import Arm
from stream2llm.workloads.measured import read
from stream2llm.workloads.setup import Setup

POINT = Point("crawler", 4.0, 10.0)


def planned(setup: Setup, queries: int = 12, seed: int = 3) -> Planned:
    return Planned(POINT, setup, queries, seed)


def test_a_run_is_the_one_that_was_planned_and_its_log_lies_where_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    measured = run_one(planned(Setup(policy="lcas")), path, "2xh100")
    run = read(path).run
    assert (run.workload, run.qps, run.delay, run.seed, run.queries) == ("crawler", 4.0, 10.0, 3, 12)
    assert (run.arm, run.policy, run.preemption, run.machine) == ("stream", "lcas", "cost", "2 x NVIDIA H100 80GB HBM3")
    assert read(path).ttft == measured.ttft
    assert len(measured.ttft) == 12


def test_every_arm_sees_the_same_queries_at_the_same_times(tmp_path: Path) -> None:
    runs = [run_one(planned(setup), tmp_path / "run.jsonl", "2xh200") for setup in (Setup(), Setup(Arm.WAIT))]
    stream, wait = ({t.query: (t.arrival, t.last, t.tokens) for t in run.queries} for run in runs)
    assert stream == wait
    other = run_one(planned(Setup(Arm.WAIT), seed=4), tmp_path / "run.jsonl", "2xh200")
    assert [t.arrival for t in other.queries] != [t.arrival for t in runs[1].queries]


def test_what_a_run_raised_is_raised_and_what_had_not_begun_is_not_run(tmp_path: Path) -> None:
    """The second has no query to play. The pool has begun a few of the rest at most when that is known."""
    good, bad = planned(Setup(Arm.WAIT)), planned(Setup(Arm.WAIT), queries=0)
    rest = [planned(Setup(), seed=seed) for seed in range(20)]
    ended: list[int] = []
    with pytest.raises(ValueError, match="`count` is 0"):
        run_all([good, bad, *rest], tmp_path, "2xh200", 1, ended.append)
    assert len(read(tmp_path / f"{good.name}.jsonl.gz").ttft) == 12
    assert ended == [1]
    assert len(list(tmp_path.iterdir())) < len(rest)


def test_a_run_whose_log_is_there_is_read_and_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    first = run_one(planned(Setup()), path, "2xh200")
    written = path.stat().st_mtime_ns
    assert run_one(planned(Setup()), path, "2xh200").ttft == first.ttft
    assert path.stat().st_mtime_ns == written
    assert run_one(planned(Setup(), queries=13), path, "2xh200").run.queries == 13, "the log is of another run"
    assert path.stat().st_mtime_ns != written
    assert [item.name for item in tmp_path.iterdir()] == ["run.jsonl.gz"]
