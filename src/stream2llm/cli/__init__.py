"""The command line: `stream2llm --help`. One module per command; each imports what is heavy when it runs."""

from __future__ import annotations

import typer

from stream2llm.cli import ask, check, demo, profile, serve

app = typer.Typer(
    name="stream2llm",
    help="Stream retrieval context into vLLM while it is being retrieved.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
serve.register(app)
demo.register(app)
ask.register(app)
check.register(app)
profile.register(app)


def main() -> None:
    """Entry point of the `stream2llm` command."""
    app()
