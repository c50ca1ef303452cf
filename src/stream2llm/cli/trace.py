"""`stream2llm trace`: make retrieval traces, check them, and see what they are like."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream2llm.cli.bars import Bars
from stream2llm.cli.needs import PICTURES, TRACES, Need, require

if TYPE_CHECKING:
    from stream2llm.workloads.characteristics import Characteristics
    from stream2llm.workloads.trace import Header, Query

BAD = 2  # the exit status for a file or an option that cannot be used

_WORKLOAD = typer.Argument(..., help="`crawler` or `anns`: the paper's.")
_FILE = typer.Argument(metavar="FILE", help="A trace (docs/traces.md).", exists=True, dir_okay=False)
_FOLDER = typer.Argument(metavar="DIR", help="The folder with the data.", exists=True, file_okay=False)
_OUT = typer.Option(..., "-o", "--out", metavar="FILE", help="Where to write the trace; compressed if it ends in .gz.")
_FIRST = typer.Option(None, min=1, help="Only so many queries, the first ones.")
_PLOT = typer.Option(None, metavar="PNG", help="Draw the distributions into this file.")
_QUERY_MAP = typer.Option(
    None, metavar="FILE", exists=True, dir_okay=False, help="Which query map, if DIR has several."
)
_LICENSE = typer.Option("", help="The content's licence, for the trace's header.")


class Workload(StrEnum):
    """The paper's workloads."""

    CRAWLER = "crawler"
    ANNS = "anns"


def register(app: typer.Typer) -> None:
    """Add the command group to the command line."""
    trace = typer.Typer(help="Make retrieval traces, check them, see what they are like.", no_args_is_help=True)
    app.add_typer(trace, name="trace")

    @trace.command()
    def generate(
        workload: Workload = _WORKLOAD,
        out: Path = _OUT,
        queries: int = typer.Option(1000, min=1, help="How many queries."),
        seed: int = typer.Option(0, help="Other seeds give other queries."),
    ) -> None:
        """Make a synthetic trace with the published characteristics of one of the paper's workloads.

        Content is numbers of tokens; a replay draws the tokens. Exit status: 0, or 2 for options that cannot be used.
        """
        with _working() as bars:
            from stream2llm.workloads.synthetic import queries as generated
            from stream2llm.workloads.trace import Header

            header = Header(workload.value, f"synthetic, {queries} queries, seed {seed}")
            made = generated(workload.value, queries, seed)
            written = _write(out, header, _watched(made, bars, "writing queries", queries))
        typer.echo(f"{written:,} queries written to {out}")

    @trace.command()
    def stats(
        file: Path = _FILE,
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
        plot: Path | None = _PLOT,
    ) -> None:
        """Show what a trace is like: gaps, chunks, tokens and durations, as in the paper's tables.

        For a trace of one of the paper's workloads, also how far that is from the published figures. Tokens of texts
        are reckoned at 4 characters each. Exit status: 0, or 2 for a file that is no trace.
        """
        with _working(*(PICTURES if plot else ())) as bars:
            from stream2llm.workloads.characteristics import characterise

            header, queries = _read(file)
            found = characterise(header.workload, _watched(queries, bars, "reading queries"))
            if plot:
                from stream2llm.workloads.distributions import plot_distributions

                plot_distributions(found, plot)
        typer.echo(json.dumps(_json(header, found)) if as_json else _table(found))

    @trace.command()
    def check(file: Path = _FILE) -> None:
        """Read a whole trace and say the line and the field where it is wrong.

        Exit status: 0 if it is right, 2 if not.
        """
        with _working() as bars:
            from stream2llm.workloads.lines import FormatError

            header, queries = _read(file)
            seen: set[str] = set()
            for query in _watched(queries, bars, "reading queries"):
                if query.id in seen:
                    raise FormatError(f"{file}: there are two queries with the `id` {query.id!r}; ids must be unique")
                seen.add(query.id)
            if not seen:
                raise FormatError(f"{file}: there is no query in it; each line after the first must be one")
        typer.echo(f"{file} is right: {len(seen):,} queries of the workload {header.workload}")

    importing = typer.Typer(help="Read the paper's published data formats.", no_args_is_help=True)
    trace.add_typer(importing, name="import")

    @importing.command()
    def crawl(folder: Path = _FOLDER, out: Path = _OUT, queries: int | None = _FIRST, license: str = _LICENSE) -> None:
        """Crawls: a folder with a CSV for each query, with the columns type, endTime, content and query.

        Exit status: 0, or 2 for data that is not of that format.
        """
        left_out: Counter[str] = Counter()
        with _working() as bars:
            from stream2llm.workloads.importers import read_crawls
            from stream2llm.workloads.trace import Header

            header = Header("crawler", f"imported from {folder.resolve().name}", license)
            written = _write(out, header, islice(read_crawls(folder, left_out, bars.show), queries))
        _report(written, out, left_out)

    @importing.command()
    def anns(
        folder: Path = _FOLDER,
        out: Path = _OUT,
        queries: int | None = _FIRST,
        license: str = _LICENSE,
        query_map: Path | None = _QUERY_MAP,
    ) -> None:
        """Vector searches: a folder with a query map, a corpus, and a CSV for each search.

        They are query_trace_map_*.json, retrieved_corpus_content.part.*.json and, there or in the folder `res`, CSVs
        with the columns StartTime_us, EndTime_us and PipelinePool.

        Exit status: 0, or 2 for data that is not of that format.
        """
        left_out: Counter[str] = Counter()
        with _working() as bars:
            from stream2llm.workloads.importers import read_searches
            from stream2llm.workloads.trace import Header

            header = Header("anns", f"imported from {folder.resolve().name}", license)
            written = _write(out, header, islice(read_searches(folder, left_out, bars.show, query_map), queries))
        _report(written, out, left_out)


@contextmanager
def _working(*needs: Need) -> Iterator[Bars]:
    """What is wrong with a file or an option ends the command with one line."""
    require("trace", *TRACES, *needs)
    try:
        with Bars() as bars:
            yield bars
    except (ValueError, OSError) as error:
        typer.echo(f"stream2llm trace: {error}", err=True)
        raise typer.Exit(BAD) from error


def _read(file: Path) -> tuple[Header, Iterator[Query]]:
    """A query at a time: traces of texts may be large."""
    from stream2llm.workloads.lines import read_lines
    from stream2llm.workloads.trace import FORMAT, Header, Query

    return read_lines(file, FORMAT, Header, Query)


def _write(out: Path, header: Header, queries: Iterable[Query]) -> int:
    """The queries written. `out` appears when all of them are; without any there is a `ValueError`."""
    from stream2llm.workloads.trace import write_trace

    if not out.parent.is_dir():
        raise ValueError(f"{out} cannot be written: there is no folder {out.parent}")
    unfinished = out.with_name(f".unfinished-{out.name}")  # with the same suffix, which says whether to compress
    count = 0

    def counted() -> Iterator[Query]:
        nonlocal count
        for query in queries:
            yield query
            count += 1

    try:
        write_trace(unfinished, header, counted())
        if not count:
            raise ValueError("no query could be used, so there is nothing to write")
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _watched(queries: Iterable[Query], bars: Bars, what: str, total: int | None = None) -> Iterator[Query]:
    for done, query in enumerate(queries, 1):
        yield query
        bars.show(what, done, total)


def _report(written: int, out: Path, left_out: Counter[str]) -> None:
    typer.echo(f"{written:,} queries written to {out}")
    for what, count in left_out.items():
        if count:
            typer.echo(f"left out: {count:,} {what}", err=True)


def _json(header: Header, found: Characteristics) -> dict[str, object]:
    from stream2llm.workloads.characteristics import QUANTITIES, deviations

    summaries = {quantity: found.summary(quantity) for quantity in QUANTITIES}
    off = {quantity: deviations(quantity, summary, found.workload) for quantity, summary in summaries.items()}
    return {
        "workload": header.workload,
        "description": header.description,
        "license": header.license,
        **{quantity: summary.json() for quantity, summary in summaries.items()},
        "deviation_from_published": {quantity: each for quantity, each in off.items() if each},
    }


def _table(found: Characteristics) -> str:
    """A column for each quantity, a row for each figure, the deviation from what is published beside it."""
    from stream2llm.workloads.characteristics import QUANTITIES, deviations

    summaries = {quantity: found.summary(quantity) for quantity in QUANTITIES}
    off = {quantity: deviations(quantity, summary, found.workload) for quantity, summary in summaries.items()}
    rows = [["", *QUANTITIES.values()]]
    for figure in summaries["chunks"].json():
        values = [_cell(summaries[q].json()[figure], off[q].get(figure)) for q in QUANTITIES]
        rows.append([figure, *values])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = ["", "In %: how far that is from the paper's published figure."] if any(off.values()) else []
    return "\n".join([f"{found.workload}: {summaries['chunks'].count:,} queries", "", *lines, *notes])


def _cell(value: float, off: float | None) -> str:
    figure = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return figure + (" " * 9 if off is None else f" {off:+8.1%}")
