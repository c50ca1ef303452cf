"""`stream2llm check`: what a user runs to see the promises kept on their own model and hardware."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from typing import TextIO

import typer

from stream2llm.cli.needs import ENGINE, require
from stream2llm.cli.quiet import quiet_libraries


def register(app: typer.Typer) -> None:
    """Add the command group to the command line."""
    check = typer.Typer(help="Check the promises on your own model and hardware.", no_args_is_help=True)
    app.add_typer(check, name="check")

    @check.callback()
    def group() -> None:
        """Keep `check` a group of commands, though it has one."""

    @check.command()
    def exactness(
        cases: int = typer.Option(60, min=1, help="Streams to run."),
        model: str = typer.Option("default", help="A model by name or path; `default` is the embedded one."),
        seed: int = typer.Option(0, help="Other seeds draw other cases."),
        longest: int = typer.Option(600, min=64, help="Context tokens of a case at most."),
        kv_blocks: int | None = typer.Option(None, help="KV cache size in blocks, to see it under memory pressure."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object on standard output."),
    ) -> None:
        """Compare the answers of random streams with cold runs of the same prompts.

        Random appends, replacements, finishes and aborts, several streams at once; greedy answers must be equal token
        by token, and no KV block may be lost. On a GPU start it with VLLM_BATCH_INVARIANT=1: otherwise stock vLLM
        itself answers differently in another batch. VLLM_LOGGING_LEVEL=INFO shows vLLM's log.

        Exit status: 0 if so, 1 if not, 2 where vLLM is not installed.
        """
        require("check", ENGINE)
        logged = "VLLM_LOGGING_LEVEL" in os.environ  # then the user wants to see what vLLM says
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from stream2llm.embedded import EmbeddedModelError, resolve_model

        try:
            path = resolve_model(model)
        except EmbeddedModelError as error:
            typer.echo(f"stream2llm check: {error}", err=True)
            raise typer.Exit(1) from error
        typer.echo("Starting the engine (about half a minute) ...", err=True)
        with nullcontext(sys.stderr) if logged else quiet_libraries() as terminal, _Bars(cases, terminal) as bars:
            from stream2llm.vllm.exactness import check as run

            report = run(path, cases, seed=seed, longest=longest, kv_blocks=kv_blocks, progress=bars.show)
        if as_json:
            typer.echo(json.dumps(report.as_dict()))
        else:
            share = report.reused_tokens / max(1, report.prompt_tokens)
            typer.echo(f"{report.equal} of {report.cases} equal, {report.leaked_blocks} KV blocks leaked")
            typer.echo(f"{share:.0%} of the prompt tokens came from the streams; {report.aborted} streams were aborted")
        raise typer.Exit(0 if report.passed else 1)


class _Bars:
    """Progress bars, one for each thing that is done; its clock starts when it is first heard of."""

    def __init__(self, total: int, terminal: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(file=terminal), redirect_stderr=False)
        self._total = total
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int) -> None:
        """Move the bar of `what`; a new one if there is none."""
        if what not in self._tasks:
            self._progress.start()
            self._tasks[what] = self._progress.add_task(what, total=self._total)
        self._progress.update(self._tasks[what], completed=done)
