"""`stream2llm demo`."""

from __future__ import annotations

import json
import signal
import sys

import typer

from stream2llm.cli.needs import CRAWLER, ENGINE, require

HELP = """Crawl pages, stream them into vLLM as they come, and ask; then the same by waiting, and compare.

By default everything runs on this machine: vLLM with the embedded model, and the standard library's documentation
as the site, with latency added to each page as real sites have it.

Exit status: 0 when both answers are equal, 1 when they differ or something failed, 2 when something is not
installed.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(help=HELP, short_help="Show what streaming gains, on crawled pages.")
    def demo(
        question: str | None = typer.Option(None, help="What to ask about the pages."),
        url: str | None = typer.Option(
            None, help="Crawl this site instead, from this page (same site only, robots.txt is obeyed)."
        ),
        server: str | None = typer.Option(None, help="Ask this running server instead of starting one."),
        model: str = typer.Option("default", help="The model to start a server with, by name or path."),
        api_key: str | None = typer.Option(
            None, envvar="STREAM2LLM_API_KEY", show_envvar=True, help="The running server's API key."
        ),
        pages: int = typer.Option(20, min=1, help="Pages to crawl."),
        page_chars: int = typer.Option(700, min=1, help="Characters of each page to use."),
        delay: float = typer.Option(1.0, min=0.0, help="Scales the latency added to loopback pages."),
        seed: int = typer.Option(0, help="Seed of the added latency."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object last."),
    ) -> None:
        require("demo", *(() if server else (ENGINE,)), *CRAWLER)
        import httpx
        from rich.console import Console

        from stream2llm.client import Stream2LLMError
        from stream2llm.demo.run import QUESTION, DemoError, Options, run
        from stream2llm.demo.server import ServerError
        from stream2llm.embedded import EmbeddedModelError

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the server is ended
        options = Options(question or QUESTION, url, server, model, api_key, pages, page_chars, delay=delay, seed=seed)
        try:
            outcome = run(options, Console(soft_wrap=not sys.stdout.isatty()))
        except (DemoError, ServerError, Stream2LLMError, EmbeddedModelError, httpx.HTTPError) as error:
            typer.echo(f"stream2llm demo: {error}", err=True)
            raise typer.Exit(1) from error
        if as_json:
            typer.echo(json.dumps(outcome.json()))
        raise typer.Exit(0 if outcome.answers_equal else 1)
