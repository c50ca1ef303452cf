"""The benchmarks run, and compare what they say they compare. What they measure is not tested: clocks differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]


def benchmark(name: str, *options: str) -> Any:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *options]
    return json.loads(subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("scenario", ["mixed", "idle"])
def test_scheduler_overhead_gives_both_schedulers_the_same_work(scenario: str) -> None:
    results = benchmark("scheduler_overhead", "--scenario", scenario, "--live", "6", "10", "--steps", "40")
    assert [result["n"] for result in results] == [6, 10]
    for result in results:
        assert result["scenario"] == scenario
        assert result["ratio"] > 0
        assert 0 < result["plan_us"] < result["ours_us"]
        assert result["ours_step_requests"] == result["stock_step_requests"]
        assert result["ours_step_tokens"] == result["stock_step_tokens"] == 2048


def test_scheduler_overhead_goes_on_when_memory_is_short() -> None:
    (result,) = benchmark("scheduler_overhead", "--scenario", "pressure", "--live", "10", "--steps", "40")
    assert 0 < result["plan_us"] < result["ours_us"]
    assert result["ours_step_requests"] >= 5, "the plain requests decode"
    assert "target_ratio" not in result
