"""What context streams add to a scheduler step: our `schedule()` over stock `schedule()`, with as many live requests.

Two schedulers in one process, vLLM's own and ours, built as the engine core builds them but without a model: every
request whose prefill is done gets the same token from a hand-made model output, one step later, as asynchronous
scheduling has it. Both get the same requests in the same order; a context whose prefill is done is replaced, outside of
the timed region, so that `n` requests stay live. Steps are timed in turn, with garbage collection off.

    python -m benchmarks.scheduler_overhead --json

Scenarios:

mixed     half of the requests decode, half are contexts of 1,000 to 4,000 tokens being prefilled: versions of open
          streams here, plain requests with one token to generate in stock vLLM
idle      the same, and `n` more streams that are open with nothing to compute
prefill   `n` contexts, a chunk of 16 tokens for each in every step (`long_prefill_token_threshold`)
pressure  half decode, and `n` streams stay open after their prefill; the KV cache holds half of what all of it wants.
          Stock vLLM has no such load (its contexts end with their prefill): the ratio is for information only

Prints a list with one object for each `n`. `ratio` is that of the medians; its p10 and p90 are over rounds of 20 steps.
`plan_us` is the time of planning alone (snapshot, ranking, feasibility): the state after each step is planned a few
times at once, and the fastest counts, as the paper's figure is taken. `plan_in_step_us` is the same within the steps
that are compared, where the processor's caches hold the other arm's data; it is part of `ours_us`. Expected: a ratio of
1.15 at most from 50 live requests up, planning within 40 microseconds at 50 live requests and 150 at 500.
`*_step_tokens` and `*_step_requests` show that both schedulers do the same work (medians per step).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from benchmarks._servers import tiny_model
from vllm import EngineArgs, SamplingParams
from vllm.config import VllmConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from stream2llm.vllm.scheduler import AsyncContextScheduler

BLOCK = 16
STEP_TOKENS = 2048
CHUNK = 16  # of a prefill in scenario `prefill`
MAX_MODEL_LEN = 8192
ROUND = 20  # steps
CONTEXT_TOKENS = range(1008, 4016, BLOCK)  # whole blocks: a version computes no others
PROMPT_TOKENS = range(16, 113)
DECODED_TOKENS = 600  # room in the pool for what a request decodes while it is measured
IDLE_TOKENS = 64
TURNOVER = 4  # steps after which the oldest stream is closed, where streams stay open
SAMPLED = 7
REPEATS = 5
RATIO_TARGET = 1.15
PLAN_TARGETS_US = {50: 40, 500: 150}


@dataclass(frozen=True)
class Scenario:
    """What is live, as a share of `n`: requests that decode, contexts that are prefilled, streams besides."""

    decoding: float
    prefilling: float
    idle: float = 0.0
    stay_open: bool = False
    chunk: int = 0
    pool: float = 1.2  # of what all of it wants

    def counts(self, live: int) -> tuple[int, int, int]:
        return round(live * self.decoding), round(live * self.prefilling), round(live * self.idle)

    def blocks(self, live: int) -> int:
        decoding, prefilling, idle = self.counts(live)
        contexts = live if self.stay_open else prefilling
        tokens = (
            decoding * (statistics.mean(PROMPT_TOKENS) + DECODED_TOKENS)
            + contexts * statistics.mean(CONTEXT_TOKENS)
            + idle * IDLE_TOKENS
        )
        return 2 * max(CONTEXT_TOKENS) // BLOCK + int(self.pool * tokens) // BLOCK


SCENARIOS = {
    "mixed": Scenario(decoding=0.5, prefilling=0.5),
    "idle": Scenario(decoding=0.5, prefilling=0.5, idle=1.0),
    "prefill": Scenario(decoding=0.0, prefilling=1.0, chunk=CHUNK),
    "pressure": Scenario(decoding=0.5, prefilling=0.5, stay_open=True, pool=0.5),
}


class Arm:
    """A scheduler, what is live in it, and the model's part: one sampled token for each prefilled request."""

    def __init__(self, scheduler: Any, hasher: Callable[[Request], list[Any]]) -> None:
        self.scheduler = scheduler
        self.hasher = hasher
        self.step_us: list[float] = []
        self.step_tokens: list[int] = []
        self.step_requests: list[int] = []
        self._behind: tuple[SchedulerOutput, ModelRunnerOutput] | None = None
        self._serials = itertools.count()
        self._decoding: set[str] = set()
        self._contexts: set[str] = set()
        # Each kind has its own dice: the requests are the same in both arms.
        self._prompts, self._texts = random.Random(1), random.Random(2)

    def fill(self, decoding: int, contexts: int) -> None:
        """Replace the contexts whose prefill is done. Plain requests decode on: stock vLLM would put a new one behind
        all contexts that wait, and decode fewer requests in a step."""
        live = self.scheduler.requests
        while len(self._decoding) < decoding:
            prompt = self._prompts.choices(range(10, 49000), k=self._prompts.choice(PROMPT_TOKENS))
            self._decoding.add(self.add_plain(prompt, MAX_MODEL_LEN - len(prompt)))
        for id in sorted(id for id in self._contexts if id not in live):
            self._contexts.remove(id)
            self.prefilled(id)
        while len(self._contexts) < contexts:
            text = self._texts.choices(range(10, 49000), k=self._texts.choice(CONTEXT_TOKENS))
            self._contexts.add(self.add_context(text))

    def add_plain(self, prompt: list[int], answer_tokens: int) -> str:
        request = Request(
            request_id=f"request-{next(self._serials)}",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=answer_tokens, ignore_eos=True),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        return request.request_id

    def add_context(self, text: list[int]) -> str:
        """Have a context prefilled; the id of the request that does it."""
        return self.add_plain(text, 1)

    def prefilled(self, request_id: str) -> None:
        """A context's request has finished."""

    @property
    def is_warm(self) -> bool:
        """Whether every plain request decodes."""
        live = self.scheduler.requests
        return all(live[id].num_output_tokens for id in self._decoding)

    def step(self) -> None:
        """One step of the engine, of which scheduling is timed; the model's output arrives one step later."""
        gc.disable()
        started = time.perf_counter()
        output = self.scheduler.schedule()
        took = time.perf_counter() - started
        gc.enable()
        self.step_us.append(1e6 * took)
        self.step_tokens.append(output.total_num_scheduled_tokens)
        self.step_requests.append(len(output.num_scheduled_tokens))
        behind, self._behind = self._behind, (output, self._model_output(output))
        if behind is not None:
            self.scheduler.update_from_output(*behind)

    def _model_output(self, output: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[id].is_prefill_chunk else [SAMPLED] for id in ids]
        return ModelRunnerOutput(ids, {id: index for index, id in enumerate(ids)}, sampled)

    def forget(self) -> None:
        """Start measuring: what was timed before was warm-up."""
        for series in (self.step_us, self.step_tokens, self.step_requests):
            series.clear()


@dataclass
class _Open:
    """The open streams of an arm: whose version a request is, and those with nothing to compute, oldest first."""

    by_request: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)


class StreamsArm(Arm):
    """Ours: contexts are open streams, their requests versions."""

    def __init__(self, scheduler: AsyncContextScheduler, hasher: Callable[[Request], list[Any]], stay: bool) -> None:
        super().__init__(scheduler, hasher)
        self.plan_us: list[float] = []
        self.plan_in_step_us: list[float] = []
        self._stay_open = stay
        self._open = _Open()
        self._template = EngineCoreRequest(
            "template", [1], None, SamplingParams(max_tokens=1), None, 0.0, None, None, None
        )

    def add_context(self, text: list[int]) -> str:
        stream = f"stream-{next(self._serials)}"
        request = self.scheduler.streams.open(stream, 1e9, {}, [], text, self._template, self.hasher)
        self.scheduler.add_request(request)
        self._open.by_request[request.request_id] = stream
        return request.request_id

    def prefilled(self, request_id: str) -> None:
        stream = self._open.by_request.pop(request_id)
        if self._stay_open:
            self._open.idle.append(stream)
        else:
            self.scheduler.streams.close(stream)

    def is_full(self, idle: int) -> bool:
        """Whether as many streams stay open as are to, or the KV cache has no room for another."""
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return len(self._open.idle) >= idle or free < max(CONTEXT_TOKENS) // BLOCK

    @property
    def evictions(self) -> int:
        figures = self.scheduler.streams.figures()
        return int(figures["pins_evicted"] + figures["preempted"])

    def close_oldest(self, keep: int) -> None:
        while len(self._open.idle) > keep:
            self.scheduler.streams.close(self._open.idle.pop(0))

    def open_idle(self, count: int) -> None:
        """Streams that are prefilled, and left alone from then on."""
        dice = random.Random(3)
        for _ in range(count):
            self.add_context(dice.choices(range(10, 49000), k=IDLE_TOKENS))
        while self.scheduler.has_requests():
            self.step()

    def step(self) -> None:
        before = self.scheduler.streams.statistics.plan_seconds
        super().step()
        self.plan_in_step_us.append(1e6 * (self.scheduler.streams.statistics.plan_seconds - before))
        self.plan_us.append(1e6 * min(self._planning() for _ in range(REPEATS)))

    def _planning(self) -> float:
        """Seconds to plan a step, which changes nothing."""
        started = time.perf_counter()
        self.scheduler.survey.plan(self.scheduler.observation.context_tokens)
        return time.perf_counter() - started

    def forget(self) -> None:
        super().forget()
        self.plan_us.clear()
        self.plan_in_step_us.clear()


def measure(name: str, live: int, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    """The figures of one scenario with `live` requests. `options` are our scheduler's, from additional config."""
    scenario = SCENARIOS[name]
    decoding, prefilling, idle = scenario.counts(live)
    config = engine_config(scenario, live, options)
    hasher = block_hasher(config)
    stock = Arm(build(AsyncScheduler, config), hasher)
    ours = StreamsArm(build(AsyncContextScheduler, config), hasher, scenario.stay_open)
    ours.scheduler.survey.short_step_tokens = math.inf  # stock vLLM knows none, and both are to do the same work
    ours.open_idle(idle)

    numbers = itertools.count()

    def run(count: int) -> None:
        for _ in range(count):
            number = next(numbers)
            for arm in (stock, ours) if number % 2 else (ours, stock):
                arm.fill(decoding, prefilling)
                arm.step()
            if scenario.stay_open and number % TURNOVER == 0:
                ours.close_oldest(live - prefilling - 1)

    run(2 * ROUND)
    while not (stock.is_warm and ours.is_warm and (ours.is_full(live - prefilling) or not scenario.stay_open)):
        run(1)
    for arm in (stock, ours):
        arm.forget()
    gc.collect()
    gc.freeze()
    evictions = ours.evictions
    run(steps)
    gc.unfreeze()
    evicted = {"evictions": ours.evictions - evictions} if scenario.stay_open else {}
    return {"scenario": name, "n": live, **report(stock, ours), **evicted, **targets(name, live)}


def report(stock: Arm, ours: StreamsArm) -> dict[str, Any]:
    ratios = [
        statistics.median(theirs) / statistics.median(own)
        for theirs, own in zip(_rounds(ours.step_us), _rounds(stock.step_us), strict=True)
    ]
    return {
        "steps": len(ours.step_us),
        "ratio": round(statistics.median(ours.step_us) / statistics.median(stock.step_us), 3),
        "ratio_p10": round(quantile(ratios, 0.1), 3),
        "ratio_p90": round(quantile(ratios, 0.9), 3),
        "stock_us": round(statistics.median(stock.step_us), 1),
        "ours_us": round(statistics.median(ours.step_us), 1),
        "plan_us": round(statistics.median(ours.plan_us), 1),
        "plan_us_p90": round(quantile(ours.plan_us, 0.9), 1),
        "plan_in_step_us": round(statistics.median(ours.plan_in_step_us), 1),
        "stock_step_tokens": statistics.median(stock.step_tokens),
        "ours_step_tokens": statistics.median(ours.step_tokens),
        "stock_step_requests": statistics.median(stock.step_requests),
        "ours_step_requests": statistics.median(ours.step_requests),
    }


def targets(name: str, live: int) -> dict[str, Any]:
    """Those that hold for this scenario and size."""
    ratio = {"target_ratio": RATIO_TARGET} if live >= 50 and name != "pressure" else {}
    plan = {"target_plan_us": PLAN_TARGETS_US[live]} if live in PLAN_TARGETS_US else {}
    return {**ratio, **plan}


def _rounds(series: Sequence[float]) -> Iterator[Sequence[float]]:
    return (series[start : start + ROUND] for start in range(0, len(series), ROUND))


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def engine_config(scenario: Scenario, live: int, options: dict[str, Any]) -> VllmConfig:
    config = EngineArgs(
        model=tiny_model(),
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=live,
        max_num_batched_tokens=max(STEP_TOKENS, scenario.chunk * live),
        long_prefill_token_threshold=scenario.chunk,
        block_size=BLOCK,
        enforce_eager=True,
        # No model runs, so there is no decode to protect; the stock scheduler does not protect any either.
        additional_config={"stream2llm": {"itl_factor": None, **options}},
    ).create_engine_config()
    config.scheduler_config.async_scheduling = True  # vLLM's default, but not on the CPU
    config.cache_config.num_gpu_blocks = scenario.blocks(live)
    return config


def build(scheduler: type, config: VllmConfig) -> Any:
    """A scheduler as the engine core makes it, for a model with one group of KV cache layers."""
    model = config.model_config
    spec = FullAttentionSpec(
        block_size=BLOCK,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=model.get_head_size(),
        dtype=model.dtype,
    )
    return scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(config.cache_config.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def block_hasher(config: VllmConfig) -> Callable[[Request], list[Any]]:
    function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    return get_request_block_hasher(BLOCK, function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument("--scenario", choices=list(SCENARIOS), default="mixed")
    parser.add_argument("--live", type=int, nargs="+", default=[10, 50, 200, 500, 1000], metavar="N")
    parser.add_argument("--steps", type=int, default=300, help="timed in each arm")
    parser.add_argument("--options", type=json.loads, default={}, help="of our scheduler, as in additional config")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    results = [measure(arguments.scenario, live, arguments.steps, arguments.options) for live in arguments.live]
    if arguments.json:
        print(json.dumps(results))
        return
    for result in results:
        wanted = {name.removeprefix("target_"): value for name, value in result.items() if name.startswith("target_")}
        print(
            f"{result['scenario']} {result['n']:>5}: ratio {result['ratio']} "
            f"({result['ratio_p10']} to {result['ratio_p90']}), stock {result['stock_us']} us, "
            f"ours {result['ours_us']} us, planning {result['plan_us']} us ({result['plan_in_step_us']} in the step)"
            + (f"; wanted at most: {wanted}" if wanted else "")
        )


if __name__ == "__main__":
    main()
