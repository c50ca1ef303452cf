"""`stream2llm replay` as a user runs it, against the servers of this test run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from http_calls import STREAMS
from replay_traces import query
from stream2llm.workloads.events import Arm, What, read_events
from stream2llm.workloads.measured import read
from stream2llm.workloads.trace import Header, write_trace

PROGRAM = str(Path(sys.executable).with_name("stream2llm"))
QUERIES = [query(f"q{number}", [0.1, 0.2, 0.1], tokens=100 + number, lead_s=0.1) for number in range(6)]


def replay(*arguments, **environ):
    command = [PROGRAM, "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **environ})


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(path, Header("crawler"), QUERIES)
    return path


@pytest.mark.parametrize("arm", ["stream", "wait", "warm"])
def test_each_arm_answers_every_query_and_leaves_a_log(server, trace, tmp_path, arm):
    out = tmp_path / "events.jsonl"
    done = replay(trace, "--server", server.base_url, "--arm", arm, "--qps", 20, "--seed", 3, "-o", out)
    assert done.returncode == 0, done.stderr
    assert f"{arm}: 6 of 6 queries answered, 0 failed" in done.stdout
    assert "time to first token: P50" in done.stdout
    assert "late at P99" in done.stdout
    measured = read(out)
    assert (measured.run.arm, measured.run.qps, measured.run.seed, measured.run.model) == (Arm(arm), 20, 3, "tiny")
    assert len(measured.ttft) == 6
    assert (measured.run.policy, measured.run.preemption) == (("srpf", "recompute") if arm == "stream" else ("", ""))


def test_json_has_the_figures_of_the_log(server, trace, tmp_path):
    out = tmp_path / "events.jsonl.gz"
    done = replay(trace, "--qps", 20, "--queries", 4, "-o", out, "--json", STREAM2LLM_URL=server.base_url)
    figures, measured = json.loads(done.stdout), read(out)
    assert figures["finished"] == figures["queries"] == 4
    assert figures["ttft_p50_s"] == measured.quantile(0.5)
    assert figures["work_ratio"] == measured.work_ratio > 0
    assert figures["counters"]["opened"] == 4


def test_arrivals_from_a_file_and_scales(server, trace, tmp_path):
    gaps, out = tmp_path / "gaps", tmp_path / "events.jsonl"
    gaps.write_text("0.2  # the first\n0.2\n0.2\n0.2\n0.2\n0.2\n")
    options = ("--time-scale", 0.5, "--delay", 3, "--token-scale", 4, "--max-tokens", 3)
    done = replay(trace, "--server", server.base_url, "--arrivals", gaps, *options, "-o", out)
    assert done.returncode == 0, done.stderr
    run, records = read_events(out)
    events = [event for event in records if hasattr(event, "what")]
    assert (run.qps, run.time_scale, run.delay) == (pytest.approx(5), 0.5, 3)
    first = {event.what: event for event in events if event.query == "q0"}
    assert first[What.ARRIVED].t >= 0.1
    assert first[What.LAST].t - first[What.ARRIVED].t >= 0.9 * 0.5 * (0.1 + 3 * 0.4)
    assert first[What.LAST].tokens == 2 + 3 * 25 + 1
    assert first[What.END].tokens == 3


def test_the_load_is_matched_to_the_papers_and_can_be_repeated(server, trace, tmp_path):
    out = tmp_path / "events.jsonl"
    done = replay(trace, "--server", server.base_url, "--match-paper", "--token-scale", 2, "--qps", 200, "-o", out)
    assert done.returncode == 0, done.stderr
    run = read(out).run
    assert f"--token-scale 2 --time-scale {run.time_scale:g}" in done.stderr
    assert "matched to 2xh200 at 200 queries/s" in done.stderr


def test_ctrl_c_closes_the_streams_and_keeps_what_was_measured(server, tmp_path):
    trace, out = tmp_path / "slow.jsonl", tmp_path / "events.jsonl"
    write_trace(trace, Header("crawler"), [QUERIES[0], query("slow", [0.1, 600.0]), query("later", [0.1])])
    gaps = tmp_path / "gaps"
    gaps.write_text("0\n0\n600\n")
    command = [PROGRAM, "replay", str(trace), "--server", server.base_url, "--arrivals", str(gaps), "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out.exists() and '"end"' in out.read_text()):
        assert time.monotonic() < deadline, "no query was answered"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "1 of 3 queries answered, 0 failed, 1 stopped" in stdout
    measured = read(out)
    assert len(measured.ttft) == 1
    assert {item.query for item in measured.queries} == {"q0", "slow"}
    assert measured.counters["finals"] == 1
    assert httpx.get(f"{server.base_url}{STREAMS}").json()["data"] == []


def test_a_query_that_fails_shows_in_the_exit_status(server, tmp_path):
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, Header("crawler"), [QUERIES[0], query("long", [0.1], tokens=5000)])
    done = replay(trace, "--server", server.base_url, "--qps", 20, "-o", tmp_path / "events.jsonl")
    assert done.returncode == 1
    assert "1 of 2 queries answered, 1 failed" in done.stdout
    assert "the last error: " in done.stdout
    assert "4096" in done.stdout


def test_streams_are_asked_of_a_server_that_has_them(stock_server, trace, tmp_path):
    done = replay(trace, "--server", stock_server.base_url, "-o", tmp_path / "events.jsonl")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no context streams; start it with `stream2llm serve`, or take --arm warm" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--server", "http://127.0.0.1:9"), 1, "no server answers at http://127.0.0.1:9"),
        (("--qps", "0"), 2, "`qps` is 0"),
        (("--qps", "1", "--arrivals", "gaps"), 2, "one of --qps and --arrivals"),
        (("--arrivals", "nowhere"), 2, "nowhere"),
        (("--queries", "7"), 2, "7 queries are asked for, and the trace has 6"),
        (("--time-scale", "0"), 2, "--time-scale is 0.0; it must be a number above 0"),
        (("--token-scale", "nan"), 2, "--token-scale is nan"),
        (("--match-paper", "--time-scale", "2"), 2, "leave --time-scale out"),
        (("--vocabulary", "5"), 2, "expected FIRST:LAST"),
        (("--", "--max-model-len", "64"), 2, "only --arm input starts an engine"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(trace, tmp_path, arguments, status, message):
    done = replay(trace, "-o", tmp_path / "events.jsonl", *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_trace_is_named_with_its_line(tmp_path):
    (tmp_path / "trace.jsonl").write_text(
        '{"format": "stream2llm-trace", "version": 1, "workload": "x"}\n{"id": "a"}\n'
    )
    done = replay(tmp_path / "trace.jsonl", "-o", tmp_path / "events.jsonl")
    assert done.returncode == 2
    assert "trace.jsonl, line 2" in done.stderr


def test_streaming_input_refuses_a_replacement(tmp_path):
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, Header("anns"), [query("q", [0.1, 0.1], replaces={1})])
    done = replay(trace, "--arm", "input", "-o", tmp_path / "events.jsonl")
    assert done.returncode == 2
    assert "query 'q': operations[1] replaces the context" in done.stderr
