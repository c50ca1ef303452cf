"""`stream2llm check pressure`: many open streams that want more memory than there is, on the user's model and hardware.

All streams are open at the same time and go on writing, among them some that are abandoned with what they hold, and
plain requests come in between. The KV cache holds a part of what the open streams want: the sum of their largest
prompts, in blocks. It is full when the final requests begin to come. Every complete request must finish with the answer
that it has when nothing is cached and nothing else runs, and no KV block may be lost.

What it costs is reported in tokens. *Needed* is what an engine with endless memory would have computed: every final and
every plain prompt once, their answers, the tokens that replacements invalidated (as the engine counts them: computed
and then lost), and the contexts that were sent and then closed, aborted or abandoned. `work_ratio` is the tokens
computed over these, `work_ratio_strict` over the prompts and answers of complete requests only. The first lies below 1
where streams waited for memory until they were closed: what was sent for them was never computed.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from stream2llm.policy import DEFAULT_POLICY
from stream2llm.vllm.check_engine import Answer, CheckEngine, text_tokens
from stream2llm.vllm.ops import Ack
from stream2llm.vllm.options import KEY
from stream2llm.vllm.pressure_workload import LONG_ANSWER, Fate, PlainCase, StreamCase, Workload, draw
from stream2llm.vllm.serve import CPU_BLOCK_SIZE, host_tier_connector

MOST_PREEMPTIONS_PER_REQUEST = 3.0
MOST_WORK = 1.3  # times what is needed, with swap at 50 %

_BLOCK_TOKENS = CPU_BLOCK_SIZE
_SEQUENCES = 16
_PATIENCE_SECONDS = 120.0  # and ten times what the whole workload should take
_ABORT_AFTER = 0.02  # of the time that the workload should take

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Pressure:
    """The KV cache as a percentage of what the open streams want; `preemption`: a `costs.Mode`, with a host tier that
    holds all they want, or `recompute` without one; `policy`: see `stream2llm.policy`."""

    pool_percent: int
    preemption: str
    policy: str = DEFAULT_POLICY

    def __str__(self) -> str:
        return f"{self.pool_percent} % {self.preemption}"


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of a run: the answers that came, by request; `spent`: how far the engine's counters rose."""

    answers: Mapping[str, Answer]
    spent: Mapping[str, int]
    streams_at_once: int
    streams_without_memory: int
    leaked_blocks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one engine did.

    `streams_at_once`: the most that the engine had open; `streams_without_memory`: those of them that waited for it, or
    had lost it, when the final requests began to come. `preemptions` counts each time that a stream or a request lost
    its KV blocks; tokens recomputed and swapped are those that streams gave up. Waits are from sending a complete
    request to its first token.
    """

    pool_percent: int
    preemption: str
    policy: str
    kv_blocks: int
    streams_at_once: int
    streams_without_memory: int
    requests: int
    finished: int
    equal: int
    leaked_blocks: int
    preemptions: int
    preemptions_per_request: float
    work_ratio: float
    work_ratio_strict: float
    tokens_computed: int
    tokens_needed: int
    tokens_invalidated: int
    tokens_recomputed: int
    tokens_swapped: int
    longest_wait_seconds: float
    wait_p99_seconds: float
    seconds: float

    @property
    def bounds_work(self) -> bool:
        """Whether it is the run that `MOST_WORK` is said of."""
        return (self.pool_percent, self.preemption) == (50, "swap")

    @property
    def passed(self) -> bool:
        return self.finished == self.equal == self.requests and self.leaked_blocks == 0


@dataclass(frozen=True, slots=True)
class Report:
    """All runs; counts are sums, the rest is the worst run's. `work_ratio` is that of the run with swap at 50 %, None
    if there was none."""

    runs: tuple[Run, ...]
    streams: int
    wanted_blocks: int
    model: str

    @property
    def passed(self) -> bool:
        return all(run.passed for run in self.runs)

    @property
    def work_ratio(self) -> float | None:
        return max((run.work_ratio for run in self.runs if run.bounds_work), default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": sum(run.requests for run in self.runs),
            "finished": sum(run.finished for run in self.runs),
            "equal": sum(run.equal for run in self.runs),
            "leaked_blocks": sum(run.leaked_blocks for run in self.runs),
            "preemptions_per_request": max(run.preemptions_per_request for run in self.runs),
            "work_ratio": self.work_ratio,
            "longest_wait_seconds": max(run.longest_wait_seconds for run in self.runs),
            "streams": self.streams,
            "wanted_blocks": self.wanted_blocks,
            "model": self.model,
            "runs": [asdict(run) for run in self.runs],
        }


def pressures(pools: Sequence[int], preemption: str | None, policy: str = DEFAULT_POLICY) -> list[Pressure]:
    """The runs that the command's options ask for. Pure.

    `preemption` is a mode, `both`, or None: with swap at every pool, and without at the first.
    """
    if preemption is None:
        return [*(Pressure(pool, "swap", policy) for pool in pools), Pressure(pools[0], "recompute", policy)]
    modes = ["swap", "recompute"] if preemption == "both" else [preemption]
    return [Pressure(pool, mode, policy) for mode, pool in product(modes, pools)]


def check(
    model: str,
    streams: int,
    asked: Sequence[Pressure],
    *,
    seed: int = 0,
    longest: int = 256,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Run the same workload under each pressure, each on an engine of its own.

    `longest`: tokens of a prompt at most. `progress` is told how many requests were answered in each run, and how many
    cold answers there are to compare with (the first engine gives them, when its run is over).
    """
    bench = _Bench(model, streams, seed, longest, progress)
    runs = [bench.run(pressure) for pressure in asked]
    return Report(tuple(runs), streams, bench.workload.wanted_blocks(_BLOCK_TOKENS), model)


def pool_blocks(percent: int, wanted: int, longest: int) -> int:
    """The KV cache's size for a run: what one request needs at least, and vLLM's null block. Pure."""
    least = math.ceil(longest / _BLOCK_TOKENS)
    return 1 + max(least, math.ceil(wanted * percent / 100))


def measured(
    pressure: Pressure, kv_blocks: int, workload: Workload, cold: Mapping[str, Sequence[int]], observed: Observed
) -> Run:
    """A run's figures; `cold` are the right answers, by request. Pure."""
    spent, answers = observed.spent, observed.answers
    preemptions = sum(spent.get(name, 0) for name in ("preempted", "preempted_complete", "pins_evicted"))
    needed = workload.tokens_asked + workload.tokens_unanswered + spent["tokens_invalidated"]
    waits = sorted(answer.wait for answer in answers.values()) or [0.0]
    return Run(
        pool_percent=pressure.pool_percent,
        preemption=pressure.preemption,
        policy=pressure.policy,
        kv_blocks=kv_blocks,
        streams_at_once=observed.streams_at_once,
        streams_without_memory=observed.streams_without_memory,
        requests=len(cold),
        finished=len(answers),
        equal=sum(answer.tokens == cold[name] for name, answer in answers.items()),
        leaked_blocks=observed.leaked_blocks,
        preemptions=preemptions,
        preemptions_per_request=round(preemptions / max(1, len(answers)), 3),
        work_ratio=round(spent["tokens_computed"] / needed, 3),
        work_ratio_strict=round(spent["tokens_computed"] / workload.tokens_asked, 3),
        tokens_computed=spent["tokens_computed"],
        tokens_needed=needed,
        tokens_invalidated=spent["tokens_invalidated"],
        tokens_recomputed=spent["tokens_recomputed"],
        tokens_swapped=spent["tokens_swapped"],
        longest_wait_seconds=round(waits[-1], 3),
        wait_p99_seconds=round(waits[math.ceil(0.99 * len(waits)) - 1], 3),
        seconds=round(observed.seconds, 1),
    )


@dataclass(frozen=True, slots=True)
class _Common:
    """What the first engine finds out for all runs."""

    unit: float
    """Seconds that the engine takes to compute every prompt once; the workload's times are shares of it."""
    cold: dict[str, list[int]]
    """The answers to the complete requests, by request, when nothing is cached and nothing else runs."""


class _Bench:
    """Runs one workload under several pressures."""

    def __init__(self, model: str, streams: int, seed: int, longest: int, progress: Progress) -> None:
        self._model = model
        self._longest = longest
        self._progress = progress
        self._text = text_tokens(model)
        self.workload = draw(streams, seed, longest, self._text)
        self._requests = {
            **{_final_name(case): (case.final, case.answer_tokens) for case in self.workload.finals},
            **{_plain_name(case): (case.prompt, case.answer_tokens) for case in self.workload.plain},
        }
        self._common: _Common | None = None

    def run(self, pressure: Pressure) -> Run:
        run = asyncio.run(self._run(pressure))
        gc.collect()
        return run

    async def _run(self, pressure: Pressure) -> Run:
        wanted = self.workload.wanted_blocks(_BLOCK_TOKENS)
        kv_blocks = pool_blocks(pressure.pool_percent, wanted, self._longest + LONG_ANSWER)
        engine = _engine(self._model, pressure, kv_blocks, wanted, self._longest + LONG_ANSWER)
        try:
            unit = self._common.unit if self._common is not None else await self._measure_unit(engine)
            free, before = await engine.free_blocks(), await engine.figures()
            started = time.monotonic()
            answers, phases = await self._press(engine, unit, str(pressure))
            seconds = time.monotonic() - started
            after = await engine.figures()
            leaked = free - await engine.free_blocks()
            if self._common is None:
                if leaked:  # vLLM does not reset a prefix cache whose blocks are in use
                    engine.shutdown()
                    engine = _engine(self._model, pressure, kv_blocks, wanted, self._longest + LONG_ANSWER)
                self._common = _Common(unit, await self._cold_answers(engine))
        finally:
            engine.shutdown()
        spent = {name: after[name] - before[name] for name in after}
        without_memory = sum(phases.get(phase, 0) for phase in ("waiting", "evicted"))
        observed = Observed(answers, spent, sum(phases.values()), without_memory, leaked, seconds)
        return measured(pressure, kv_blocks, self.workload, self._common.cold, observed)

    async def _measure_unit(self, engine: CheckEngine) -> float:
        """By two requests, the first of which warms the engine up."""
        length = self._longest // 2
        await engine.ask(self._text[:length], "first", 1)
        timed = await engine.ask(self._text[length : 2 * length], "second", 1)
        return timed.wait / length * (self.workload.tokens_asked + self.workload.tokens_unanswered)

    async def _press(self, engine: CheckEngine, unit: float, what: str) -> tuple[dict[str, Answer], dict[str, int]]:
        """The answers of the requests that finished, and the number of streams in each phase when all were open and the
        engine had done what it could; none is open at the end."""
        answers: dict[str, Answer] = {}
        phases: dict[str, int] = {}
        patience = _PATIENCE_SECONDS + 10 * unit
        self._progress(what, 0, len(self._requests))

        async def ask(name: str, prompt: Sequence[int], answer_tokens: int, stream: Ack | None = None) -> None:
            # A request that finishes by then or never: a check that hangs would say nothing.
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    answers[name] = await engine.ask(prompt, name, answer_tokens, stream=stream)
            self._progress(what, len(answers), len(self._requests))

        async def stream(case: StreamCase) -> Ack | None:
            """The stream if it is abandoned."""
            nonlocal phases
            pauses = (asyncio.sleep(pause * unit) for pause in case.pauses)
            await next(pauses)
            ack = await engine.open(f"pressure-{case.number}", case.versions[0])
            for version in case.versions[1:-1]:
                await next(pauses)
                ack = await engine.write(ack, version)
            if await all_open.wait() == 0:
                phases = await engine.settled()
                second_stage.set()
            await second_stage.wait()
            await next(pauses)
            ack = await engine.write(ack, case.versions[-1])
            await next(pauses)
            match case.fate:
                case Fate.FINISHED:
                    await ask(_final_name(case), case.final, case.answer_tokens, ack)
                case Fate.ABORTED:
                    request = asyncio.create_task(
                        engine.ask(case.final, _final_name(case), case.answer_tokens, stream=ack)
                    )
                    await asyncio.sleep(_ABORT_AFTER * unit)
                    request.cancel()  # vLLM aborts a request whose consumer goes away
                    await asyncio.gather(request, return_exceptions=True)
                case Fate.CLOSED:
                    await engine.close(ack)
                case Fate.ABANDONED:
                    return ack
            return None

        async def plain(case: PlainCase) -> None:
            if not case.first_stage:
                await second_stage.wait()
            await asyncio.sleep(case.time * unit)
            await ask(_plain_name(case), case.prompt, case.answer_tokens)

        all_open, second_stage = asyncio.Barrier(len(self.workload.streams)), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(stream(case)) for case in self.workload.streams]
            for case in self.workload.plain:
                tasks.create_task(plain(case))
        for task in streams:
            abandoned = task.result()
            if abandoned is not None:
                await engine.close(abandoned)
        return answers, phases

    async def _cold_answers(self, engine: CheckEngine) -> dict[str, list[int]]:
        answers = {}
        for name, (prompt, answer_tokens) in self._requests.items():
            answers[name] = await engine.cold(prompt, name, answer_tokens)
            self._progress("cold answers", len(answers), len(self._requests))
        return answers


def _final_name(case: StreamCase) -> str:
    return f"final-{case.number}"


def _plain_name(case: PlainCase) -> str:
    return f"plain-{case.number}"


def _engine(model: str, pressure: Pressure, kv_blocks: int, wanted_blocks: int, max_tokens: int) -> CheckEngine:
    from vllm.config import KVTransferConfig

    options: dict[str, Any] = {
        "additional_config": {KEY: {"preemption": pressure.preemption, "policy": pressure.policy}},
    }
    if pressure.preemption != "recompute":
        options["kv_transfer_config"] = KVTransferConfig(**host_tier_connector(host_blocks=wanted_blocks))
    return CheckEngine(
        model,
        max_tokens=max_tokens,
        max_num_seqs=_SEQUENCES,
        block_size=_BLOCK_TOKENS,
        num_gpu_blocks_override=kv_blocks,
        **options,
    )
