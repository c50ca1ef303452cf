"""`stream2llm check`: what a user runs to see the promises kept on their own model and hardware."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

import typer

from stream2llm.cli.needs import ENGINE, require
from stream2llm.cli.quiet import quiet_libraries
from stream2llm.policy import DEFAULT_POLICY, PolicyError
from stream2llm.policy import policy as find_policy

if TYPE_CHECKING:
    from stream2llm.vllm import exactness, pressure

_MODEL = typer.Option("default", help="A model by name or path; `default` is the embedded one.")
_SEED = typer.Option(0, help="Other seeds draw other cases.")
_POOL = typer.Option([50, 25], min=1, max=100, help="KV cache in % of what the open streams want; may be repeated.")
_PREEMPTION = typer.Option(
    None,
    help="With a host tier (`swap`; `cost`: where the cost model says so), without (`recompute`), or `both`. "
    "Left out: swap at every pool, recompute at the first.",
)
_JSON = typer.Option(False, "--json", help="Print one JSON object on standard output.")


class Preemption(StrEnum):
    """What becomes of the KV blocks that streams give up."""

    SWAP = "swap"
    RECOMPUTE = "recompute"
    COST = "cost"
    BOTH = "both"


def register(app: typer.Typer) -> None:
    """Add the command group to the command line."""
    check = typer.Typer(help="Check the promises on your own model and hardware.", no_args_is_help=True)
    app.add_typer(check, name="check")

    @check.command()
    def exactness(
        cases: int = typer.Option(60, min=1, help="Streams to run."),
        model: str = _MODEL,
        seed: int = _SEED,
        longest: int = typer.Option(600, min=64, help="Context tokens of a case at most."),
        kv_blocks: int | None = typer.Option(None, help="KV cache size in blocks, to see it under memory pressure."),
        as_json: bool = _JSON,
    ) -> None:
        """Compare the answers of random streams with cold runs of the same prompts.

        Random appends, replacements, finishes and aborts, several streams at once; greedy answers must be equal token
        by token, and no KV block may be lost. On a GPU start it with VLLM_BATCH_INVARIANT=1: otherwise stock vLLM
        itself answers differently in another batch. VLLM_LOGGING_LEVEL=INFO shows vLLM's log.

        Exit status: 0 if so, 1 if not, 2 where vLLM is not installed.
        """
        with _checking(model) as (path, bars):
            from stream2llm.vllm.exactness import check as run

            report = run(path, cases, seed=seed, longest=longest, kv_blocks=kv_blocks, progress=bars.show)
        typer.echo(json.dumps(report.as_dict()) if as_json else _exactness_text(report))
        raise typer.Exit(0 if report.passed else 1)

    @check.command()
    def pressure(
        streams: int = typer.Option(64, min=16, help="Streams that are open at once."),
        pool: list[int] = _POOL,
        preemption: Preemption | None = _PREEMPTION,
        policy: str = typer.Option(DEFAULT_POLICY, help="Scheduling policy (docs/scheduling.md)."),
        model: str = _MODEL,
        seed: int = _SEED,
        longest: int = typer.Option(256, min=128, help="Tokens of a prompt at most."),
        as_json: bool = _JSON,
    ) -> None:
        """Put many streams into too little memory: every complete request finishes, with the answer of a cold run.

        The streams are open at the same time, append and replace; some are closed, aborted or abandoned; plain
        requests come in between. A run for each pool size and way of preemption, with the longest wait, preemptions
        per finished request, and tokens computed over tokens needed: final and plain prompts once, their answers, what
        replacements invalidated, and the contexts of streams that were closed, aborted or abandoned. On a GPU start
        it with VLLM_BATCH_INVARIANT=1. VLLM_LOGGING_LEVEL=INFO shows vLLM's log.

        Exit status: 0 if all requests finished with equal answers and no KV block was lost, 1 if not, 2 where vLLM is
        not installed.
        """
        try:
            find_policy(policy)
        except PolicyError as error:
            raise typer.BadParameter(str(error), param_hint="--policy") from error
        with _checking(model) as (path, bars):
            from stream2llm.vllm.pressure import check as run
            from stream2llm.vllm.pressure import pressures

            asked = pressures(pool, preemption, policy)
            report = run(path, streams, asked, seed=seed, longest=longest, progress=bars.show)
        typer.echo(json.dumps(report.as_dict()) if as_json else _pressure_text(report))
        raise typer.Exit(0 if report.passed else 1)


@contextmanager
def _checking(model: str) -> Iterator[tuple[str, _Bars]]:
    """The model's path, and progress bars on a terminal that libraries leave alone."""
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
    with nullcontext(sys.stderr) if logged else quiet_libraries() as terminal, _Bars(terminal) as bars:
        yield path, bars


def _exactness_text(report: exactness.Report) -> str:
    share = report.reused_tokens / max(1, report.prompt_tokens)
    return (
        f"{report.equal} of {report.cases} equal, {report.leaked_blocks} KV blocks leaked\n"
        f"{share:.0%} of the prompt tokens came from the streams; {report.aborted} streams were aborted"
    )


def _pressure_text(report: pressure.Report) -> str:
    from stream2llm.vllm.pressure import MOST_PREEMPTIONS_PER_REQUEST, MOST_WORK

    lines = [f"{report.streams} streams that want {report.wanted_blocks} KV blocks"]
    for run in report.runs:
        limit = f" (at most {MOST_WORK})" if run.bounds_work else ""
        lines += [
            f"{run.pool_percent} % of that, {run.preemption}: {run.finished} of {run.requests} requests finished, "
            f"{run.equal} equal, {run.leaked_blocks} KV blocks leaked",
            f"  {run.preemptions_per_request} preemptions per request (at most {MOST_PREEMPTIONS_PER_REQUEST:g}); "
            f"tokens computed over needed {run.work_ratio}{limit}, over prompts and answers {run.work_ratio_strict}",
            f"  longest wait for a first token {run.longest_wait_seconds} s (P99 {run.wait_p99_seconds} s) "
            f"in {run.seconds} s",
        ]
    return "\n".join(lines)


class _Bars:
    """Progress bars, one for each thing that is done; its clock starts when it is first heard of."""

    def __init__(self, terminal: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(file=terminal), redirect_stderr=False)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Move the bar of `what`; a new one if there is none."""
        if what not in self._tasks:
            self._progress.start()
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done)
