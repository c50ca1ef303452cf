"""The benchmarks run, and compare what they say they compare. What they measure is not tested: clocks differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import serving

REPOSITORY = Path(__file__).parents[1]


def benchmark(name: str, *options: str) -> Any:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_scheduler_overhead_gives_both_schedulers_the_same_work() -> None:
    results = benchmark("scheduler_overhead", "--live", "6", "10", "--steps", "40")
    assert [result["n"] for result in results] == [6, 10]
    for result in results:
        assert result["scenario"] == "mixed"
        assert result["ratio"] > 0
        assert 0 < result["plan_us"] < result["ours_us"]
        assert result["ours_step_requests"] == result["stock_step_requests"]
        assert result["ours_step_tokens"] == result["stock_step_tokens"] == 2048


def test_scheduler_overhead_goes_on_when_memory_is_short() -> None:
    (result,) = benchmark("scheduler_overhead", "--scenario", "pressure", "--live", "10", "--steps", "40")
    assert 0 < result["plan_us"] < result["ours_us"]
    assert result["ours_step_requests"] >= 5, "the plain requests decode"
    assert "target_ratio" not in result


def test_itl_measures_decodes_with_and_without_streams(server: serving.Server) -> None:
    load = ("--decodes", "2", "--streams", "3", "--every-ms", "100", "--rounds", "1", "--seconds", "1")
    result = benchmark("itl", "--base-url", server.base_url, "--max-model-len", "4096", *load)
    assert result["ratio_p99_min"] == result["ratio_p99"] == result["ratio_p99_max"] > 0
    assert result["engine_ratio_p50"] > 0
    for arm in ("base", "streams", "writes"):
        assert result["arms"][arm]["gaps"] > 0
        assert result["arms"][arm]["tokens_per_event"] >= 1
    assert result["streams"] == 3
    assert "writes" not in result["arms"]["base"]
    assert 0 < result["arms"]["streams"]["prefilled"] <= 1
    assert result["arms"]["writes"]["prefilled"] == 1, "empty chunks leave nothing to prefill"


def test_itl_in_process_measures_steps_with_and_without_streams() -> None:
    load = ("--model", "tiny", "--streams", "3", "--rounds", "1", "--seconds", "0.5", "--max-model-len", "8192")
    result = benchmark("itl_in_process", *load)
    assert result["ratio_p99_min"] == result["ratio_p99"] == result["ratio_p99_max"] > 0
    assert result["gaps"] > 10
    assert 0 < result["prefilled"] <= 1


def test_replay_compares_arms_under_the_same_load(
    server: serving.Server, stock_server: serving.Server, tmp_path: Path
) -> None:
    urls = ("--stock-url", stock_server.base_url, "--stream-url", server.base_url)
    load = ("--scenario", "ample", "--queries", "4", "--seeds", "0", "--token-scale", "32")
    result = benchmark("replay", *urls, *load, "--arms", "warm", "stream", "--out", str(tmp_path))
    assert set(result["arms"]) == {"wait", "warm", "stream recompute"}
    assert result["targets"]["stream recompute"] == {"p50": 6.0, "p95": 7.0, "p99": 5.0}
    assert result["arms"]["wait"]["ratio_p50"] == [1, 1, 1]
    assert result["arms"]["warm"]["throughput_ratio"][0] > 0
    streamed = result["arms"]["stream recompute"]
    assert streamed["work_ratio"][0] == pytest.approx(1, abs=0.05)
    assert streamed["counters"]["finals"] == 4
    assert 0 < result["least_s"]["p50"] <= result["least_s"]["p99"]
    assert len(list(tmp_path.glob("ample/*-seed0.jsonl"))) == 3
