"""The paper's data formats, in hand-made files."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from stream2llm.workloads.importers import BEFORE_QUESTION, OPENING, read_crawls, read_searches
from stream2llm.workloads.lines import FormatError
from stream2llm.workloads.trace import Header, Kind, Query, read_trace, write_trace

CRAWL = ("type", "startTime", "endTime", "content", "query")
SEARCH = ("StartTime_us", "EndTime_us", "StartIteration", "EndIteration", "PipelinePool")


def table(path: Path, columns: tuple[str, ...], *rows: tuple[object, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([columns, *rows])
    return path


def crawls(folder: Path) -> tuple[list[Query], Counter[str]]:
    left_out: Counter[str] = Counter()
    return list(read_crawls(folder, left_out)), left_out


def searches(folder: Path, query_map: Path | None = None) -> tuple[list[Query], Counter[str]]:
    left_out: Counter[str] = Counter()
    return list(read_searches(folder, left_out, query_map=query_map)), +left_out


def a_crawl(folder: Path, name: str = "query_1.csv") -> Path:
    return table(
        folder / name,
        CRAWL,
        ("page_scrape", 1.0, 4.5, "Second, with a comma\nand a line.", ""),
        ("tavily_search", 0, 1.5, "", "Where do otters live?"),
        ("page_scrape", 1.0, 2.0, "First.", ""),
        ("page_scrape", 1.0, 3.0, "", ""),
    )


def data_set(folder: Path) -> Path:
    """Two searches over a corpus of two parts; the first's last passage is not in it."""
    queries = {
        "0": {"query": "What do otters eat?", "trace_file": "q0_pipeline_trace.csv"},
        "7": {"query": "How deep do they dive?", "trace_file": "q7_pipeline_trace.csv"},
    }
    table(
        folder / "res" / "q0_pipeline_trace.csv",
        SEARCH,
        (1_000, 21_000, 0, 2, "(11,12)"),
        (21_000, 31_000, 2, 3, "(11,13,99)"),
        (31_000, 3_031_000, 3, 90, "(13,11)"),
    )
    table(folder / "res" / "q7_pipeline_trace.csv", SEARCH, (0, 500, 0, 1, "()"), (500, 2_000_500, 1, 9, "(12)"))
    (folder / "query_trace_map_2.json").write_text(json.dumps(queries))
    (folder / "retrieved_corpus_content.part.0.json").write_text(json.dumps({"11": "Fish.", "500": "Unused."}))
    (folder / "retrieved_corpus_content.part.1.json").write_text(json.dumps({"12": "Crabs.", "13": "Dives."}))
    return folder


def test_a_crawl_is_a_search_then_its_pages_in_the_order_of_their_ends(tmp_path: Path) -> None:
    a_crawl(tmp_path)
    (query,), left_out = crawls(tmp_path)
    assert query.id == "query_1"
    assert query.lead_s == 1.5
    assert [(o.op, o.gap_s) for o in query.operations] == [(Kind.APPEND, 0.5), (Kind.APPEND, 2.5)]
    assert [query.pieces[name].text for name in query.context] == ["First.\n", "Second, with a comma\nand a line.\n"]
    assert query.opening.text == OPENING
    assert query.question.text == BEFORE_QUESTION + "Where do otters live?"
    assert left_out == {"pages without content or end": 1}


def test_crawls_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        a_crawl(tmp_path, f"query_{number}.csv")
    assert [query.id for query in crawls(tmp_path)[0]] == ["query_9", "query_10", "query_100"]


def test_times_are_since_the_first_start(tmp_path: Path) -> None:
    at = 1_760_000_000
    rows = ("tavily_search", at, at + 2, "", "q"), ("page_scrape", at + 2, at + 5, "Text.", "")
    table(tmp_path / "query_1.csv", CRAWL, *rows)
    (query,), _ = crawls(tmp_path)
    assert (query.lead_s, query.operations[0].gap_s) == (2, 3)


def test_a_page_that_was_there_before_the_search_comes_with_it(tmp_path: Path) -> None:
    rows = ("tavily_search", 0, 3, "", "q"), ("page_scrape", 0, 1, "Early.", ""), ("page_scrape", 0, 4, "Late.", "")
    table(tmp_path / "query_1.csv", CRAWL, *rows)
    (query,), _ = crawls(tmp_path)
    assert [operation.gap_s for operation in query.operations] == [0, 1]
    assert query.retrieval_s == 4


def test_what_cannot_be_used_of_a_crawl_is_counted(tmp_path: Path) -> None:
    table(tmp_path / "query_1.csv", ("type", "endTime", "query"), ("tavily_search", 1, "No column with content"))
    table(tmp_path / "query_2.csv", CRAWL, ("page_scrape", 0, 1, "A page, and no search.", ""))
    table(tmp_path / "query_3.csv", CRAWL, ("tavily_search", 0, 1, "", "q"), ("page_scrape", 0, "", "No end.", ""))
    a_crawl(tmp_path, "query_4.csv")
    with (tmp_path / "query_4.csv").open("a") as file:
        file.write("ad_blocked,0,2,x,\n")
    queries, left_out = crawls(tmp_path)
    assert [query.id for query in queries] == ["query_4"]
    assert left_out == {
        "queries without a page": 2,
        "queries without a question": 1,
        "pages without content or end": 2,
        "rows that are neither the search nor a page": 1,
    }


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (("page_scrape", 0, "soon", "Text.", ""), "line 3, column endTime: 'soon' is not a number"),
        (("page_scrape", 0, -1, "Text.", ""), "line 3, column endTime: '-1' must be 0 or more, and finite"),
        (("page_scrape", "inf", 2, "Text.", ""), "line 3, column startTime: 'inf' must be 0 or more, and finite"),
        (("page_scrape", 0, 1.7e9, "Text.", ""), "the crawl takes 1.7e+09 s; endTime must be in seconds"),
    ],
)
def test_a_cell_that_is_wrong_is_named(tmp_path: Path, cells: tuple[object, ...], says: str) -> None:
    path = table(tmp_path / "query_1.csv", CRAWL, ("tavily_search", 0, 1, "", "q"), cells)
    with pytest.raises(FormatError) as refusal:
        crawls(tmp_path)
    assert str(path) in str(refusal.value)
    assert says in str(refusal.value)


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    table(tmp_path / "query_1.csv", ("type", "content"), ("page_scrape", "Text."))
    with pytest.raises(FormatError, match=r"query_1.csv, line 1: there is no column endTime; there are type, content"):
        crawls(tmp_path)


def test_a_page_of_megabytes_is_one_cell(tmp_path: Path) -> None:
    table(tmp_path / "q.csv", CRAWL, ("tavily_search", 0, 1, "", "q"), ("page_scrape", 0, 2, "word " * 400_000, ""))
    (query,), _ = crawls(tmp_path)
    assert query.tokens > 499_000


def test_a_folder_without_crawls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"there is no .csv file in it"):
        read_crawls(tmp_path, Counter())


def test_a_pool_is_handed_over_when_its_time_is_over(tmp_path: Path) -> None:
    (first, second), left_out = searches(data_set(tmp_path))
    assert first.id == "0"
    assert [(o.op, o.gap_s, o.pieces) for o in first.operations] == [
        (Kind.REPLACE, 0.02, ("11", "12")),
        (Kind.REPLACE, 0.01, ("11", "13")),
        (Kind.REPLACE, 3.0, ("13", "11")),
    ]
    assert {name: piece.text for name, piece in first.pieces.items()} == {
        "11": "Fish.\n",
        "12": "Crabs.\n",
        "13": "Dives.\n",
    }
    assert first.question.text == BEFORE_QUESTION + "What do otters eat?"
    assert [(o.gap_s, o.pieces) for o in second.operations] == [(2.0005, ("12",))]  # behind an empty pool
    assert left_out == {"passages that the corpus lacks": 1}


def test_what_cannot_be_used_of_a_search_is_counted(tmp_path: Path) -> None:
    data_set(tmp_path)
    (tmp_path / "res" / "q7_pipeline_trace.csv").unlink()
    table(tmp_path / "res" / "q0_pipeline_trace.csv", SEARCH, (0, 500, 0, 1, "()"))
    queries, left_out = searches(tmp_path)
    assert queries == []
    assert left_out == {"queries whose trace file is missing": 1, "queries without a pool": 1}


def test_traces_may_lie_beside_the_corpus(tmp_path: Path) -> None:
    data_set(tmp_path)
    for path in (tmp_path / "res").iterdir():
        path.rename(tmp_path / path.name)
    (tmp_path / "res").rmdir()
    assert len(searches(tmp_path)[0]) == 2


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (
            (0, 500, 0, 1, "[1]"),
            "line 2, column PipelinePool: '[1]' is not a list of passages such as (62952551,79119332)",
        ),
        ((0, "later", 0, 1, "(11)"), "line 2, column EndTime_us: 'later' is not a number"),
        ((9, 5, 0, 1, "(11)"), "line 2, column EndTime_us: '5' must be within a day after the row's StartTime_us, 9"),
    ],
)
def test_a_row_of_a_search_that_is_wrong_is_named(tmp_path: Path, cells: tuple[object, ...], says: str) -> None:
    data_set(tmp_path)
    path = table(tmp_path / "res" / "q7_pipeline_trace.csv", SEARCH, cells)
    with pytest.raises(FormatError) as refusal:
        searches(tmp_path)
    assert str(refusal.value) == f"{path}, {says}"


def test_of_two_query_maps_one_must_be_named(tmp_path: Path) -> None:
    data_set(tmp_path)
    other = tmp_path / "query_trace_map_1.json"
    other.write_text(json.dumps({"7": {"query": "How deep?", "trace_file": "q7_pipeline_trace.csv"}}))
    with pytest.raises(FormatError, match=r"found is query_trace_map_1.json, query_trace_map_2.json"):
        searches(tmp_path)
    assert [query.id for query in searches(tmp_path, other)[0]] == ["7"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("query_trace_map_2.json", '{"0": {"query": "q"}}', "missing required field `trace_file`"),
        ("query_trace_map_2.json", "{", "query_trace_map_2.json: Input data was truncated"),
        ("retrieved_corpus_content.part.1.json", '{"12": 3}', "Expected `str`, got `int`"),
    ],
)
def test_json_of_another_form_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    (data_set(tmp_path) / name).write_text(text)
    with pytest.raises(FormatError) as refusal:
        searches(tmp_path)
    assert str(tmp_path / name) in str(refusal.value)
    assert says in str(refusal.value)


@pytest.mark.parametrize("pattern", ["query_trace_map_*.json", "retrieved_corpus_content.part.*.json"])
def test_a_part_of_the_data_that_is_missing_is_named(tmp_path: Path, pattern: str) -> None:
    for path in data_set(tmp_path).glob(pattern):
        path.unlink()
    with pytest.raises(FormatError) as refusal:
        searches(tmp_path)
    assert pattern in str(refusal.value)


def test_what_is_imported_is_a_trace(tmp_path: Path) -> None:
    a_crawl(tmp_path / "crawls")
    queries = [*crawls(tmp_path / "crawls")[0], *searches(data_set(tmp_path))[0]]
    write_trace(tmp_path / "trace.jsonl", Header("mine"), queries)
    assert list(read_trace(tmp_path / "trace.jsonl").queries) == queries


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    list(read_searches(data_set(tmp_path), Counter(), lambda *step: told.append(step)))
    assert told == [
        ("reading searches", 1, 2),
        ("reading searches", 2, 2),
        ("reading the corpus", 1, 2),
        ("reading the corpus", 2, 2),
    ]
