"""`stream2llm serve`."""

from __future__ import annotations

from typing import Any

import typer

from stream2llm.cli.needs import ENGINE, require
from stream2llm.pacing import ITL_FACTOR
from stream2llm.policy import names


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        options_metavar="[any option of vLLM's server]",
    )
    def serve(
        context: typer.Context,
        model: str = typer.Argument(
            "default", help="A model by name or path; `default` is the embedded SmolLM2-135M-Instruct."
        ),
        host_gib: float | None = typer.Option(
            None, min=0, help="Host memory of each worker, in GiB, for the KV blocks that streams must give up."
        ),
        preemption: str | None = typer.Option(
            None,
            help="What becomes of those blocks: `cost` (default), `recompute`, `swap`; `off`: no one gives up any.",
        ),
        policy: str | None = typer.Option(None, help=f"Scheduling policy: {', '.join(names())}."),
        itl_factor: str | None = typer.Option(
            None,
            help=f"Inter-token latency that streams may cause, over that without (default {ITL_FACTOR}), or `off`.",
        ),
    ) -> None:
        """Start vLLM's server with context streams switched on.

        Takes every option of `vllm serve`. Exit status: 0 after Ctrl-C or SIGTERM, 2 for options that cannot work.
        """
        require("serve", ENGINE)
        from stream2llm.embedded import resolve_model
        from stream2llm.vllm.serve import ServeRefusedError
        from stream2llm.vllm.serve import serve as run

        options = list(context.args)
        if model == "default" and not any(option.startswith("--served-model-name") for option in options):
            options += ["--served-model-name", "default"]
        given: dict[str, Any] = {"policy": policy, "preemption": preemption}
        scheduling = {name: value for name, value in given.items() if value is not None}
        if itl_factor is not None:
            scheduling["itl_factor"] = _factor(itl_factor)
        try:
            run(resolve_model(model), options, host_gib=host_gib, scheduling=scheduling)
        except ServeRefusedError as refusal:
            typer.echo(f"stream2llm serve: {refusal}", err=True)
            raise typer.Exit(2) from refusal


def _factor(text: str) -> float | str | None:
    """As in the JSON of `--additional-config`; what is no number is refused there."""
    if text == "off":
        return None
    try:
        return float(text)
    except ValueError:
        return text
