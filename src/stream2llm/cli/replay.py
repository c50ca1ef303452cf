"""`stream2llm replay`."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stream2llm.cli.needs import ENGINE, TRACES, require
from stream2llm.cli.replay_view import figures, progress, text

if TYPE_CHECKING:
    from stream2llm.workloads.measured import Measured
    from stream2llm.workloads.replay.content import Vocabulary
    from stream2llm.workloads.replay.load import Load
    from stream2llm.workloads.replay.server import Scheduling
    from stream2llm.workloads.utilisation import Seconds

REFUSED, USAGE, INTERRUPTED = 1, 2, 130

HELP = """Drive a running server with the queries of TRACE, and log every event.

The arm says how the context gets to the server: `stream` (a context stream), `wait` (held back, and sent in the end),
`warm` (a growing prompt, by a stock completion of one token after each piece). `input` starts an engine in this
process and uses vLLM's own StreamingInput; options behind `--` go to that engine. The time to first token is measured
from the moment the last piece is handed over, in every arm.

Ctrl-C stops it: streams are closed, and what was measured is kept and summed up.

Exit status: 0 when every query was answered, 1 when one failed or the server cannot be used, 2 for bad input, 130 after
Ctrl-C.
"""


class ArmName(StrEnum):
    """As `stream2llm.workloads.events.Arm`, which is not imported before the command runs."""

    STREAM = "stream"
    WAIT = "wait"
    WARM = "warm"
    INPUT = "input"


_TRACE = typer.Argument(help="A trace (docs/traces.md).")
_OUT = typer.Option(..., "--out", "-o", help="The event log to write; `.gz`: compressed.")
_ARM = typer.Option(ArmName.STREAM, help="How the context gets to the server.")
_ARRIVALS = typer.Option(None, help="A file of gaps between arrivals, in seconds, one a line, instead.")


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, beside the load itself. `matches`: choose token and time scale."""

    arm: ArmName
    server: str
    api_key: str | None
    model: str | None
    engine_options: Sequence[str]
    max_tokens: int
    vocabulary: Vocabulary
    token_scale: float | None
    matches: bool
    paper_machine: str
    machine: str
    out: Path


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        help=HELP,
        short_help="Drive a running server with a trace, and log every event.",
        context_settings={"allow_extra_args": True},
        options_metavar="[OPTIONS] [-- engine options]",
    )
    def replay(
        context: typer.Context,
        trace: Path = _TRACE,
        out: Path = _OUT,
        arm: ArmName = _ARM,
        server: str = typer.Option("http://localhost:8000", envvar="STREAM2LLM_URL", help="The server."),
        api_key: str | None = typer.Option(None, envvar="STREAM2LLM_API_KEY", show_envvar=True, help="Its API key."),
        model: str | None = typer.Option(
            None, help="The model, where the server has several; for `--arm input` one to run, by name or path."
        ),
        qps: float | None = typer.Option(
            None, help="Queries per second, arriving as a Poisson process, in the trace's time (default 1)."
        ),
        arrivals: Path | None = _ARRIVALS,
        seed: int = typer.Option(0, help="Of the arrivals, and of the token ids of pieces that have no text."),
        queries: int | None = typer.Option(None, min=1, help="Only so many, from the trace's front."),
        delay: float = typer.Option(1.0, min=0, help="Multiplies the gaps between pieces (the paper's x10 and x30)."),
        time_scale: float | None = typer.Option(None, help="Multiplies all times, arrivals included (default 1)."),
        token_scale: float | None = typer.Option(None, help="Divides the tokens of every piece (default 1)."),
        match_paper: bool = typer.Option(
            False, "--match-paper", help="Choose both scales so that this server sees the load of the paper's machine."
        ),
        paper_machine: str = typer.Option("2xh200", help="The paper's machine: 2xh200 or 2xh100."),
        max_tokens: int = typer.Option(1, min=1, help="Tokens of each answer; 1, as the paper's prefill instance."),
        vocabulary: str = typer.Option(
            "1000:19999", metavar="FIRST:LAST", help="Token ids that are drawn for pieces without text."
        ),
        machine: str = typer.Option("", help="What the server runs on, for the log: runs on one machine are compared."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object last."),
    ) -> None:
        require("replay", *((ENGINE,) if arm is ArmName.INPUT else ()), *TRACES)
        with _bad_input():
            if qps is not None and arrivals is not None:
                raise ValueError("give one of --qps and --arrivals")
            if match_paper and time_scale is not None:
                raise ValueError("--match-paper chooses the time scale; leave --time-scale out")
            if arm is not ArmName.INPUT and context.args:
                raise ValueError(f"only --arm input starts an engine that could take {' '.join(context.args)}")
            load = _load(trace, arm, queries, qps, arrivals, seed, delay, time_scale, token_scale)
            options = Options(
                arm=arm,
                server=server,
                api_key=api_key,
                model=model,
                engine_options=context.args,
                max_tokens=max_tokens,
                vocabulary=_vocabulary(vocabulary),
                token_scale=token_scale,
                matches=match_paper,
                paper_machine=paper_machine,
                machine=machine,
                out=out,
            )
            measured, stopped = asyncio.run(_Replay(options, load).run())
        typer.echo(json.dumps(figures(measured)) if as_json else text(measured, out))
        if stopped:
            raise typer.Exit(INTERRUPTED)
        raise typer.Exit(REFUSED if measured.failed or not measured.queries else 0)


class _Replay:
    """One run of the command."""

    def __init__(self, options: Options, load: Load) -> None:
        self._options = options
        self._load = load
        self._stop = asyncio.Event()

    async def run(self) -> tuple[Measured, bool]:
        """What was measured, and whether it was stopped. Raises `ServerError`, `ValueError` and `OSError`."""
        from stream2llm.workloads.events import Arm
        from stream2llm.workloads.replay.run import record

        source = self._engine() if self._options.arm is ArmName.INPUT else self._server()
        async with source as (arm, model, scheduling, count):
            header = self._load.run(
                Arm(self._options.arm),
                model=model,
                machine=self._options.machine,
                max_tokens=self._options.max_tokens,
                policy=scheduling.policy,
                preemption=scheduling.preemption,
            )
            with _stopping(self._stop), progress(header.queries) as show:
                measured = await record(
                    self._options.out,
                    header,
                    self._load.planned(),
                    arm,
                    count=count,
                    stop=self._stop,
                    watch=show,
                    vocabulary=self._options.vocabulary,
                )
        return measured, self._stop.is_set()

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[tuple[Any, str, Scheduling, Any]]:
        from functools import partial

        from stream2llm.client import AsyncClient
        from stream2llm.workloads.replay import server
        from stream2llm.workloads.replay.arms import arm_named
        from stream2llm.workloads.replay.completions import Completions
        from stream2llm.workloads.replay.counters import counted
        from stream2llm.workloads.replay.prefill import Prefills

        given = self._options
        async with server.connect(given.server, given.api_key) as http:
            served = await server.served(http, given.model)
            if given.arm is ArmName.STREAM and not await server.has_streams(http):
                raise server.ServerError(
                    f"{given.server} has no context streams; start it with `stream2llm serve`, or take --arm warm"
                )
            completions = Completions(http, served.model, secrets.token_hex(8), given.max_tokens)
            prefills = Prefills(completions, given.vocabulary)
            await self._scale(prefills.seconds, served.longest)
            async with AsyncClient(given.server, api_key=given.api_key, model=served.model) as client:
                arm = arm_named(given.arm, client, completions)
                # Only streams are scheduled by our policy; the other arms' requests are stock ones.
                scheduling = await server.scheduling(http) if given.arm is ArmName.STREAM else server.Scheduling()
                yield arm, served.model, scheduling, partial(counted, http)

    @asynccontextmanager
    async def _engine(self) -> AsyncIterator[tuple[Any, str, Scheduling, Any]]:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is for the figures
        from stream2llm.embedded import resolve_model
        from stream2llm.vllm.streaming_input import InputEngine
        from stream2llm.workloads.replay.server import Scheduling

        given = self._options
        model = given.model or "default"
        engine = InputEngine(resolve_model(model), given.engine_options, given.max_tokens, given.vocabulary)
        try:
            await self._scale(engine.seconds, engine.longest)
            yield engine, Path(model).name, Scheduling(), _nothing
        finally:
            engine.shutdown()

    async def _scale(self, seconds: Any, longest: int | None) -> None:
        """A first call, which pays for what a server does only once; with --match-paper also the scales."""
        from stream2llm.workloads.replay.prefill import prefill_curve
        from stream2llm.workloads.utilisation import match, probes

        await seconds(64)
        if not self._options.matches:
            return
        queries = self._load.queries
        room = None if longest is None else longest - self._options.max_tokens
        here = await prefill_curve(seconds, probes(queries, room))
        there = _paper_seconds(self._options.paper_machine, self._load.workload)
        found = match(queries, self._load.qps, there, here, token_scale=self._options.token_scale, longest=room)
        self._load = self._load.matched(found)
        typer.echo(
            f"matched to {self._options.paper_machine} at {self._load.qps:g} queries/s: {found.load:.2f} of the "
            f"capacity, retrieval takes {found.retrieval_ratio:.3g} times as long as prefill; "
            f"for other arms repeat it with --token-scale {self._load.token_scale:g} "
            f"--time-scale {self._load.time_scale:g}",
            err=True,
        )


def _load(
    path: Path,
    arm: ArmName,
    count: int | None,
    qps: float | None,
    arrivals: Path | None,
    seed: int,
    delay: float,
    time_scale: float | None,
    token_scale: float | None,
) -> Load:
    from dataclasses import replace

    from stream2llm.workloads.arrivals import read_gaps
    from stream2llm.workloads.replay.load import load_of_gaps, poisson_load, taken
    from stream2llm.workloads.replay.plan import require_appends
    from stream2llm.workloads.trace import read_trace

    trace = read_trace(path)
    queries = taken(trace.queries, count)
    if arm is ArmName.INPUT:
        require_appends(queries)
    workload = trace.header.workload
    load = (
        load_of_gaps(workload, queries, read_gaps(arrivals), seed)
        if arrivals is not None
        else poisson_load(workload, queries, 1.0 if qps is None else qps, seed)
    )
    load = replace(load, delay=delay, time_scale=_above_0("--time-scale", time_scale))
    load = replace(load, token_scale=_above_0("--token-scale", token_scale))
    load.planned()  # refused now rather than when the server is ready
    return load


def _above_0(name: str, value: float | None) -> float:
    if value is None:
        return 1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; it must be a number above 0")
    return value


def _vocabulary(text: str) -> Vocabulary:
    from stream2llm.workloads.replay.content import Vocabulary

    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise ValueError(f"--vocabulary is {text!r}; expected FIRST:LAST, two token ids")
    return Vocabulary(int(first), int(last))


def _paper_seconds(machine: str, workload: str) -> Seconds:
    from stream2llm.costs import paper_profile
    from stream2llm.workloads.machines import STEP_TOKENS

    return paper_profile(machine, STEP_TOKENS.get(workload, 2048)).prefill_seconds


async def _nothing() -> dict[str, float]:
    """What the engine of `--arm input` has counted: it keeps no statistics."""
    return {}


@contextmanager
def _bad_input() -> Iterator[None]:
    """A message and the exit status for what is wrong with the input or the server."""
    from stream2llm.embedded import EmbeddedModelError
    from stream2llm.workloads.replay.server import ServerError

    try:
        yield
    except ServerError as error:
        typer.echo(f"stream2llm replay: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    except (ValueError, OSError, EmbeddedModelError) as error:
        typer.echo(f"stream2llm replay: {error}", err=True)
        raise typer.Exit(USAGE) from error


@contextmanager
def _stopping(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C sets `stop`; the next one is an ordinary one."""
    loop = asyncio.get_running_loop()

    def asked() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, asked)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
