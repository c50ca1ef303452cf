"""`stream2llm check exactness`: streams against cold runs of the same prompts, on the user's model and hardware.

Every case is a stream with random appends, replacements and pauses, some aborted on the way, several at once. The
answer to its final prompt must be, token by token, the one that the engine gives to that prompt when nothing is cached
and no stream is open, which is stock vLLM's path.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stream2llm.vllm.check_engine import CheckEngine, text_tokens

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
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Report:
    """Run the check on an engine of its own.

    `longest`: context tokens per case at most. `kv_blocks`: size of the KV cache in blocks, to see it under memory
    pressure. `progress` is told how many of all cases were streamed and compared.
    """
    report = asyncio.run(_check(model, cases, seed, concurrency, longest, kv_blocks, progress))
    gc.collect()
    return report


async def _check(
    model: str,
    cases: int,
    seed: int,
    concurrency: int,
    longest: int,
    kv_blocks: int | None,
    progress: Callable[[str, int, int], None],
) -> Report:
    text = text_tokens(model)
    engine = CheckEngine(model, max_tokens=longest + 256, max_num_seqs=8, num_gpu_blocks_override=kv_blocks)
    try:
        await engine.ask(text[:50], "first", _ANSWER_TOKENS)
        free = await engine.free_blocks()
        progress("streamed", 0, cases)
        outcomes: list[_Outcome] = []
        for first in range(0, cases, concurrency):
            numbers = range(first, min(cases, first + concurrency))
            drawn = [_draw(number, random.Random(f"{seed}/{number}"), text, longest) for number in numbers]
            outcomes += await asyncio.gather(*[_stream(engine, case) for case in drawn])
            progress("streamed", len(outcomes), cases)
        leaked = free - await engine.free_blocks()
        equal = 0
        for done, outcome in enumerate(outcomes, 1):
            equal += outcome.answer is None or outcome.answer == await _cold(engine, outcome.case)
            progress("compared", done, cases)
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
        engine.shutdown()


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


async def _stream(engine: CheckEngine, case: _Case) -> _Outcome:
    name = f"exactness-{case.number}"
    ack = await engine.open(name, case.versions[0])
    for version, pause in zip(case.versions[1:], case.pauses[1:], strict=True):
        await asyncio.sleep(pause)
        ack = await engine.write(ack, version)
    await asyncio.sleep(case.pauses[0])
    request = asyncio.create_task(engine.ask(case.final, name, _ANSWER_TOKENS, stream=ack))
    if case.abort_after is None:
        answer = await request
        return _Outcome(case, answer.tokens, answer.cached)
    await asyncio.sleep(case.abort_after)
    request.cancel()  # vLLM aborts a request whose consumer goes away
    await asyncio.gather(request, return_exceptions=True)
    return _Outcome(case, None, 0)


async def _cold(engine: CheckEngine, case: _Case) -> list[int]:
    return await engine.cold(case.final, f"case {case.number}", _ANSWER_TOKENS)
