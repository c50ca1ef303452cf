"""`stream2llm ask`: stream standard input to a server as it comes, then ask."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from stream2llm.cli.chunks import BadInput, Form, Operation, operations, reads

if TYPE_CHECKING:
    from stream2llm.client import AnswerStream, Client, ContextStream

INSTRUCTION = "Answer the question from the context."
BEFORE_CONTEXT = "Context:\n"
BEFORE_QUESTION = "\n\nQuestion: "

REFUSED, USAGE, UNAVAILABLE, BAD_INPUT, INTERRUPTED = 1, 2, 3, 4, 130

HELP = """Answer QUESTION from the context that comes on standard input.

Each chunk is sent as it comes, so the server has read almost all of it when the input ends, and the answer begins at
once. It is printed as it is generated.

\b
  my-crawler | stream2llm ask "What changed in the last release?"

\b
Exit status:
  0    answered
  1    the server refused the request (the context is too long, the API key is wrong, ...)
  2    the command was used wrongly
  3    the server cannot be reached, is overloaded, or broke off
  4    the input is not what --jsonl promises
  130  interrupted (Ctrl-C)
"""
NO_INPUT = """stream2llm ask: the context is read from standard input, which is a terminal. Pipe it in:
  my-crawler | stream2llm ask "What changed in the last release?"
  stream2llm ask "What does it say?" < pages.txt"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(help=HELP, short_help="Stream standard input to a server as it comes, then ask.")
    def ask(
        question: str = typer.Argument(help="The question, asked when the input has ended."),
        url: str = typer.Option("http://localhost:8000", envvar="STREAM2LLM_URL", help="The server."),
        api_key: str | None = typer.Option(
            None, envvar="STREAM2LLM_API_KEY", show_envvar=True, help="The server's API key."
        ),
        model: str | None = typer.Option(None, help="The model, where the server has several."),
        max_tokens: int = typer.Option(256, min=1, help="Length of the answer at most."),
        temperature: float = typer.Option(0.0, min=0.0, help="Above 0, tokens are drawn at random; 0 is greedy."),
        lines: bool = typer.Option(False, "--lines", help="Every line is a chunk, not what each read gets."),
        jsonl: bool = typer.Option(
            False, "--jsonl", help='Every line is an operation: {"op": "append" or "replace", "text": "..."}.'
        ),
        completion: bool = typer.Option(
            False, "--completion", help="Complete the raw text of input and question; no chat template."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of the answer."),
    ) -> None:
        if lines and jsonl:
            raise typer.BadParameter("give one of --lines and --jsonl")
        if sys.stdin.isatty():
            typer.echo(NO_INPUT, err=True)
            raise typer.Exit(USAGE)
        form = Form.LINES if lines else Form.JSONL if jsonl else Form.AVAILABLE
        chunks = operations(reads(sys.stdin.fileno()), form)
        fields = {"max_tokens": max_tokens, "temperature": temperature}
        with _exit_statuses(), _client(url, api_key, model) as client:
            Asking(client, question, completion, fields, as_json).run(chunks)


class Asking:
    """One question: the stream, the answer, and what is shown of them."""

    def __init__(self, client: Client, question: str, completion: bool, fields: dict[str, Any], as_json: bool) -> None:
        self._client = client
        self._question = question
        self._completion = completion
        self._fields = fields
        self._as_json = as_json
        self._chunks = 0
        self._last_chunk = time.perf_counter()

    def run(self, chunks: Iterable[Operation]) -> None:
        """Stream the chunks, ask, print. Raises `Stream2LLMError` and `BadInput`."""
        with self._open() as stream:
            if stream.warming:
                typer.echo("stream2llm ask: the server has no context streams; warming its prefix cache", err=True)
            for chunk in chunks:
                self._send(stream, chunk)
            if not self._chunks:
                typer.echo("stream2llm ask: standard input was empty; asking without context", err=True)
            self._print(stream, self._ask(stream))

    def _open(self) -> ContextStream:
        return self._client.stream(text="") if self._completion else self._client.stream(messages=_framed(""))

    def _send(self, stream: ContextStream, chunk: Operation) -> None:
        self._last_chunk = time.perf_counter()
        self._chunks += 1
        if chunk.op == "append":
            ack = stream.append(chunk.text)
        elif self._completion:
            ack = stream.replace(chunk.text)
        else:
            ack = stream.replace(messages=_framed(chunk.text))
        known = "" if ack.tokens is None else f", {ack.tokens} tokens, {ack.computed_tokens} computed"
        _show_status(f"{_counted(self._chunks, 'chunk')}{known}")

    def _ask(self, stream: ContextStream) -> AnswerStream:
        if self._completion:
            return stream.complete(self._question, stream=True, **self._fields)
        stream.append(BEFORE_QUESTION + self._question)
        return stream.chat(stream=True, **self._fields)

    def _print(self, stream: ContextStream, answer: AnswerStream) -> None:
        ttft = None
        for piece in answer:
            if ttft is None:
                ttft = time.perf_counter() - self._last_chunk
                _show_status("")
            if not self._as_json:
                typer.echo(piece.text, nl=False)
                sys.stdout.flush()
        if self._as_json:
            typer.echo(json.dumps(self._result(stream, answer, ttft), ensure_ascii=False))
            return
        typer.echo()
        if ttft is not None and sys.stderr.isatty():
            prompt = answer.usage.get("prompt_tokens", "?")
            typer.echo(
                f"{_counted(self._chunks, 'chunk')}, {prompt} prompt tokens, "
                f"first token {ttft:.3f} s after the last chunk",
                err=True,
            )

    def _result(self, stream: ContextStream, answer: AnswerStream, ttft: float | None) -> dict[str, Any]:
        return {
            "answer": answer.text,
            "finish_reason": answer.finish_reason,
            "usage": answer.usage,
            "chunks": self._chunks,
            "ttft_s": ttft,
            "context_streams": not stream.warming,
        }


def _framed(context: str) -> list[dict[str, Any]]:
    """Chat messages whose last one ends with the context, so that chunks and the question continue it."""
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": BEFORE_CONTEXT + context}]


def _client(url: str, api_key: str | None, model: str | None) -> Client:
    from stream2llm.client import Client, PrefixWarmingWarning

    warnings.simplefilter("ignore", PrefixWarmingWarning)  # said in one line instead
    return Client(url, api_key=api_key, model=model)


@contextmanager
def _exit_statuses() -> Iterator[None]:
    """Turn what goes wrong into a message and the documented exit status."""
    from stream2llm.client import AnswerInterrupted, ServerUnavailable, Stream2LLMError

    try:
        yield
    except BadInput as error:
        raise _failure(str(error), BAD_INPUT) from error
    except (ServerUnavailable, AnswerInterrupted) as error:
        raise _failure(str(error), UNAVAILABLE) from error
    except Stream2LLMError as error:
        raise _failure(str(error), REFUSED) from error
    except KeyboardInterrupt as interrupt:
        raise _failure("interrupted", INTERRUPTED) from interrupt


def _failure(message: str, status: int) -> typer.Exit:
    _show_status("")
    typer.echo(f"stream2llm ask: {message}", err=True)
    return typer.Exit(status)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _show_status(text: str) -> None:
    """Replace the status line; nothing where standard error is not a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()
