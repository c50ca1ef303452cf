"""`stream2llm simulate`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from costs_profiles import profile
from stream2llm.cli import app
from stream2llm.costs.store import save
from stream2llm.workloads.measured import SHARES, read
from stream2llm.workloads.synthetic import queries
from stream2llm.workloads.trace import Header, Kind, Operation, Piece, Query, write_trace


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def figures(*arguments: object) -> dict[str, object]:
    done = simulate(*arguments, "--json")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return json.loads(done.stdout)


def refused(*arguments: object) -> str:
    """What is said, without the command's name."""
    done = simulate(*arguments)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = done.stderr.splitlines()
    command, said = line.split(": ", 1)
    assert command == "stream2llm simulate"
    return said


def crawl(*pages: int, id: str = "q") -> Query:
    return Query(
        id=id,
        question=Piece(text="Where does it lie?"),
        pieces={f"p{number}": Piece(tokens=tokens) for number, tokens in enumerate(pages)},
        operations=tuple(Operation(Kind.APPEND, 1.0, (f"p{number}",)) for number in range(len(pages))),
    )


def trace(path: Path, played: Sequence[Query], workload: str = "mine") -> Path:
    write_trace(path, Header(workload), played)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three queries of 640 tokens in two pages each."""
    return trace(tmp_path / "small.jsonl", [crawl(320, 320, id=f"q{number}") for number in range(3)])


@pytest.mark.parametrize("workload", ["crawler", "anns"])
def test_synthetic_queries_by_name(workload: str) -> None:
    found = figures(workload, "--queries", 20)
    assert set(found) == {
        "clock", "arm", "policy", "queries", "answered", "ttft_s", "total_s", "work_ratio", "preempted",
        "tokens_invalidated", "steps",
    }  # fmt: skip
    assert [found[name] for name in ("clock", "arm", "policy")] == ["virtual", "stream", "srpf"]
    assert (found["queries"], found["answered"]) == (20, 20)
    assert list(found["ttft_s"]) == ["P50", "P95", "P99", "P99.9"]  # type: ignore[call-overload]
    assert (found["tokens_invalidated"] > 0) == (workload == "anns")  # type: ignore[operator]


def test_a_trace_file_is_played_as_the_synthetic_queries_in_it_are(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl.gz", list(queries("crawler", 20, 0)), "crawler")
    assert figures(path, "--qps", 2) == figures("crawler", "--queries", 20, "--qps", 2)
    assert figures(path, "--qps", 2, "--queries", 7)["queries"] == 7
    assert figures(path, "--qps", 2, "--queries", 99)["queries"] == 20


def test_the_event_log_says_what_was_printed_and_how_it_ran(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl.gz"
    options = ("--qps", 2, "--delay", 3, "--seed", 5, "--policy", "mcps", "--preemption", "swap", "-o", log)
    found = figures("anns", "--queries", 20, *options)
    again = read(log)
    assert not again.cut_off
    assert list(found["ttft_s"].values()) == [round(again.quantile(share), 4) for share in SHARES]  # type: ignore[attr-defined]
    assert found["total_s"] == round(again.total_seconds, 3)
    run = again.run
    assert (run.workload, run.qps, run.delay, run.seed, run.queries) == ("anns", 2.0, 3.0, 5, 20)
    assert (run.arm, run.policy, run.preemption) == ("stream", "mcps", "swap")
    assert (run.machine, run.settings["step_tokens"]) == ("2 x NVIDIA H200", 8192)


def test_the_other_arms_have_no_policy_and_waiting_takes_longest(small: Path) -> None:
    stream, warm, wait = (figures(small, "--arm", arm) for arm in ("stream", "warm", "wait"))
    assert [(each["arm"], each["policy"]) for each in (stream, warm, wait)] == [
        ("stream", "srpf"), ("warm", ""), ("wait", ""),
    ]  # fmt: skip
    waited = wait["ttft_s"]["P50"]  # type: ignore[index]
    assert stream["ttft_s"]["P50"] < waited  # type: ignore[index]
    assert warm["ttft_s"]["P50"] < waited  # type: ignore[index]


def test_as_text_it_says_that_it_is_simulated(small: Path) -> None:
    done = simulate(small, "--arm", "wait")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("simulated (virtual clock), wait: 3 of 3 queries answered in ")
    assert "TTFT in s: P50 " in done.stdout


def test_the_machine_may_be_a_profile_and_its_sizes_are_told(tmp_path: Path, small: Path) -> None:
    save(profile(), tmp_path / "profile.json")
    log = tmp_path / "run.jsonl"
    options = ("--kv-tokens", 2048, "--host-tokens", 512, "--step-tokens", 16, "-o", log)
    found = figures(small, "--machine", tmp_path / "profile.json", "--arm", "wait", *options)
    assert found["steps"] >= 3 * 640 / 16  # type: ignore[operator]
    run = read(log).run
    assert run.settings == {"kv_tokens": 2048, "host_tokens": 512, "step_tokens": 16}
    assert (run.machine, run.model, run.workload) == ("1 x Test GPU", "org/model", "mine")


def test_unless_told_a_step_s_budget_is_the_profile_s_or_the_paper_s(tmp_path: Path, small: Path) -> None:
    save(replace(profile(), step_tokens=512), tmp_path / "profile.json")
    log = tmp_path / "run.jsonl"
    figures(small, "--machine", tmp_path / "profile.json", "--kv-tokens", 2048, "-o", log)
    assert read(log).run.settings["step_tokens"] == 512
    figures(small, "-o", log)
    assert read(log).run.settings["step_tokens"] == 2048


def test_the_seed_draws_the_arrivals_and_the_rate_brings_them_closer_together(small: Path) -> None:
    loads = ((1, 4.0), (1, 4.0), (2, 4.0), (1, 0.5))
    first, again, other, rarer = (figures(small, "--seed", seed, "--qps", qps) for seed, qps in loads)
    assert first == again
    assert len({run["total_s"] for run in (first, other, rarer)}) == 3


def test_a_profile_without_the_size_of_the_kv_cache_is_refused(tmp_path: Path, small: Path) -> None:
    save(profile(), tmp_path / "profile.json")
    assert refused(small, "--machine", tmp_path / "profile.json").startswith("--kv-tokens is missing")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--arm", "fast"), "--arm fast: choose stream, wait or warm"),
        (("--arm", "input"), "vLLM's StreamingInput is not simulated; there are wait, warm, stream"),
        (("--policy", "best"), "no policy 'best': choose one of srpf, "),
        (("--machine", "missing.json"), "the cost profile missing.json cannot be read"),
        (("--machine", __file__), "the cost profile is not JSON"),
        (("--preemption", "swap", "--host-tokens", 0), "its `host_tokens` must be 16 or more"),
        (("-o", "missing/run.jsonl"), "missing/run.jsonl cannot be written: there is no folder missing"),
        (("-o", "/"), "Is a directory: '/'"),
        (("--qps", "inf"), "`qps` is inf"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(small: Path, options: tuple[object, ...], says: str) -> None:
    assert says in refused(small, *options)


@pytest.mark.parametrize(
    "options", [("--queries", 0), ("--delay", -1), ("--delay", "inf"), ("--qps", 0), ("--preemption", "best")]
)
def test_an_option_out_of_its_range_is_exit_status_2(small: Path, options: tuple[object, ...]) -> None:
    done = simulate(small, *options)
    assert done.exit_code == 2
    assert f"Invalid value for '{options[0]}'" in done.stderr


def test_a_name_that_is_neither_a_file_nor_a_workload() -> None:
    assert refused("crawlr") == "crawlr: there is no such file; name a trace file, or crawler or anns"


def test_a_broken_line_is_named_with_its_field(small: Path) -> None:
    lines = small.read_text().splitlines()
    lines[2] = lines[2].replace('"gap_s":1.0', '"gap_s":-1.0', 1)
    small.write_text("\n".join(lines))
    said = refused(small)
    assert said == f"{small}, line 3: Expected `float` >= 0.0 - at `$.operations[0].gap_s`"


def test_a_trace_without_a_query_and_a_trace_with_one_twice(tmp_path: Path) -> None:
    assert refused(trace(tmp_path / "none.jsonl", [])).endswith("none.jsonl: there is no query in it")
    assert "two queries with the `id` 'q'" in refused(trace(tmp_path / "twice.jsonl", [crawl(9), crawl(9)]))


def test_a_prompt_that_the_machine_does_not_serve_is_one_line_on_standard_error(tmp_path: Path) -> None:
    """In a process of its own: libraries write to the file descriptor while they start."""
    path = trace(tmp_path / "long.jsonl", [crawl(10), crawl(2000, 100, id="long")])
    code = "from stream2llm.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", str(path), "--kv-tokens", "2048"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = "query 'long': its longest prompt has 2104 tokens; the machine serves up to 2031"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"stream2llm simulate: {said}\n")
