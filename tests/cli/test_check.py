"""`stream2llm check` as a user runs it, on engines of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("stream2llm"))


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    return subprocess.run([PROGRAM, "check", *arguments], capture_output=True, text=True, timeout=240, env=environ)


def test_streams_are_exact_and_the_terminal_shows_progress_only(model: str) -> None:
    done = check("exactness", "--cases", "6", "--model", model, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert (report["cases"], report["equal"], report["leaked_blocks"]) == (6, 6, 0)
    assert report["reused_tokens"] > 0
    assert_progress_only(done.stderr, "streamed", "compared")


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_streams_that_want_twice_the_memory_finish_exactly(model: str, preemption: str) -> None:
    asked = ("--streams", "16", "--longest", "400", "--pool", "50", "--preemption", preemption)
    done = check("pressure", *asked, "--model", model, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    requests = 12 + 4  # finals, and plain requests
    assert (report["requests"], report["finished"], report["equal"]) == (requests, requests, requests)
    assert report["leaked_blocks"] == 0
    (run,) = report["runs"]
    assert run["streams_at_once"] == 16
    assert run["kv_blocks"] == 1 + math.ceil(report["wanted_blocks"] / 2)
    assert run["streams_without_memory"] > 0, "there was no pressure"
    assert run["tokens_recomputed" if preemption == "swap" else "tokens_swapped"] == 0
    assert report["work_ratio"] == (run["work_ratio"] if preemption == "swap" else None)
    assert_progress_only(done.stderr, f"50 % {preemption}", "cold answers")


def assert_progress_only(stderr: str, *bars: str) -> None:
    first, *_ = stderr.splitlines()
    assert first == "Starting the engine (about half a minute) ..."
    assert all(f"{what} " in stderr for what in bars)
    assert not any(noise in stderr for noise in ("Warning", "Triton", "Loading"))
