"""TTFT of the crawler workload on the real engine, in each arm, over that of waiting for all of the context.

A random-weight model of 8 small layers on the CPU sees the load of the paper's 2 x H200 at QPS 4: tokens of all pieces
are divided by a token scale and times multiplied by a time scale, so that as much prefill arrives per second of
capacity, and retrieval takes as many times as long as prefill (`stream2llm.workloads.utilisation`). (The tests' model
of 3 layers is so fast that the API server and this client, which share the last core, have more to do than the engine.)
`least_s`: what no arm can do better, the time to compute what the last operation brings, on an idle engine that has all
the rest.

TTFT runs from the moment the last piece is handed over, in every arm:

wait     everything is sent in the end, to stock vLLM
warm     a growing prompt with max_tokens 1 after each piece, to stock vLLM
input    vLLM's own StreamingInput, stock, in this process (so it has no HTTP to pay for)
stream   context streams, `stream2llm serve`

`--scenario pressure`: delays x5, and a KV pool of a third of what the open streams want at once. `stream swap` has a
host tier and lets the cost model decide, `stream recompute` has none. No `input` there: it cannot give way.

    python -m benchmarks.replay --json                          # both scenarios, an object each; half an hour
    python -m benchmarks.replay --json --scenario ample

Ratios are waiting over the arm (above 1 is sooner), of the same seed: median, least and greatest over the seeds.
`throughput_ratio`: queries per second from the first arrival to the last end, over that of waiting. `work_ratio`:
tokens the engine computed over tokens of all prompts and answers, where the server counts them. `lag_p99_ms`: how late
this load generator was. Logs are kept with `--out DIR`, for `stream2llm report`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._servers import MAX_TOKENS, engine_cores, serving, tiny_model

from stream2llm import AsyncClient
from stream2llm.costs import Curve, paper_profile
from stream2llm.workloads import synthetic
from stream2llm.workloads.comparison import Row, Spread, compare
from stream2llm.workloads.events import Arm, Run
from stream2llm.workloads.measured import Measured, quantile
from stream2llm.workloads.replay import server as servers
from stream2llm.workloads.replay.arms import arm_named
from stream2llm.workloads.replay.completions import Completions
from stream2llm.workloads.replay.content import Vocabulary
from stream2llm.workloads.replay.counters import counted
from stream2llm.workloads.replay.load import Load, poisson_load
from stream2llm.workloads.replay.plan import most_open_tokens, timeline
from stream2llm.workloads.replay.prefill import Prefills, prefill_curve
from stream2llm.workloads.replay.run import record
from stream2llm.workloads.utilisation import match, probes

WORKLOAD = "crawler"
PAPER_STEP_TOKENS = 2048
LAYERS = 8
BLOCK = 32
SHARES = (0.5, 0.95, 0.99)
PRESSURE_DELAY = 5.0
POOL_SHARE = 1 / 3
SETTLE_S = 1.0
ROOM = 64  # tokens: for the answer, and for pieces that are rounded up
STOCK_CPU = ("--dtype", "float32", "--block-size", str(BLOCK))


@dataclass(frozen=True)
class Subject:
    """An arm and the server it needs: `command` and options beside those that all have; none for the arm in process."""

    arm: Arm
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


WAIT = Subject(Arm.WAIT, serving.STOCK, STOCK_CPU)
WARM = Subject(Arm.WARM, serving.STOCK, STOCK_CPU)
INPUT = Subject(Arm.INPUT)
STREAM = Subject(Arm.STREAM, serving.OURS)
SCENARIOS = {
    "ample": (WAIT, WARM, INPUT, STREAM),
    "pressure": (WAIT, WARM, replace(STREAM, options=("--host-gib", "1")), STREAM),
}
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}  # standard output is for figures
TARGETS = {
    "ample": {"stream recompute": (6.0, 7.0, 5.0)},
    "pressure": {"stream cost": (5.0, 8.0, 6.0), "stream recompute": (1.0, 1.0, 1.0)},
}


class Bench:
    """Loads by seed, and where their logs go."""

    def __init__(self, loads: Sequence[Load], directory: Path) -> None:
        self._loads = loads
        self._directory = directory

    async def over_http(self, addresses: Mapping[Subject, str]) -> list[Measured]:
        """Every subject with every load, the subjects in turn, so that a change of the machine meets all of them."""
        found = []
        for load in self._loads:
            for subject, base_url in addresses.items():
                found.append(await self._against(subject, base_url, load))
                await asyncio.sleep(SETTLE_S)
        return found

    async def _against(self, subject: Subject, base_url: str, load: Load) -> Measured:
        async with servers.connect(base_url) as http, AsyncClient(base_url, model="tiny") as client:
            completions = Completions(http, "tiny", salt=secrets.token_hex(8))
            await Prefills(completions, Vocabulary()).seconds(1024)  # pays for what a server does only once
            arm = arm_named(subject.arm, client, completions)
            scheduling = await servers.scheduling(http) if subject.arm is Arm.STREAM else servers.Scheduling()
            policy, preemption = scheduling.policy, scheduling.preemption
            header = load.run(subject.arm, model="tiny", max_tokens=1, policy=policy, preemption=preemption)
            return await self._recorded(header, load, arm, partial(counted, http))

    async def in_process(self, model: str, options: Sequence[str]) -> list[Measured]:
        """vLLM's own StreamingInput with every load."""
        from stream2llm.vllm.streaming_input import InputEngine

        engine = InputEngine(model, options)
        try:
            await engine.seconds(1024)
            headers = [load.run(Arm.INPUT, model="tiny", max_tokens=1) for load in self._loads]
            return [
                await self._recorded(header, load, engine, _nothing)
                for header, load in zip(headers, self._loads, strict=True)
            ]
        finally:
            engine.shutdown()

    async def _recorded(
        self, header: Run, load: Load, arm: Any, count: Callable[[], Awaitable[Mapping[str, float]]]
    ) -> Measured:
        name = "-".join(filter(None, (header.arm, header.preemption, f"seed{header.seed}")))
        path = self._directory / f"{name}.jsonl"
        measured = await record(path, header, load.planned(), arm, count=count, stop=asyncio.Event())
        if measured.failed:
            raise RuntimeError(f"{name}: {measured.failed} queries failed, the first of them: {_first_error(measured)}")
        return measured


async def _nothing() -> dict[str, float]:
    return {}


def _first_error(measured: Measured) -> str:
    return next(query.error for query in measured.queries if query.error)


async def measured_prefill(base_url: str, loads: Sequence[Load]) -> tuple[Curve, int]:
    """Seconds of a prefill on this server by its tokens, and the most tokens that a prompt can have."""
    queries = [query for load in loads for query in load.queries]
    async with servers.connect(base_url) as http:
        served = await servers.served(http)
        longest = (served.longest or MAX_TOKENS) - ROOM
        prefills = Prefills(Completions(http, served.model, secrets.token_hex(8)), Vocabulary())
        return await prefill_curve(prefills.seconds, probes(queries, longest)), longest


def least_s(loads: Sequence[Load], here: Curve) -> dict[str, float]:
    """Quantiles of the time that what comes with the last operation takes on an idle engine that has all the rest.

    No arm can be faster; a long last page takes its time however the context got there.
    """
    times = []
    for item in (item for load in loads for item in load.planned()):
        *before, _ = timeline(item.query)
        known = before[-1].tokens if before else 0
        times.append(max(here(1), here(item.query.tokens) - here(known)))
    return {f"p{round(100 * share)}": round(quantile(times, share), 4) for share in SHARES}


def pool_blocks(loads: Sequence[Load], longest: int) -> int:
    """A third of what the open streams want at once, the mean over the loads; enough for one request of `longest`."""
    wanted = sum(most_open_tokens(load.planned()) for load in loads) / len(loads)
    return max(math.ceil(POOL_SHARE * wanted / BLOCK), math.ceil(longest / BLOCK) + 1)


@contextmanager
def running(
    subjects: Sequence[Subject], model: str, options: Sequence[str], arguments: argparse.Namespace
) -> Iterator[dict[Subject, str]]:
    """The addresses of the servers that the subjects need; those that need the same one share it."""
    given = {(WAIT.command, WAIT.options): arguments.stock_url, (STREAM.command, STREAM.options): arguments.stream_url}
    addresses = {kind: url for kind, url in given.items() if url is not None}
    with ExitStack() as servers_up:
        for subject in subjects:
            kind = (subject.command, subject.options)
            if subject.command and kind not in addresses:
                server = serving.running_server(
                    subject.command, model, *options, *subject.options, environ=engine_cores(arguments.engine_cores)
                )
                addresses[kind] = servers_up.enter_context(server).base_url
        yield {s: addresses[s.command, s.options] for s in subjects if s.command}


def server_options(max_model_len: int, step_tokens: int) -> list[str]:
    return [
        *("--max-model-len", str(max_model_len), "--max-num-batched-tokens", str(step_tokens)),
        *("--max-num-seqs", "256", "--enforce-eager"),
    ]


def measure(scenario: str, arguments: argparse.Namespace, directory: Path) -> tuple[dict[str, Any], list[Measured]]:
    model, cores = tiny_model(layers=LAYERS), arguments.engine_cores
    loads = [
        poisson_load(WORKLOAD, list(synthetic.queries(WORKLOAD, arguments.queries, seed)), arguments.qps, seed)
        for seed in arguments.seeds
    ]
    with running([WAIT], model, server_options(MAX_TOKENS, arguments.step_tokens), arguments) as addresses:
        here, most = asyncio.run(measured_prefill(addresses[WAIT], loads))
    queries = [query for load in loads for query in load.queries]
    there = paper_profile("2xh200", PAPER_STEP_TOKENS).prefill_seconds
    found = match(queries, arguments.qps, there, here, token_scale=arguments.token_scale, longest=most)
    pressure = scenario == "pressure"
    loads = [replace(load.matched(found), delay=PRESSURE_DELAY if pressure else 1.0) for load in loads]
    longest = min(MAX_TOKENS, ROOM + max(item.query.tokens for load in loads for item in load.planned()))
    options = server_options(longest, arguments.step_tokens)
    setting = {
        "queries": arguments.queries,
        "paper_qps": arguments.qps,
        "load": round(found.load, 3),
        "retrieval_over_prefill": round(found.retrieval_ratio * loads[0].delay, 1),
        "token_scale": loads[0].token_scale,
        "time_scale": loads[0].time_scale,
        "step_tokens": arguments.step_tokens,
        "engine_cores": cores,
        "seeds": arguments.seeds,
        "least_s": least_s(loads, here),
    }
    if pressure:
        blocks = pool_blocks(loads, longest)
        options += ["--num-gpu-blocks-override", str(blocks)]
        setting["pool_tokens"] = blocks * BLOCK
    subjects = [s for s in SCENARIOS[scenario] if s is WAIT or s.arm in arguments.arms]
    bench = Bench(loads, directory)
    with running(subjects, model, options, arguments) as addresses:
        runs = asyncio.run(bench.over_http(addresses))
    if INPUT in subjects:
        os.environ.update({**engine_cores(cores), "VLLM_CPU_KVCACHE_SPACE": "1", **QUIET})
        runs += asyncio.run(bench.in_process(model, options))
    return setting, runs


def figures(row: Row) -> dict[str, Any]:
    """One arm over its seeds: each figure as [median, least, greatest]."""
    found: dict[str, Any] = {}
    for share in SHARES:
        name = f"p{round(100 * share)}"
        found[f"ttft_{name}_s"] = _triple(row.seconds(share))
        found[f"ratio_{name}"] = _triple(row.times_sooner(share))
    found["throughput_ratio"] = _triple(row.against_waiting(lambda run: run.throughput))
    found["total_s"] = _triple(row.spread(lambda run: run.total_seconds))
    found["work_ratio"] = _triple(row.spread(lambda run: run.work_ratio))
    found["lag_p99_ms"] = _triple(row.spread(lambda run: 1e3 * run.counters["load_lag_p99_seconds"]))
    counters = sorted({name for run in row.runs for name in run.counters if not name.startswith("load_lag")})
    found["counters"] = {
        name: round(sum(run.counters.get(name, 0) for run in row.runs) / len(row.runs), 3) for name in counters
    }
    return {name: value for name, value in found.items() if value is not None}


def _triple(spread: Spread | None) -> list[float] | None:
    return None if spread is None else [round(value, 4) for value in (spread.median, spread.low, spread.high)]


def report(runs: Sequence[Measured]) -> dict[str, Any]:
    return {" ".join(filter(None, (row.variant.arm, row.variant.preemption))): figures(row) for row in compare(runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="default: one after the other")
    parser.add_argument("--queries", type=int, default=150)
    parser.add_argument("--qps", type=float, default=4.0, help="of the paper, whose load is matched")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--token-scale", type=float, help="default: the one that brings the time scale nearest to 1")
    parser.add_argument("--step-tokens", type=int, default=512, help="of every engine; default: serve's on the CPU")
    parser.add_argument("--engine-cores", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--arms", nargs="+", choices=list(Arm), default=list(Arm), help="beside `wait`; default: all")
    parser.add_argument("--stock-url", help="a running stock server of the tiny model, instead of starting one")
    parser.add_argument("--stream-url", help="the same with context streams, without a host tier")
    parser.add_argument("--out", type=Path, help="keep the event logs in this directory")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the servers are ended
    for scenario in [arguments.scenario] if arguments.scenario else SCENARIOS:
        with tempfile.TemporaryDirectory() as temporary:
            directory = arguments.out / scenario if arguments.out else Path(temporary)
            directory.mkdir(parents=True, exist_ok=True)
            setting, runs = measure(scenario, arguments, directory)
        show(scenario, setting, report(runs), as_json=arguments.json)


def show(scenario: str, setting: dict[str, Any], arms: dict[str, Any], *, as_json: bool) -> None:
    wanted = TARGETS[scenario]
    targets = {name: dict(zip(("p50", "p95", "p99"), ratios, strict=True)) for name, ratios in wanted.items()}
    if as_json:
        print(
            json.dumps({"benchmark": "replay", "scenario": scenario, **setting, "targets": targets, "arms": arms}),
            flush=True,
        )
        return
    print(scenario, json.dumps(setting))
    for name, found in arms.items():
        shown = {key: value for key, value in found.items() if key != "counters"}
        print(f"{name:>16}: {shown}")
    print(f"wanted, waiting over the arm: {targets}", flush=True)


if __name__ == "__main__":
    main()
