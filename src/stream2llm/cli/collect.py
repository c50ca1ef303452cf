"""`stream2llm collect`: traces of real retrievals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from stream2llm.cli.collect_bars import CollectBars
from stream2llm.cli.needs import CRAWLER, LINK_RANKING, SEARCH, TRACES, require

if TYPE_CHECKING:
    from stream2llm.workloads.collect.questions import Question
    from stream2llm.workloads.collect.run import Retriever
    from stream2llm.workloads.trace import Header

INCOMPLETE, USAGE, INTERRUPTED = 1, 2, 130

STATUSES = """
What is in the trace is not collected again: the same command goes on where an earlier run was interrupted or killed.

\b
Exit status:
  0    there is a query for each question
  1    there is none for some; the messages say why
  2    the command or its input was wrong, or a file cannot be read or written
  130  interrupted (Ctrl-C); what was collected is kept
"""

CRAWL = f"""Crawl a site for each question and note when each page came.

Stays on the site of the start page and obeys robots.txt. Of the links that it knows it follows the one that fits the
question best (BM25). Each page is appended to the context.
{STATUSES}"""

ANNS = f"""Search a folder of documents for each question, wider and wider, and note each change of the candidates.

Embeds the documents' passages with all-MiniLM-L6-v2 and builds a Faiss index (IVF) on disk. Reads .txt, .md, .rst, .py
and .html. The pool of candidates replaces the context whenever its passages or their order change.
{STATUSES}"""

_OUT = typer.Option(..., "-o", "--out", dir_okay=False, metavar="FILE", help="The trace; ending in .gz: compressed.")
_QUESTIONS = typer.Option(
    None,
    exists=True,
    dir_okay=False,
    metavar="FILE",
    help="Questions, one a line; a crawl's start and a tab before.",
)
_QUESTION = typer.Option(None, metavar="TEXT", help="A question; may be repeated.")
_DOCUMENTS = typer.Option(
    ..., exists=True, file_okay=False, metavar="DIR", help="The documents; folders in it are read too."
)
_INDEX = typer.Option(
    None, file_okay=False, metavar="DIR", help="Where the index is kept; by default beside the trace."
)
_DESCRIPTION = typer.Option("", metavar="TEXT", help="What was searched, for the trace's header.")
_LICENSE = typer.Option("", metavar="TEXT", help="The licence of the texts, for the trace's header.")
_SEED = typer.Option(0, help="Seed of the added latency.")


def register(app: typer.Typer) -> None:
    """Add the command group to the command line."""
    collect = typer.Typer(help="Collect traces of real retrievals.", no_args_is_help=True)
    app.add_typer(collect, name="collect")

    @collect.command(help=CRAWL, short_help="Crawl a site for each question.")
    def crawl(
        out: Path = _OUT,
        start: str = typer.Option("", metavar="URL", help="The page where the crawl starts."),
        questions: Path | None = _QUESTIONS,
        question: list[str] | None = _QUESTION,
        pages: int = typer.Option(8, min=1, help="Pages of a crawl at most."),
        depth: int = typer.Option(2, min=0, help="Links followed in a row at most."),
        seconds: float | None = typer.Option(None, min=0.1, help="Seconds of a crawl at most."),
        page_chars: int = typer.Option(6000, min=100, help="Characters of each page to take."),
        concurrency: int = typer.Option(2, min=1, help="Fetches in flight."),
        interval: float = typer.Option(0.5, min=0.0, help="Seconds between two requests to a host at least."),
        latency: float = typer.Option(
            0.0, min=0.0, help="Median seconds added to each fetch, for a site on loopback; 0.7: as real sites have it."
        ),
        seed: int = _SEED,
        description: str = _DESCRIPTION,
        license: str = _LICENSE,
    ) -> None:
        require("collect crawl", *TRACES, *CRAWLER, LINK_RANKING)
        from stream2llm.crawl.fetcher import fetching
        from stream2llm.crawl.page import Latency, Limits
        from stream2llm.crawl.politeness import Politeness
        from stream2llm.workloads.collect.crawl import CrawlRetriever, CrawlSettings

        with _messages("crawl"), CollectBars() as bars:
            asked = _started(_questions(questions, question), start)
            limits = Limits(pages=pages, depth=depth, concurrency=concurrency, seconds=seconds)
            settings = CrawlSettings(limits, page_chars, interval, Latency(seed, latency))

            @asynccontextmanager
            async def crawling() -> AsyncIterator[Retriever]:
                async with fetching(limits, Politeness(interval), settings.latency) as fetcher:
                    yield CrawlRetriever(fetcher, settings, bars.page)

            missing = _collected(out, settings.header(description, license), asked, crawling(), bars)
        _finish(out, len(asked), missing)

    @collect.command(help=ANNS, short_help="Search a folder of documents for each question.")
    def anns(
        out: Path = _OUT,
        documents: Path = _DOCUMENTS,
        questions: Path | None = _QUESTIONS,
        question: list[str] | None = _QUESTION,
        index: Path | None = _INDEX,
        top_k: int = typer.Option(10, min=1, help="Passages in the pool of candidates."),
        passage_chars: int = typer.Option(1000, min=100, help="Characters of a passage at most."),
        latency: float = typer.Option(
            0.0, min=0.0, help="Median seconds added to each step of the search; 0.037: as in the paper's."
        ),
        seed: int = _SEED,
        description: str = _DESCRIPTION,
        license: str = _LICENSE,
    ) -> None:
        require("collect anns", *TRACES, *CRAWLER, *SEARCH)
        from stream2llm.crawl.page import Latency
        from stream2llm.workloads.collect.anns import STEP_SIGMA, SearchRetriever, SearchSettings
        from stream2llm.workloads.collect.embedding import MiniLM
        from stream2llm.workloads.collect.index import built_index

        with _messages("anns"), CollectBars() as bars:
            asked = _anywhere(_questions(questions, question))
            settings = SearchSettings(top_k, passage_chars, Latency(seed, latency, STEP_SIGMA))
            where = index or out.with_name(out.name.removesuffix(".gz").removesuffix(".jsonl") + ".index")
            model = cache(MiniLM)
            found = built_index(documents, where, model, MiniLM.name, passage_chars, bars.show)
            header = settings.header(MiniLM.name, len(found.passages), description, license)
            searching = nullcontext(SearchRetriever(found, model(), settings))
            missing = _collected(out, header, asked, searching, bars)
        _finish(out, len(asked), missing)


def _collected(
    out: Path,
    header: Header,
    asked: tuple[Question, ...],
    retrieving: AbstractAsyncContextManager[Retriever],
    bars: CollectBars,
) -> int:
    """Collects what is missing in the trace; how many questions have no query in the end."""
    from stream2llm.workloads.collect.collection import collecting
    from stream2llm.workloads.collect.run import collect

    async def run() -> int:
        async with retrieving as retriever:
            return await collect(asked, retriever, collection, bars)

    with collecting(out, header) as collection:
        bars.questions(len(asked), sum(question.id in collection.done for question in asked))
        return asyncio.run(run())


def _finish(out: Path, asked: int, missing: int) -> None:
    typer.echo(f"{out}: {asked - missing} of {asked} questions")
    if missing:
        raise typer.Exit(INCOMPLETE)


def _questions(file: Path | None, given: list[str] | None) -> tuple[Question, ...]:
    from stream2llm.workloads.collect.questions import Question, distinct, read_questions

    if file is None and not given:
        raise typer.BadParameter("give --questions FILE or --question TEXT")
    from_file = read_questions(file) if file else ()
    return distinct((*from_file, *(Question(text.strip()) for text in given or () if text.strip())), "--question")


def _started(questions: tuple[Question, ...], start: str) -> tuple[Question, ...]:
    """The questions, each with the page where its crawl starts."""
    started = tuple(replace(question, start=question.start or start) for question in questions)
    for question in started:
        address = urlsplit(question.start)
        if address.scheme not in ("http", "https") or not address.netloc:
            raise typer.BadParameter(
                f"{question.text!r} starts at {question.start!r}, which is no http:// or https:// address; "
                "give --start URL, or the address and a tab before the question"
            )
    return started


def _anywhere(questions: tuple[Question, ...]) -> tuple[Question, ...]:
    """The questions without start pages, each once."""
    return tuple(dict.fromkeys(replace(question, start="") for question in questions))


@contextmanager
def _messages(command: str) -> Iterator[None]:
    """Turns what goes wrong into one line and the documented exit status."""
    from stream2llm.workloads.collect import CollectError
    from stream2llm.workloads.lines import FormatError

    try:
        yield
    except (CollectError, FormatError, OSError) as error:
        typer.echo(f"stream2llm collect {command}: {error}", err=True)
        raise typer.Exit(USAGE) from error
    except KeyboardInterrupt as interrupt:
        said = "interrupted; what was collected is kept, and the same command goes on from there"
        typer.echo(f"stream2llm collect {command}: {said}", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt
