"""`stream2llm check exactness`: streams against cold runs of the same prompts, on the user's model and hardware.

Every case is a stream with random appends, replacements and pauses, some aborted on the way, several at once. The
answer to its final prompt must be, token by token, the one that the engine gives to that prompt when nothing is cached
and no stream is open, which is stock vLLM's path.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stream2llm.vllm.ops import ContextOps
from stream2llm.vllm.serve import ASYNC_SCHEDULER, CPU_BLOCK_SIZE, cpu_environment

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Report:
    """What was found: `equal` of `cases` answers, aborted streams among the cases count as equal when they left
    nothing behind; `reused_tokens` of `prompt_tokens` came from the streams."""

    cases: int
    equal: int
    leaked_blocks: int
    aborted: int
    prompt_tokens: int
    reused_tokens: int
    model: str

    @property
    def passed(self) -> bool:
        return self.equal == self.cases and self.leaked_blocks == 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Case:
    number: int
    versions: tuple[tuple[int, ...], ...]  # each the whole prompt
    pauses: tuple[float, ...]  # seconds before each version
    final: tuple[int, ...]
    abort_after: float | None  # seconds after which the final request is aborted


@dataclass(frozen=True, slots=True)
class _Outcome:
    case: _Case
    answer: list[int] | None
    cached: int


def check(
    model: str,
    cases: int,
    *,
    seed: int = 0,
    concurrency: int = 6,
    longest: int = 600,
    kv_blocks: int | None = None,
    progress: Callable[[str, int], None] = lambda what, done: None,
) -> Report:
    """Run the check on an engine of its own.

    `longest`: context tokens per case at most. `kv_blocks`: size of the KV cache in blocks, to see it under memory
    pressure. `progress` is told how many cases were streamed and compared.
    """
    report = asyncio.run(_check(model, cases, seed, concurrency, longest, kv_blocks, progress))
    gc.collect()  # the engine client's finaliser needs modules that are gone when the interpreter shuts down
    return report


async def _check(
    model: str,
    cases: int,
    seed: int,
    concurrency: int,
    longest: int,
    kv_blocks: int | None,
    progress: Callable[[str, int], None],
) -> Report:
    llm = _engine(model, longest, kv_blocks)
    ops = ContextOps(llm)
    try:
        text = _text_tokens(llm)
        await _generate(llm, list(text[:50]), "first")
        free = await _free_blocks(ops)
        progress("streamed", 0)
        outcomes: list[_Outcome] = []
        for first in range(0, cases, concurrency):
            numbers = range(first, min(cases, first + concurrency))
            drawn = [_draw(number, random.Random(f"{seed}/{number}"), text, longest) for number in numbers]
            outcomes += await asyncio.gather(*[_stream(llm, ops, case) for case in drawn])
            progress("streamed", len(outcomes))
        leaked = free - await _free_blocks(ops)
        equal = 0
        for done, outcome in enumerate(outcomes, 1):
            equal += outcome.answer is None or outcome.answer == await _cold(llm, outcome.case)
            progress("compared", done)
        answered = [outcome for outcome in outcomes if outcome.answer is not None]
        return Report(
            cases=len(outcomes),
            equal=equal,
            leaked_blocks=leaked,
            aborted=len(outcomes) - len(answered),
            prompt_tokens=sum(len(outcome.case.final) for outcome in answered),
            reused_tokens=sum(outcome.cached for outcome in answered),
            model=model,
        )
    finally:
        llm.shutdown()
        # Kept alive by this frame, the client would be finalised when the modules it needs are gone.
        del llm, ops


def _engine(model: str, longest: int, kv_blocks: int | None) -> AsyncLLM:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    cpu = bool(current_platform.is_cpu())
    if cpu:
        os.environ.update(cpu_environment(os.environ))
    options: dict[str, Any] = {"dtype": "float32", "block_size": CPU_BLOCK_SIZE} if cpu else {}
    arguments = AsyncEngineArgs(
        model=model,
        scheduler_cls=ASYNC_SCHEDULER,
        max_model_len=longest + 256,
        max_num_batched_tokens=256,  # small steps: more of them in which something may go wrong
        max_num_seqs=8,
        enforce_eager=True,
        num_gpu_blocks_override=kv_blocks,
        disable_log_stats=True,
        **options,
    )
    return AsyncLLM.from_engine_args(arguments)


def _text_tokens(llm: AsyncLLM) -> list[int]:
    """Real text to cut contexts from: the language reference that every Python carries."""
    from pydoc_data.topics import topics

    tokenizer = llm.get_tokenizer()
    text = "\n".join(topics[name] for name in sorted(topics))[:200_000]
    return list(tokenizer.encode(text, add_special_tokens=False))


def _draw(number: int, rng: random.Random, text: Sequence[int], longest: int) -> _Case:
    """A stream of two to six versions: appends (two of three) and replacements from a random place on."""

    def piece(limit: int) -> list[int]:
        length = rng.randint(1, max(1, limit))
        start = rng.randrange(len(text) - length)
        return list(text[start : start + length])

    prompt = piece(longest // 3)
    versions = [tuple(prompt)]
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 1 / 3:
            prompt = prompt[: rng.randrange(len(prompt) + 1)]
        prompt = prompt + piece(max(1, min(longest // 4, longest - len(prompt) - 16)))
        versions.append(tuple(prompt[:longest]))
    how = rng.random()
    final = [*versions[-1], *piece(15)] if how < 0.7 else list(versions[-1] if how < 0.85 else versions[0])
    return _Case(
        number,
        tuple(versions),
        tuple(rng.choice((0.0, 0.0, rng.random() * 0.3)) for _ in versions),
        tuple(final),
        abort_after=rng.random() * 0.3 if rng.random() < 0.15 else None,
    )


async def _stream(llm: AsyncLLM, ops: ContextOps, case: _Case) -> _Outcome:
    from vllm import SamplingParams, TokensPrompt

    name = f"exactness-{case.number}"
    tasks = await llm.get_supported_tasks()
    template = llm.input_processor.process_inputs(
        name, TokensPrompt(prompt_token_ids=[1]), SamplingParams(max_tokens=1), supported_tasks=tasks
    )
    ack = await ops.open(name, 600.0, {}, [], list(case.versions[0]), template)
    for version, pause in zip(case.versions[1:], case.pauses[1:], strict=True):
        await asyncio.sleep(pause)
        ack = await ops.put(
            name,
            created_at=ack.created_at,
            base_version=ack.version,
            writes=1,
            keep=0,
            tail=list(version),
            pieces=[],
        )
    await asyncio.sleep(case.pauses[0])
    request = asyncio.create_task(_generate(llm, list(case.final), name, stream=name))
    if case.abort_after is None:
        answer, cached = await request
        return _Outcome(case, answer, cached)
    await asyncio.sleep(case.abort_after)
    request.cancel()  # vLLM aborts a request whose consumer goes away
    await asyncio.gather(request, return_exceptions=True)
    return _Outcome(case, None, 0)


async def _generate(llm: AsyncLLM, tokens: list[int], name: str, stream: str | None = None) -> tuple[list[int], int]:
    """A greedy answer, and how many prompt tokens were cached."""
    from vllm import SamplingParams, TokensPrompt

    params = SamplingParams(
        max_tokens=_ANSWER_TOKENS,
        temperature=0,
        ignore_eos=True,
        extra_args={"context_stream": stream} if stream else None,
    )
    outputs = [
        output async for output in llm.generate(TokensPrompt(prompt_token_ids=tokens), params, f"request-{name}")
    ]
    return list(outputs[-1].outputs[0].token_ids), outputs[-1].num_cached_tokens or 0


async def _cold(llm: AsyncLLM, case: _Case) -> list[int]:
    await llm.reset_prefix_cache()
    answer, cached = await _generate(llm, list(case.final), f"cold-{case.number}")
    if cached:
        raise RuntimeError(f"the prefix cache could not be reset: {cached} tokens of case {case.number} were cached")
    return answer


async def _free_blocks(ops: ContextOps) -> int:
    """The free KV blocks once nothing runs (aborted requests free theirs in the next step)."""
    figures: list[dict[str, Any]] = []
    for _ in range(50):
        figures = await ops.statistics()
        if not any(rank["streams"] for rank in figures):
            await asyncio.sleep(0.1)
            figures = await ops.statistics()
            break
        await asyncio.sleep(0.1)
    return sum(rank["free_blocks"] for rank in figures)
