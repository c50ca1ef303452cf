"""`stream2llm simulate`: the scheduler on a virtual clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream2llm.cli.bars import Bars
from stream2llm.cli.needs import ENGINE, TRACES, require
from stream2llm.cli.quiet import quiet_libraries
from stream2llm.costs import Mode
from stream2llm.policy import DEFAULT_POLICY, PolicyError
from stream2llm.policy import policy as find_policy

if TYPE_CHECKING:
    from stream2llm.workloads.machines import Machine
    from stream2llm.workloads.measured import Measured
    from stream2llm.workloads.trace import Query

_COUNT = 1000  # synthetic queries, unless said
_PREEMPTION = typer.Option(Mode.COST, help="What becomes of KV blocks that must be given up.")
_OUTPUT = typer.Option(None, "--out", "-o", help="Where the event log goes (docs/traces.md).")


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def simulate(
        source: str = typer.Argument(
            help="A trace file, or `crawler` or `anns`: synthetic ones with the paper's marginals."
        ),
        queries: int | None = typer.Option(
            None, min=1, help=f"How many. Left out: all of a trace, {_COUNT} synthetic ones."
        ),
        qps: float = typer.Option(4.0, min=1e-6, help="Arrivals a second, a Poisson process."),
        delay: float = typer.Option(1.0, min=0.0, max=1000.0, help="Multiplies the gaps of the retrieval."),
        seed: int = typer.Option(0, help="Of arrivals and synthetic queries."),
        arm: str = typer.Option("stream", help="`stream`, `wait` (the baseline) or `warm` (warm-up calls)."),
        policy: str = typer.Option(DEFAULT_POLICY, help="Scheduling policy of arm `stream` (docs/scheduling.md)."),
        preemption: Mode = _PREEMPTION,
        machine: str = typer.Option(
            "2xh200", help="`2xh200` or `2xh100`, the paper's; or a profile that `stream2llm profile` wrote."
        ),
        kv_tokens: int | None = typer.Option(None, min=1024, help="Size of the KV cache. Needed with a profile."),
        host_tokens: int | None = typer.Option(None, min=0, help="Size of the host tier; 0 for none."),
        step_tokens: int | None = typer.Option(None, min=16, help="Token budget of a step."),
        output: Path | None = _OUTPUT,
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object on standard output."),
    ) -> None:
        """Play a workload to the production scheduler on a virtual clock (docs/simulate.md).

        The scheduler, its policies and preemption and vLLM's KV-cache manager are the real ones; no model runs, and a
        step takes what the cost profile says. What is printed is simulated. Exit status: 2 for bad input.
        """
        require("simulate", *TRACES, ENGINE)
        from functools import partial

        from stream2llm.workloads.arrivals import poisson
        from stream2llm.workloads.events import Arm
        from stream2llm.workloads.setup import Setup

        try:
            if arm not in list(Arm):
                raise ValueError(f"--arm {arm}: choose stream, wait or warm")
            setup = Setup(Arm(arm), find_policy(policy).name, preemption)
            if output is not None and not output.parent.is_dir():
                raise ValueError(f"{output} cannot be written: there is no folder {output.parent}")
            workload, played = _load(source, queries, seed)
            target = _machine(machine, workload, kv_tokens, host_tokens, step_tokens)
            with quiet_libraries():
                from stream2llm.vllm.simulate import Load
                from stream2llm.vllm.simulate import simulate as run
            with quiet_libraries() as terminal, Bars(terminal) as bars:
                load = Load(workload, played, poisson(qps, seed, len(played)), qps, delay, seed)
                measured = run(target, setup, load, output, partial(bars.show, "queries", total=len(played)))
        except (ValueError, OSError, PolicyError) as error:
            typer.echo(f"stream2llm simulate: {error}", err=True)
            raise typer.Exit(2) from None
        figures = summary(measured)
        typer.echo(json.dumps(figures) if as_json else _text(figures))


def _load(source: str, count: int | None, seed: int) -> tuple[str, list[Query]]:
    from stream2llm.workloads.synthetic import MODELS, queries
    from stream2llm.workloads.trace import read_trace

    if source in MODELS:
        return source, list(queries(source, count or _COUNT, seed))
    if not Path(source).exists():
        raise ValueError(f"{source}: there is no such file; name a trace file, or {' or '.join(MODELS)}")
    trace = read_trace(Path(source))
    played = list(trace.queries[:count])
    if not played:
        raise ValueError(f"{source}: there is no query in it")
    return trace.header.workload, played


def _machine(
    name: str, workload: str, kv_tokens: int | None, host_tokens: int | None, step_tokens: int | None
) -> Machine:
    from dataclasses import replace

    from stream2llm.costs.builtin import PAPER_MACHINES
    from stream2llm.costs.store import load
    from stream2llm.workloads.machines import STEP_TOKENS, Machine, paper_machine

    if name in PAPER_MACHINES:
        base = paper_machine(name, step_tokens or STEP_TOKENS.get(workload, 2048))
    else:
        profile = load(Path(name))
        if kv_tokens is None:
            raise ValueError(
                "--kv-tokens is missing: a profile does not say how large the KV cache is (the server's log does)"
            )
        base = Machine(profile, kv_tokens, step_tokens=step_tokens or profile.step_tokens)
    return replace(
        base,
        kv_tokens=kv_tokens or base.kv_tokens,
        host_tokens=base.host_tokens if host_tokens is None else host_tokens,
    )


def summary(measured: Measured) -> dict[str, object]:
    """What a simulated run is told by in one line."""
    from stream2llm.workloads.measured import SHARES, percentile_name

    counters = measured.counters
    return {
        "clock": measured.run.clock,
        "arm": measured.run.arm,
        "policy": measured.run.policy,
        "queries": len(measured.queries),
        "answered": len(measured.ttft),
        "ttft_s": {percentile_name(share): round(measured.quantile(share), 4) for share in SHARES},
        "total_s": round(measured.total_seconds, 3),
        "work_ratio": round(measured.work_ratio or 0.0, 4),
        "preempted": int(counters.get("preempted", 0) + counters.get("pins_evicted", 0)),
        "tokens_invalidated": int(counters.get("tokens_invalidated", 0)),
        "steps": int(counters.get("engine_steps", 0)),
    }


def _text(figures: dict[str, object]) -> str:
    ttft = figures["ttft_s"]
    assert isinstance(ttft, dict)
    played = " ".join(filter(None, (str(figures["arm"]), str(figures["policy"]))))
    shown = ", ".join(f"{name} {seconds:g}" for name, seconds in ttft.items())
    return (
        f"simulated (virtual clock), {played}: {figures['answered']} of "
        f"{figures['queries']} queries answered in {figures['total_s']} s\n"
        f"TTFT in s: {shown}; work ratio {figures['work_ratio']}, {figures['preempted']} preemptions"
    )
