"""The command line: `stream2llm --help`. One module per command; each imports what is heavy when it runs."""

from __future__ import annotations

import typer

from stream2llm import __version__
from stream2llm.cli import ask, check, collect, demo, profile, replay, report, reproduce, serve, simulate, trace

app = typer.Typer(
    name="stream2llm",
    help="Stream retrieval context into vLLM while it is being retrieved.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stream2llm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
    ),
) -> None:
    pass


serve.register(app)
demo.register(app)
ask.register(app)
check.register(app)
profile.register(app)
trace.register(app)
simulate.register(app)
reproduce.register(app)
collect.register(app)
report.register(app)
replay.register(app)


def main() -> None:
    """Entry point of the `stream2llm` command."""
    app()
