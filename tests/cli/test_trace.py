"""`stream2llm trace`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stream2llm.cli import app
from stream2llm.workloads.trace import read_trace


def trace(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def generated(path: Path, workload: str = "crawler", queries: int = 40, seed: int = 0) -> Path:
    done = trace("generate", workload, "--queries", queries, "--seed", seed, "-o", path)
    assert (done.exit_code, done.stdout) == (0, f"{queries:,} queries written to {path}\n"), done.output
    return path


def edited(path: Path, line: int, **fields: object) -> Path:
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | fields)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("workload", ["crawler", "anns"])
def test_what_is_generated_is_a_trace_that_says_how_it_was_made(tmp_path: Path, workload: str) -> None:
    found = read_trace(generated(tmp_path / "t.jsonl", workload, 7, 3))
    assert len(found.queries) == 7
    assert found.header.workload == workload
    assert found.header.description == "synthetic, 7 queries, seed 3"


def test_gz_is_compressed_and_the_same(tmp_path: Path) -> None:
    plain, packed = generated(tmp_path / "t.jsonl"), generated(tmp_path / "t.jsonl.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_stats_show_every_figure_and_how_far_it_is_from_the_published_one(tmp_path: Path) -> None:
    done = trace("stats", generated(tmp_path / "t.jsonl", queries=1500))
    assert done.exit_code == 0
    assert done.stdout.startswith("crawler: 1,500 queries\n")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[3:] if line}
    assert list(rows)[:11] == ["count", "mean", "std", "min", "p5", "p25", "p50", "p75", "p95", "p99", "max"]
    values, deviations = rows["mean"][::2], rows["mean"][1::2]
    assert [float(value.replace(",", "")) for value in values] == pytest.approx([1.053, 7.86, 8889, 9.219], rel=0.05)
    assert all(abs(float(each.rstrip("%"))) < 5 for each in deviations)


def test_stats_of_ones_own_workload_compare_with_nothing(tmp_path: Path) -> None:
    path = edited(generated(tmp_path / "t.jsonl"), 1, workload="mine")
    assert "%" not in trace("stats", path).stdout
    assert json.loads(trace("stats", path, "--json").stdout)["deviation_from_published"] == {}


def test_stats_as_json(tmp_path: Path) -> None:
    found = json.loads(trace("stats", generated(tmp_path / "t.jsonl"), "--json").stdout)
    assert found["workload"] == "crawler"
    assert found["chunks"]["count"] == 40
    assert set(found["gap_s"]) >= {"mean", "p50", "p95", "std", "max"}
    assert found["deviation_from_published"]["tokens"]["p50"] == pytest.approx(found["tokens"]["p50"] / 5749 - 1)


def test_a_plot_is_a_png(tmp_path: Path) -> None:
    done = trace("stats", generated(tmp_path / "t.jsonl"), "--plot", tmp_path / "t.png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_a_trace_without_spread_is_drawn_too(tmp_path: Path) -> None:
    path = generated(tmp_path / "t.jsonl", queries=1)
    edited(path, 2, operations=[{"op": "append", "gap_s": 0, "pieces": ["p0"]}], lead_s=0)
    done = trace("stats", path, "--plot", tmp_path / "t.png")
    assert done.exit_code == 0, done.output


def test_a_trace_that_is_right(tmp_path: Path) -> None:
    path = generated(tmp_path / "t.jsonl", "anns")
    done = trace("check", path)
    assert (done.exit_code, done.stdout) == (0, f"{path} is right: 40 queries of the workload anns\n")


@pytest.mark.parametrize(
    ("line", "fields", "says"),
    [
        (5, {"lead_s": -1}, "line 5: Expected `float` >= 0.0 - at `$.lead_s`"),
        (3, {"id": "crawler-00000"}, "there are two queries with the `id` 'crawler-00000'; ids must be unique"),
        (
            4,
            {"operations": [{"op": "append", "gap_s": 1, "pieces": ["x"]}]},
            "line 4: `operations[0].pieces` names 'x'",
        ),
        (1, {"version": 2}, "version 2 of stream2llm-trace; this release reads version 1"),
    ],
)
def test_a_trace_that_is_wrong(tmp_path: Path, line: int, fields: dict[str, object], says: str) -> None:
    path = edited(generated(tmp_path / "t.jsonl"), line, **fields)
    done = trace("check", path)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"stream2llm trace: {path}")
    assert says in done.stderr


def test_a_trace_without_a_query(tmp_path: Path) -> None:
    path = generated(tmp_path / "t.jsonl")
    path.write_text(path.read_text().splitlines()[0])
    done = trace("check", path)
    assert (done.exit_code, "there is no query in it" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "web", "-o", "t.jsonl"),
        ("generate", "anns", "--queries", 0, "-o", "t.jsonl"),
        ("generate", "anns"),
        ("stats", "missing.jsonl"),
        ("import", "crawl", "missing", "-o", "t.jsonl"),
    ],
)
def test_wrong_use_is_exit_status_2(arguments: tuple[object, ...]) -> None:
    assert trace(*arguments).exit_code == 2


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = trace("generate", "anns", "-o", tmp_path / "no" / "t.jsonl")
    assert done.exit_code == 2
    assert (
        done.stderr == f"stream2llm trace: {tmp_path}/no/t.jsonl cannot be written: there is no folder {tmp_path}/no\n"
    )


def a_crawl(folder: Path, name: str = "query_1.csv", end: str = "2.5") -> Path:
    folder.mkdir(exist_ok=True)
    rows = 'type,endTime,content,query\ntavily_search,1.5,,"Where, then?"\npage_scrape,{},Here.,\npage_scrape,3,,\n'
    (folder / name).write_text(rows.format(end))
    return folder


def test_an_import_says_what_it_left_out(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    done = trace("import", "crawl", a_crawl(tmp_path / "crawls"), "-o", out, "--license", "CC0-1.0")
    assert (done.exit_code, done.stdout) == (0, f"1 queries written to {out}\n")
    assert done.stderr == "left out: 1 pages without content or end\n"
    found = read_trace(out)
    assert (found.header.workload, found.header.license) == ("crawler", "CC0-1.0")
    assert found.header.description == "imported from crawls"


def test_an_import_of_searches(tmp_path: Path) -> None:
    (tmp_path / "query_trace_map_1.json").write_text('{"3": {"query": "Where?", "trace_file": "3.csv"}}')
    (tmp_path / "retrieved_corpus_content.part.0.json").write_text('{"11": "Here."}')
    (tmp_path / "3.csv").write_text("StartTime_us,EndTime_us,PipelinePool\n0,1500000,(11)\n")
    out = tmp_path / "t.jsonl.gz"
    assert trace("import", "anns", tmp_path, "-o", out).exit_code == 0
    (query,) = read_trace(out).queries
    assert (query.id, query.retrieval_s, query.context) == ("3", 1.5, ("11",))


def test_only_the_first_queries(tmp_path: Path) -> None:
    for number in range(3):
        a_crawl(tmp_path / "crawls", f"query_{number}.csv")
    trace("import", "crawl", tmp_path / "crawls", "-o", tmp_path / "t.jsonl", "--queries", 2)
    assert [query.id for query in read_trace(tmp_path / "t.jsonl").queries] == ["query_0", "query_1"]


def test_an_import_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    out.write_text("before")
    a_crawl(tmp_path / "crawls")
    done = trace("import", "crawl", a_crawl(tmp_path / "crawls", "query_2.csv", "soon"), "-o", out)
    assert done.exit_code == 2
    assert "query_2.csv, line 3, column endTime: 'soon' is not a number" in done.stderr
    assert out.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"t.jsonl", "crawls"}


def test_an_import_of_nothing_writes_nothing(tmp_path: Path) -> None:
    folder = a_crawl(tmp_path / "crawls")
    (folder / "query_1.csv").write_text("type,endTime,query\ntavily_search,1,q\n")
    done = trace("import", "crawl", folder, "-o", tmp_path / "t.jsonl")
    assert done.exit_code == 2
    assert "no query could be used" in done.stderr
    assert not (tmp_path / "t.jsonl").exists()
