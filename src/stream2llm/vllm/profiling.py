"""Measures the cost model on the running machine's engine: `stream2llm profile`.

Prefill is timed by the engine core's own clock, from the step that first schedules a request to its first token, so
that neither the front end nor the queue counts. Copies are those of the swap connector, on the engine's real KV blocks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stream2llm.costs.fitting import CopySample, PrefillSample, context_lengths, fit_copy, fit_prefill, lengths
from stream2llm.costs.profile import CostProfile, Source, SourceKind
from stream2llm.vllm.serve import cpu_environment, defaults
from stream2llm.vllm.subject import subject_of

if TYPE_CHECKING:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from stream2llm.vllm.offload.copies import BlockCopy
    from stream2llm.vllm.offload.regions import Regions

_SHORTEST = 16  # new tokens, beside the single one of a decode
_COPY_BYTES = 2 << 30  # host memory to measure copies with
_TEXT_CHARACTERS = 20_000

Progress = Callable[[str, int, int], None]


class ProfilingError(Exception):
    """The engine cannot be profiled as it is configured; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A profile, and the runs that it was fitted to."""

    profile: CostProfile
    prefill: tuple[PrefillSample, ...]
    copy_out: tuple[CopySample, ...]
    copy_in: tuple[CopySample, ...]


def engine_arguments(model: str, options: Sequence[str]) -> EngineArgs:
    """vLLM's engine options, with the defaults that `stream2llm serve` has; sets the environment of the CPU engine.

    Raises `SystemExit` (2) for an option that vLLM does not know.
    """
    from vllm import EngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="stream2llm profile"))
    parsed = parser.parse_args(["--model", model, *options])
    cpu = bool(current_platform.is_cpu())
    if cpu:
        os.environ.update(cpu_environment(os.environ, parsed.tensor_parallel_size * parsed.pipeline_parallel_size))
    for name, value in defaults(parsed, cpu).items():
        if name != "scheduler_cls":  # an idle engine without streams is scheduled by stock code anyway
            setattr(parsed, name, value)
    return EngineArgs.from_cli_args(parsed)


def profile(
    arguments: EngineArgs,
    *,
    repeats: int = 5,
    longest_seconds: float = 3.0,
    max_tokens: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Measurement:
    """Start an engine with `arguments`, measure, and fit.

    Everything is run `repeats` times, and the medians are fitted. Prompts get longer until one takes more than
    `longest_seconds`, or has `max_tokens`, or fills the model's or the KV cache's length; beyond, the profile
    extrapolates. `progress` is told what is measured, how many runs of it are done, and how many there are. Raises
    `ProfilingError`.
    """
    if repeats < 1 or longest_seconds <= 0 or (max_tokens is not None and max_tokens < 2 * _SHORTEST):
        raise ProfilingError(
            f"nothing can be measured with repeats={repeats}, longest_seconds={longest_seconds}, "
            f"max_tokens={max_tokens}: give at least 1 repeat, a positive time and {2 * _SHORTEST} tokens"
        )
    with _engine(arguments) as engine:
        timer = _PrefillTimer(engine)
        longest = min(timer.limit, max_tokens or timer.limit)
        prefill = _measure_prefill(timer, repeats, longest_seconds, longest, progress)
        block_bytes, copy_out, copy_in = _measure_copies(engine, repeats, progress)
        config = engine.vllm_config
        block_size = config.cache_config.block_size
        text = (
            f"Measured by stream2llm: median of {repeats} runs, prefills of up to "
            f"{max(sample.new_tokens + sample.context_tokens for sample in prefill)} tokens on an idle engine, "
            f"copies of up to {copy_out[-1].tokens} tokens in scattered blocks."
        )
        try:
            fitted = CostProfile(
                subject=subject_of(config),
                source=Source(SourceKind.MEASURED, text, datetime.now(UTC).isoformat(timespec="seconds")),
                step_tokens=config.scheduler_config.max_num_batched_tokens,
                kv_bytes_per_token=-(-block_bytes // block_size),
                prefill=fit_prefill(prefill),
                copy_out=fit_copy(copy_out),
                copy_in=fit_copy(copy_in),
            )
        except ValueError as error:
            raise ProfilingError(
                f"too little could be measured: {error}. Allow longer prompts: --longest, --max-tokens, --max-model-len"
            ) from error
        return Measurement(fitted, tuple(prefill), tuple(copy_out), tuple(copy_in))


def _measure_prefill(
    timer: _PrefillTimer, repeats: int, longest_seconds: float, limit: int, progress: Progress
) -> list[PrefillSample]:
    """Runs of one kind are spread over the time, so that a moment's disturbance does not meet all of them."""
    timer.warm_up(limit)
    grid = (1, *lengths(_SHORTEST, limit, per_doubling=2))
    samples: list[PrefillSample] = []
    for new in grid:
        samples.append(timer.sample(new))
        progress("prefill", len(samples), repeats * len(grid))
        if samples[-1].seconds > longest_seconds:
            break
    grid = grid[: len(samples)]
    for new in (repeats - 1) * grid:
        samples.append(timer.sample(new))
        progress("prefill", len(samples), repeats * len(grid))
    longest = grid[-1]
    behind = [
        (context, new)
        for context in context_lengths(longest, timer.block_size)
        for new in repeats * (1, *lengths(_SHORTEST, max(_SHORTEST, longest - context)))
        if context + new <= longest and new in grid
    ]
    for done, (context, new) in enumerate(behind, start=1):
        samples.append(timer.sample(new, context))
        progress("prefill behind context", done, len(behind))
    return samples


def _measure_copies(
    engine: LLMEngine, repeats: int, progress: Progress
) -> tuple[int, list[CopySample], list[CopySample]]:
    """Bytes of a block on all workers together; the copies out and in, each run as long as on its slowest worker."""
    config = engine.vllm_config
    block_size = config.cache_config.block_size
    bytes_by_worker = engine.collective_rpc("stream2llm_block_bytes")
    pool = (config.cache_config.num_gpu_blocks or 1) - 1
    most = min(pool, _COPY_BYTES // max(bytes_by_worker), -(-config.model_config.max_model_len // block_size))
    if most < 2:
        raise ProfilingError(
            f"only {most} blocks of {block_size} tokens and {max(bytes_by_worker)} bytes can be copied (the KV cache "
            f"has {pool}): too few to measure; give the KV cache more memory, or take smaller blocks"
        )
    counts = lengths(1, most)
    progress("copies", 0, 1)
    by_worker = engine.collective_rpc("stream2llm_time_copies", args=(list(counts), repeats))
    progress("copies", 1, 1)
    out, back = (
        [
            CopySample(blocks * block_size, max(seconds))
            for blocks, seconds in zip(repeats * counts, zip(*workers, strict=True), strict=True)
        ]
        for workers in zip(*by_worker, strict=True)
    )
    return sum(bytes_by_worker), out, back


class _PrefillTimer:
    """Times prefills of tokens that no earlier prompt had, behind contexts from the prefix cache."""

    def __init__(self, engine: LLMEngine) -> None:
        config = engine.vllm_config
        self._engine = engine
        self._random = random.Random(0)
        self._serial = 0
        self._tokens = _ordinary_tokens(engine)
        self._context: list[int] = []
        self.block_size: int = config.cache_config.block_size
        # One token for the answer, one block that is never handed out, one for the partial block at the end.
        pool = ((config.cache_config.num_gpu_blocks or 0) - 2) * self.block_size
        self.limit = min(config.model_config.max_model_len - 1, pool)
        if self.limit < 2 * _SHORTEST:
            raise ProfilingError(
                f"prompts of at most {self.limit} tokens fit (max_model_len {config.model_config.max_model_len}, KV "
                f"cache of {pool} tokens): too short to measure; raise --max-model-len or give the KV cache more memory"
            )

    def warm_up(self, limit: int) -> None:
        """Run prompts of all lengths up to a full step once, so that no kernel is loaded or tuned while timing."""
        full = self._engine.vllm_config.scheduler_config.max_num_batched_tokens
        for new in lengths(_SHORTEST, min(full, limit)):
            self._run(self._draw(new))

    def sample(self, new_tokens: int, context_tokens: int = 0) -> PrefillSample:
        """Prefill `new_tokens` behind `context_tokens`, a multiple of the block size."""
        if len(self._context) != context_tokens:
            self._context = self._draw(context_tokens)
            if self._context:
                self._run(self._context)
        for _ in range(2):  # a context that was evicted meanwhile is there again after the first
            seconds, cached = self._run([*self._context, *self._draw(new_tokens)])
            if cached == context_tokens:
                return PrefillSample(new_tokens, context_tokens, seconds)
        raise ProfilingError(
            f"the prefix cache held {cached} of {context_tokens} context tokens: the cost of a context cannot be "
            "measured. Leave prefix caching on, and give the KV cache more memory"
        )

    def _run(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds from being scheduled to the first token, and how many prompt tokens were cached."""
        from vllm import SamplingParams, TokensPrompt

        self._serial += 1
        request_id = f"profile-{self._serial}"
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)
        self._engine.add_request(request_id, TokensPrompt(prompt_token_ids=prompt), params)
        while True:
            for output in self._engine.step():
                if output.request_id == request_id and output.finished:
                    return output.metrics.first_token_ts - output.metrics.scheduled_ts, output.num_cached_tokens or 0

    def _draw(self, count: int) -> list[int]:
        return self._random.choices(self._tokens, k=count)


def _ordinary_tokens(engine: LLMEngine) -> list[int]:
    """Token ids that occur in text, so that none of them stands for an image or has another special meaning."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))[:_TEXT_CHARACTERS]
    return sorted(set(engine.get_tokenizer().encode(text, add_special_tokens=False)))


@contextmanager
def _engine(arguments: EngineArgs) -> Iterator[LLMEngine]:
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    if arguments.data_parallel_size > 1:
        raise ProfilingError("--data-parallel-size: every replica costs the same; profile one, without this option")
    if arguments.enable_prefix_caching is False:
        raise ProfilingError("--no-enable-prefix-caching: a context must come from the prefix cache; leave it on")
    arguments.disable_log_stats = False  # they carry the engine core's times
    arguments.worker_extension_cls = f"{BlockCopyTimer.__module__}.{BlockCopyTimer.__qualname__}"
    engine = LLMEngine.from_engine_args(
        arguments, usage_context=UsageContext.OPENAI_API_SERVER
    )  # the server's defaults
    try:
        yield engine
    finally:
        engine.engine_core.shutdown(timeout=10)


class BlockCopyTimer:
    """Added to vLLM's worker class (`worker_extension_cls`): times copies of its KV blocks. Called while it is idle.

    The blocks' contents stay what they are: what is copied in is what was copied out of the same blocks before.
    """

    model_runner: Any

    def stream2llm_block_bytes(self) -> int:
        """Bytes of one KV block on this worker, over all layers."""
        return sum(region.shape[1] for region in _regions(self.model_runner))

    def stream2llm_time_copies(self, counts: list[int], repeats: int) -> tuple[list[float], list[float]]:
        """Seconds to copy so many scattered blocks out to host memory, and back in: `repeats` times all `counts`."""
        from stream2llm.vllm.offload.copier import make_copier
        from stream2llm.vllm.offload.copies import BlockCopy

        blocks = list(range(1, self.model_runner.kv_cache_config.num_blocks))  # block 0 is vLLM's placeholder
        random.Random(0).shuffle(blocks)
        copies = [BlockCopy(block, slot) for slot, block in enumerate(blocks[: max(counts)])]
        copier = make_copier(_regions(self.model_runner), len(copies))
        outs, backs = [], []
        try:
            for count in (repeats + 1) * counts:
                outs.append(_elapsed(copier.copy_out, copies[:count]))
                copier.copy_out([])  # the next step begins
                backs.append(_elapsed(copier.copy_back, copies[:count]))
        finally:
            copier.close()
        return outs[len(counts) :], backs[len(counts) :]  # the first runs warm up


def _regions(runner: Any) -> Regions:
    from stream2llm.vllm.offload.regions import block_regions

    config = runner.kv_cache_config
    layers = [layer for placement in config.kv_cache_tensors for layer in placement.layers]
    # All layers are views of one allocation, which is all that `block_regions` wants of them.
    return block_regions(config, dict.fromkeys(layers, runner.kv_caches[0]))


def _elapsed(copy: Callable[[list[BlockCopy]], None], copies: list[BlockCopy]) -> float:
    """Seconds until the copies are done, on the device too."""
    _synchronize()
    started = perf_counter()
    copy(copies)
    _synchronize()
    return perf_counter() - started


def _synchronize() -> None:
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
