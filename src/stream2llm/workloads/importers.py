"""The paper's published data formats, read into queries of ours. The data itself is not part of this project.

Timelines are those of the paper's replay: a page is there when its row ends; a candidate pool is handed over when its
row ends, so each row's length is the gap before its pool, and the last pool comes with the end of the search.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec

from stream2llm.workloads.lines import FormatError
from stream2llm.workloads.tables import read_json, read_rows
from stream2llm.workloads.trace import Kind, Operation, Piece, Query

OPENING = "Answer the question from the context.\nContext:\n"
BEFORE_QUESTION = "\nQuestion: "

SEARCH, PAGE = "tavily_search", "page_scrape"
"""What the column `type` of a crawl calls its rows."""

QUERY_MAPS = "query_trace_map_*.json"
CORPUS_PARTS = "retrieved_corpus_content.part.*.json"
TRACES = "res"
"""Where a data set of vector searches has what; the traces may lie beside the rest as well."""

A_DAY = 86_400.0
"""No retrieval takes longer; what seems to has its times in another unit, or since another day."""

_POOL = re.compile(r"\(?\s*(\d+(?:\s*,\s*\d+)*)?\s*,?\s*\)?")

Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""


def silent(what: str, done: int, total: int) -> None:
    """Shows no progress."""


class _Mapped(msgspec.Struct, frozen=True):
    """What a query map says of a query."""

    query: str
    trace_file: str


def read_crawls(folder: Path, left_out: Counter[str], progress: Progress = silent) -> Iterator[Query]:
    """The queries of a folder with a CSV for each: the rows of its search and pages, `endTime` in seconds.

    What cannot be used is counted in `left_out` by what it is. Raises `FormatError` with file, line and column, and
    `OSError`.
    """
    paths = sorted(folder.glob("*.csv"), key=_in_order)
    if not paths:
        raise FormatError(f"{folder}: there is no .csv file in it; it must be the folder with a CSV for each query")
    return _crawls(paths, left_out, progress)


def _crawls(paths: Sequence[Path], left_out: Counter[str], progress: Progress) -> Iterator[Query]:
    for number, path in enumerate(paths, 1):
        if (query := _crawl(path, left_out)) is not None:
            yield query
        progress("reading crawls", number, len(paths))


def _crawl(path: Path, left_out: Counter[str]) -> Query | None:
    question, started, ended = None, list[float](), 0.0
    pages: list[tuple[float, str]] = []
    for row in read_rows(path, ("type", "endTime", "query")):
        if row.text("startTime"):
            started.append(row.number("startTime"))
        if row.text("type") == SEARCH and question is None:
            question, ended = row.text("query").strip(), row.number("endTime")
        elif row.text("type") != PAGE:
            left_out["rows that are neither the search nor a page"] += 1
        elif row.text("content").strip() and row.text("endTime"):
            pages.append((row.number("endTime"), row.text("content")))
        else:
            left_out["pages without content or end"] += 1
    if not question or not pages:
        left_out["queries without a page" if question else "queries without a question"] += 1
        return None
    pages.sort(key=lambda page: page[0])
    names = [f"page{number}" for number in range(len(pages))]
    before = accumulate([ended, *(end for end, _ in pages)], max)
    gaps = [_seconds(then, end) for then, (end, _) in zip(before, pages, strict=False)]
    query = Query(
        id=path.stem,
        question=Piece(text=BEFORE_QUESTION + question),
        operations=tuple(Operation(Kind.APPEND, gap, (name,)) for gap, name in zip(gaps, names, strict=True)),
        pieces={name: Piece(text=content + "\n") for name, (_, content) in zip(names, pages, strict=True)},
        lead_s=_seconds(min(started, default=0.0), ended),
        opening=Piece(text=OPENING),
        source=path.name,
    )
    if query.retrieval_s > A_DAY:
        raise FormatError(f"{path}: the crawl takes {query.retrieval_s:g} s; endTime must be in seconds")
    return query


def read_searches(
    folder: Path, left_out: Counter[str], progress: Progress = silent, query_map: Path | None = None
) -> Iterator[Query]:
    """The queries of a folder with a query map, the parts of a corpus, and a CSV for each vector search.

    A row is a candidate pool (`PipelinePool`: passages in rank order) and when it was the best (`StartTime_us`,
    `EndTime_us`). `query_map`: which one, if there are several. Only passages that a pool names are kept in memory.
    Otherwise as `read_crawls`.
    """
    mapped = read_json(query_map or _the_query_map(folder), dict[str, _Mapped])
    parts = sorted(folder.glob(CORPUS_PARTS), key=_in_order)
    if not parts:
        raise FormatError(f"{folder}: there is no {CORPUS_PARTS} in it; the passages' texts must be there")
    traces = folder / TRACES if (folder / TRACES).is_dir() else folder
    return _searches(mapped, traces, parts, left_out, progress)


def _searches(
    mapped: dict[str, _Mapped], traces: Path, parts: Sequence[Path], left_out: Counter[str], progress: Progress
) -> Iterator[Query]:
    searches: dict[str, tuple[_Pool, ...]] = {}
    for number, (name, query) in enumerate(mapped.items(), 1):
        path = traces / query.trace_file
        if path.is_file():
            searches[name] = tuple(_pools(path))
        else:
            left_out["queries whose trace file is missing"] += 1
        progress("reading searches", number, len(mapped))
    named = {passage for pools in searches.values() for pool in pools for passage in pool.passages}
    corpus = _corpus(parts, named, progress)
    for name, pools in searches.items():
        if (found := _search(name, mapped[name], pools, corpus, left_out)) is not None:
            yield found


@dataclass(frozen=True, slots=True)
class _Pool:
    passages: tuple[str, ...]
    gap_s: float


def _pools(path: Path) -> Iterator[_Pool]:
    """The candidate pools of a search that are not empty. An empty one's time is added to the next."""
    waited = 0.0
    for row in read_rows(path, ("StartTime_us", "EndTime_us", "PipelinePool")):
        start, end = row.number("StartTime_us"), row.number("EndTime_us")
        if not start <= end <= start + A_DAY * 1e6:
            raise row.error("EndTime_us", f"must be within a day after the row's StartTime_us, {start:.0f}")
        waited += _seconds(start * 1e-6, end * 1e-6)
        pool = _POOL.fullmatch(row.text("PipelinePool").strip())
        if pool is None:
            raise row.error("PipelinePool", "is not a list of passages such as (62952551,79119332)")
        if pool[1]:
            yield _Pool(tuple(passage.strip() for passage in pool[1].split(",")), waited)
            waited = 0.0


def _corpus(parts: Sequence[Path], wanted: set[str], progress: Progress) -> dict[str, str]:
    corpus: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        corpus |= {name: text for name, text in read_json(part, dict[str, str]).items() if name in wanted}
        progress("reading the corpus", number, len(parts))
    return corpus


def _search(
    name: str, mapped: _Mapped, pools: Sequence[_Pool], corpus: dict[str, str], left_out: Counter[str]
) -> Query | None:
    named = {passage for pool in pools for passage in pool.passages}
    left_out["passages that the corpus lacks"] += len(named - corpus.keys())
    operations = tuple(
        Operation(Kind.REPLACE, round(pool.gap_s, 6), tuple(passage for passage in pool.passages if passage in corpus))
        for pool in pools
    )
    if not mapped.query.strip() or not operations:
        left_out["queries without a question" if operations else "queries without a pool"] += 1
        return None
    return Query(
        id=name,
        question=Piece(text=BEFORE_QUESTION + mapped.query.strip()),
        operations=operations,
        pieces={passage: Piece(text=corpus[passage] + "\n") for passage in sorted(named & corpus.keys())},
        opening=Piece(text=OPENING),
        source=mapped.trace_file,
    )


def _the_query_map(folder: Path) -> Path:
    maps = sorted(folder.glob(QUERY_MAPS))
    if len(maps) != 1:
        found = ", ".join(path.name for path in maps) or "none"
        raise FormatError(f"{folder}: there must be one {QUERY_MAPS} in it, and found is {found}; name the query map")
    return maps[0]


def _seconds(before: float, after: float) -> float:
    """In whole microseconds; 0 for what was there before."""
    return round(max(0.0, after - before), 6)


def _in_order(path: Path) -> tuple[int, str]:
    """By the last number in the name, then by name."""
    numbers = re.findall(r"\d+", path.name)
    return (int(numbers[-1]) if numbers else -1, path.name)
