"""docs/traces.md: its commands run as written, its examples are of the formats, its output is what comes out."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stream2llm.cli import app
from stream2llm.workloads.events import Arm, What, read_events
from stream2llm.workloads.measured import read
from stream2llm.workloads.synthetic import MODELS, NEWCOMERS, OPENING_TOKENS, POOL, QUESTION_TOKENS
from stream2llm.workloads.trace import Kind, Query, read_trace

DOCUMENT = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line[2:] for block in blocks("console") for line in block.splitlines()]


def example(number: int, folder: Path) -> Path:
    path = folder / "example.jsonl"
    path.write_text(blocks("json")[number], encoding="utf-8")
    return path


def the_papers_data(folder: Path) -> None:
    crawls, searches = folder / "crawls", folder / "searches"
    crawls.mkdir()
    searches.mkdir()
    (crawls / "query_0.csv").write_text(
        "type,endTime,content,query\ntavily_search,1.5,,Where?\npage_scrape,2.5,Here.,\n"
    )
    (searches / "query_trace_map_1.json").write_text('{"0": {"query": "Where?", "trace_file": "0.csv"}}')
    (searches / "retrieved_corpus_content.part.0.json").write_text('{"62952551": "Here.", "79119332": "There."}')
    (searches / "0.csv").write_text('StartTime_us,EndTime_us,PipelinePool\n0,1500,"(62952551,79119332)"\n')


def test_the_commands_run_in_order_and_stats_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    the_papers_data(tmp_path)
    printed = {}
    for command in commands():
        name, *arguments = shlex.split(command)
        assert name == "stream2llm"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{command}: {done.output}"
        printed[command] = done.stdout
    (stats,) = (text for command, text in printed.items() if " stats " in command)
    assert [stats] == blocks("text")
    assert len(printed) == 5
    assert {path.name for path in tmp_path.glob("*.gz")} == {
        "crawler.jsonl.gz",
        "imported-crawls.jsonl.gz",
        "imported-searches.jsonl.gz",
    }


def test_the_trace_is_one_and_does_what_the_text_says(tmp_path: Path) -> None:
    (query,) = read_trace(example(0, tmp_path)).queries
    assert query.lead_s == 1.9
    assert {operation.op for operation in query.operations} == {Kind.APPEND}
    assert query.retrieval_s == pytest.approx(3.8)


def test_the_event_log_is_one_and_so_is_its_ttft(tmp_path: Path) -> None:
    path = example(1, tmp_path)
    assert read(path).ttft == pytest.approx((0.05,))
    _, records = read_events(path)
    assert len(list(records)) == 7


def test_the_python_writes_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("python")
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert read_trace(tmp_path / "mine.jsonl").queries == (names["query"],)


def test_the_tables_name_every_field_event_and_arm() -> None:
    for name in (*Query.__struct_fields__, *What, *Arm):
        assert f"`{name}`" in DOCUMENT
    fields = json.loads(blocks("json")[0].splitlines()[1])
    assert set(fields) == set(Query.__struct_fields__)


def test_the_model_is_the_one_that_is_told() -> None:
    crawler, anns = MODELS["crawler"], MODELS["anns"]
    assert (crawler.tokens, anns.tokens) == ((430, 110_000), (2_600, 112_000))
    assert (crawler.tail, anns.tail) == ({99: 46_000, 99.9: 90_000}, {99: 75_000, 99.9: 102_000})
    assert (crawler.duration_s, anns.duration_s) == ((2, 30), (1.2, 17))
    assert (crawler.least_s, anns.least_s, crawler.spread, anns.spread) == (0.2, 0.5, 1, 0.5)
    assert (crawler.chunks, POOL, NEWCOMERS, OPENING_TOKENS, QUESTION_TOKENS) == (2, 10, 1, 20, 20)
