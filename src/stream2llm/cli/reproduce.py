"""`stream2llm reproduce`: the paper's evaluation, simulated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stream2llm.cli.bars import Bars
from stream2llm.cli.needs import ENGINE, PAGES, PICTURES, TRACES, require
from stream2llm.cli.quiet import quiet_libraries

if TYPE_CHECKING:
    from stream2llm.workloads.claims import Finding

_OUT = typer.Option(Path("reproduced"), "--out", "-o", help="Where logs, tables, pictures and the report go.")
_MACHINES = ("2xh200", "2xh100")


def register(app: typer.Typer) -> None:
    """Add the command group to the command line."""
    reproduce = typer.Typer(help="Published evaluations, run again.", no_args_is_help=True)
    app.add_typer(reproduce, name="reproduce")

    @reproduce.callback()
    def _group() -> None:
        pass

    @reproduce.command()
    def paper(
        quick: bool = typer.Option(False, help="A few hundred queries each: some minutes; the tails say little."),
        out: Path = _OUT,
        machine: str = typer.Option("2xh200", help="`2xh200`, for which the paper has numbers, or `2xh100`."),
        seeds: int = typer.Option(1, min=1, help="How many; figures are the medians."),
        processes: int | None = typer.Option(None, min=1, help="How many at a time; left out: one on each core."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object on standard output."),
    ) -> None:
        """Simulate both workloads at all rates and delays of the paper, by every policy (docs/simulate.md).

        The scheduler and KV-cache manager are the real ones, on a virtual clock; steps take what the profile of the
        machine says. Writes event logs, a report with the paper's numbers beside ours, and what holds and what not.
        A run that is done is not done again: start the command anew with the same folder after an interruption, with
        another folder after an upgrade.

        Exit status: 0 when all has run, whether or not everything holds; 2 for bad input.
        """
        require("reproduce", *TRACES, *PICTURES, *PAGES, ENGINE)
        from dataclasses import replace
        from functools import partial

        from stream2llm.costs import paper_profile
        from stream2llm.workloads.claims import findings
        from stream2llm.workloads.evaluation import FULL, QUICK, planned
        from stream2llm.workloads.report.writing import report_of, write_report

        if machine not in _MACHINES:
            typer.echo(f"stream2llm reproduce: --machine {machine}: choose {' or '.join(_MACHINES)}", err=True)
            raise typer.Exit(2)
        scale = replace(QUICK if quick else FULL, seeds=tuple(range(seeds)))
        runs = list(planned(scale))
        try:
            (out / "logs").mkdir(parents=True, exist_ok=True)
            with quiet_libraries() as terminal, Bars(terminal) as bars:
                from stream2llm.vllm.simulate.pool import run_all

                measured = run_all(runs, out / "logs", machine, processes, partial(bars.show, "runs", total=len(runs)))
                bars.show("report", 0, 1)
                write_report(report_of(measured), out, [paper_profile(machine)])
                bars.show("report", 1, 1)
        except OSError as error:
            typer.echo(f"stream2llm reproduce: {error}", err=True)
            raise typer.Exit(2) from None
        found = findings(measured)
        document = [_finding(finding) for finding in found]
        (out / "findings.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        typer.echo(json.dumps({"out": str(out), "findings": document}) if as_json else _text(found, out))


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "claim": finding.claim,
        "where": finding.where,
        "figure": round(finding.figure, 4),
        "wanted": finding.wanted,
        "holds": finding.holds,
    }


def _text(found: Sequence[Finding], out: Path) -> str:
    lines = ["simulated (virtual clock)"]
    for claim in dict.fromkeys(finding.claim for finding in found):
        of_it = [finding for finding in found if finding.claim == claim]
        judged = [finding for finding in of_it if finding.holds is not None]
        kept = sum(bool(finding.holds) for finding in judged)
        lines.append(f"\n{claim}: " + (f"{kept} of {len(judged)} as wanted" if judged else "for information"))
        for finding in of_it:
            mark = {True: "   ", False: "NO ", None: "   "}[finding.holds]
            lines.append(f"  {mark}{finding.figure:6.3f}  {finding.where}  ({finding.wanted})")
    return "\n".join([*lines, f"\nlogs, report and findings: {out}"])
