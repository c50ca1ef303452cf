"""`stream2llm profile`: measure what prefill and KV-block copies cost on this machine."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream2llm.cli.needs import ENGINE, require

if TYPE_CHECKING:
    from stream2llm.vllm.profiling import Measurement

HELP = """Measure what prefill and KV-block copies cost with MODEL on this machine's engine.

The server reads the profile to decide, for each request or stream it must preempt, whether to swap its KV blocks out
or to compute them again. Takes every engine option of vLLM: measure with those that you serve with. Run it on an idle
machine; it takes a few minutes.

Exit status: 0 when the profile was written, 1 when it could not be measured, 2 for options that do not exist.
"""

DISTURBED = 0.1  # median fit error from which on the machine cannot have been idle


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        help=HELP,
        short_help="Measure what prefill and KV-block copies cost on this machine.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        options_metavar="[OPTIONS] [any engine option of vLLM]",
    )
    def profile(
        context: typer.Context,
        model: str = typer.Argument("default", help="A model by name or path; `default` is the embedded one."),
        out: str | None = typer.Option(
            None, metavar="FILE", help="Where to write the profile; by default where the server looks for it."
        ),
        repeats: int = typer.Option(5, min=1, help="Runs of each; their median is fitted."),
        longest: float = typer.Option(3.0, min=0.01, help="Seconds that a prefill may take; longer ones are left out."),
        max_tokens: int | None = typer.Option(None, min=32, help="Longest prompt to measure, in tokens."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object on standard output."),
    ) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        require("profile", ENGINE)
        from stream2llm.costs.document import to_document
        from stream2llm.costs.store import profile_path, save
        from stream2llm.embedded import EmbeddedModelError, resolve_model
        from stream2llm.vllm.profiling import ProfilingError, engine_arguments
        from stream2llm.vllm.profiling import profile as measure
        from stream2llm.vllm.subject import profiles_directory

        try:
            arguments = engine_arguments(resolve_model(model), context.args)
            with _Bars() as bars:
                measurement = measure(
                    arguments, repeats=repeats, longest_seconds=longest, max_tokens=max_tokens, progress=bars.show
                )
        except (ProfilingError, EmbeddedModelError) as error:
            typer.echo(f"stream2llm profile: {error}", err=True)
            raise typer.Exit(1) from error
        found = measurement.profile
        path = Path(out) if out else profile_path(found.subject, profiles_directory())
        try:
            save(found, path)
        except OSError as error:
            typer.echo(f"stream2llm profile: the profile cannot be written to {path}: {error}", err=True)
            raise typer.Exit(1) from error
        if as_json:
            typer.echo(json.dumps({"path": str(path), "profile": to_document(found)}))
        else:
            typer.echo(_report(measurement))
            typer.echo(f"\nWritten to {path}")


class _Bars:
    """Progress bars on standard error, one for each thing that is measured."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._tasks["starting the engine"] = self._progress.add_task("starting the engine", total=None)
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Move the bar of `what`; a new one if there is none."""
        if (starting := self._tasks.pop("starting the engine", None)) is not None:
            self._progress.remove_task(starting)
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)


def _report(measurement: Measurement) -> str:
    """Two plots, how well the curves fit, and from where on swapping is cheaper."""
    from stream2llm.costs import Preemption, Victim, decide
    from stream2llm.costs.plot import Series, log_plot

    found = measurement.profile
    subject, prefill = found.subject, found.prefill
    contexts = sorted({sample.context_tokens for sample in measurement.prefill})
    prefills = [
        Series(
            "prefill" if not context else f"behind {context:,} tokens",
            marker,
            [(s.new_tokens, s.seconds) for s in measurement.prefill if s.context_tokens == context],
            partial(found.prefill_seconds, context_tokens=context),
        )
        for context, marker in {contexts[0]: "o", contexts[-1]: "x"}.items()
    ]
    copies = [
        Series(name, marker, [(sample.tokens, sample.seconds) for sample in samples], curve)
        for name, marker, samples, curve in (
            ("copy out", "v", measurement.copy_out, found.copy_out_seconds),
            ("copy in", "^", measurement.copy_in, found.copy_in_seconds),
        )
    ]
    swapped_from = None
    for tokens in sorted({sample.new_tokens for sample in measurement.prefill}, reverse=True):
        decision = decide(Victim(tokens), found)
        if decision is None or decision.preemption is Preemption.RECOMPUTE:
            break
        swapped_from = tokens
    errors = (("prefill", prefill.error), ("copy out", found.copy_out.error), ("copy in", found.copy_in.error))
    return "\n".join(
        [
            f"{subject.model} on {subject.hardware}; {subject.engine}, {subject.dtype}, "
            f"blocks of {subject.block_size} tokens, {found.kv_bytes_per_token:,} bytes of KV a token",
            "",
            log_plot(prefills),
            "",
            log_plot(copies),
            "",
            *(
                f"{name:9} fit off by {error.median:.1%} (median), {error.worst:.1%} (worst of {error.samples})"
                for name, error in errors
                if error is not None
            ),
            "swapping is never cheaper than recomputing"
            if swapped_from is None
            else f"swapping is cheaper than recomputing for victims of {swapped_from:,} tokens and more",
            *(
                [f"note: a fit that is off by more than {DISTURBED:.0%} is that of a busy machine; measure again"]
                if any(error is not None and error.median > DISTURBED for _, error in errors)
                else []
            ),
        ]
    )
