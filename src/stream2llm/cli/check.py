"""`stream2llm check`: what a user runs to see the promises kept on their own model and hardware."""

from __future__ import annotations

import json
import os

import typer


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
        by token, and no KV block may be lost. Exit status: 0 if so, 1 if not. On a GPU start it with
        VLLM_BATCH_INVARIANT=1: otherwise stock vLLM itself answers differently in another batch.
        """
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from stream2llm.embedded import resolve_model
        from stream2llm.vllm.exactness import check as run

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bars:
            tasks = {what: bars.add_task(what, total=cases) for what in ("streamed", "compared")}
            report = run(
                resolve_model(model),
                cases,
                seed=seed,
                longest=longest,
                kv_blocks=kv_blocks,
                progress=lambda what, done: bars.update(tasks[what], completed=done),
            )
        if as_json:
            typer.echo(json.dumps(report.as_dict()))
        else:
            share = report.reused_tokens / max(1, report.prompt_tokens)
            typer.echo(f"{report.equal} of {report.cases} equal, {report.leaked_blocks} KV blocks leaked")
            typer.echo(f"{share:.0%} of the prompt tokens came from the streams; {report.aborted} streams were aborted")
        raise typer.Exit(0 if report.passed else 1)
