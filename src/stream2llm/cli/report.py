"""`stream2llm report`: tables and pictures from event logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream2llm.cli.bars import Bars
from stream2llm.cli.needs import PAGES, PICTURES, TRACES, require

if TYPE_CHECKING:
    from stream2llm.costs import CostProfile

HELP = """Make tables and pictures from the event logs that `stream2llm replay` and `stream2llm simulate` write.

Runs of the same load (workload, rate, delays, machine, model) are compared, each with the waiting run of its own seed;
several seeds give a median and a range. DIR gets report.html, which needs no other file, report.json and PNGs.

Exit status: 0 when the report was written, 1 when it could not be written, 2 for a file that is no event log.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(help=HELP, short_help="Make tables and pictures from event logs.")
    def report(
        logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Event logs (.jsonl or .jsonl.gz).")],
        out: Annotated[
            Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write to; made if need be.")
        ],
        profile: Annotated[
            list[str] | None,
            typer.Option(help="Draw this cost profile's curves: 2xh200, 2xh100 or a file. Repeatable."),
        ] = None,
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of tables."),
    ) -> None:
        require("report", *TRACES, *PICTURES, *PAGES)
        from rich.console import Console

        from stream2llm.workloads.lines import FormatError
        from stream2llm.workloads.report.console import show
        from stream2llm.workloads.report.writing import NothingMeasured, report_on, write_report
        from stream2llm.workloads.report.writing import as_json as to_json

        try:
            _check_twice(logs)
            profiles = [_profile(name) for name in profile or []]
            with Bars() as bars:
                found = report_on(logs, bars.show)
                try:
                    target = write_report(found, out, profiles, bars.show)
                except OSError as error:
                    raise _failed(f"the report cannot be written to {out}: {error}", 1) from error
        except (FormatError, NothingMeasured, ValueError) as error:
            raise _failed(str(error), 2) from error
        except OSError as error:
            raise _failed(f"{error.filename}: {error.strerror}", 2) from error
        if as_json:
            typer.echo(to_json(found.summary).decode())
        else:
            show(found.summary, Console())
            typer.echo(f"\nWritten to {target}")


def _check_twice(logs: list[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in logs:
        if (other := seen.setdefault(path.resolve(), path)) is not path:
            raise ValueError(f"{other} is named twice; every log counts as a run of its own")


def _profile(name: str) -> CostProfile:
    from stream2llm.costs.builtin import PAPER_MACHINES, paper_profile
    from stream2llm.costs.store import load

    return paper_profile(name) if name in PAPER_MACHINES else load(Path(name))


def _failed(message: str, status: int) -> typer.Exit:
    typer.echo(f"stream2llm report: {message}", err=True)
    return typer.Exit(status)
