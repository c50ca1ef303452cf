"""The engine that the commands of `stream2llm check` run: what a check does with streams, requests and KV blocks."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stream2llm.vllm.ops import Ack, ContextOps
from stream2llm.vllm.serve import ASYNC_SCHEDULER, CPU_BLOCK_SIZE, cpu_environment

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

# Longer than any check: a stream that is left alone goes on holding its blocks.
_TTL_SECONDS = 86_400.0
# Ops are answered between two steps, so an engine that computes has made one since an answer that long ago.
_SETTLING_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer, how many prompt tokens were found in the cache, and the seconds until its first token."""

    tokens: list[int]
    cached: int
    wait: float


def text_tokens(model: str) -> tuple[int, ...]:
    """Tokens of real text to cut contexts from: the language reference that every Python carries."""
    from pydoc_data.topics import topics

    from vllm.tokenizers import get_tokenizer

    text = "\n".join(topics[name] for name in sorted(topics))[:200_000]
    return tuple(get_tokenizer(model).encode(text, add_special_tokens=False))


class CheckEngine:
    """An engine in a process of its own, driven as the server drives it. `shutdown` ends it; it cannot be used again.

    Whoever ran it collects garbage afterwards, once no frame refers to it any more: the engine client's finaliser
    needs modules that are gone when the interpreter shuts down.
    """

    def __init__(self, model: str, *, max_tokens: int, **options: Any) -> None:
        """`max_tokens`: of a prompt and its answer. `options` are vLLM's engine arguments."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        cpu = bool(current_platform.is_cpu())
        if cpu:
            os.environ.update(cpu_environment(os.environ))
        arguments: dict[str, Any] = {
            **({"dtype": "float32", "block_size": CPU_BLOCK_SIZE} if cpu else {}),
            "scheduler_cls": ASYNC_SCHEDULER,
            "max_model_len": max_tokens,
            "max_num_batched_tokens": 256,  # small steps: more of them in which something may go wrong
            "enforce_eager": True,
            "disable_log_stats": True,
            **options,
        }
        self._llm: AsyncLLM = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))
        self._ops = ContextOps(self._llm)

    def shutdown(self) -> None:
        self._llm.shutdown()
        # Kept alive by a caller's frame, the client would be finalised when the modules it needs are gone.
        del self._llm, self._ops

    async def open(self, name: str, tokens: Sequence[int]) -> Ack:
        from vllm import SamplingParams, TokensPrompt

        tasks = await self._llm.get_supported_tasks()
        template = self._llm.input_processor.process_inputs(
            name, TokensPrompt(prompt_token_ids=[1]), SamplingParams(max_tokens=1), supported_tasks=tasks
        )
        return await self._ops.open(name, _TTL_SECONDS, {}, [], list(tokens), template)

    async def write(self, stream: Ack, tokens: Sequence[int]) -> Ack:
        """Make `tokens` the whole new prompt of the stream, whose last acknowledgement is given."""
        return await self._ops.put(
            stream.id,
            created_at=stream.created_at,
            base_version=stream.version,
            writes=1,
            keep=0,
            tail=list(tokens),
            pieces=[],
        )

    async def close(self, stream: Ack) -> None:
        await self._ops.close(stream.id)

    async def ask(self, tokens: Sequence[int], name: str, answer_tokens: int, *, stream: Ack | None = None) -> Answer:
        """Send a complete request, the final one of `stream` if given. Cancelled, the request is aborted."""
        from vllm import SamplingParams, TokensPrompt

        params = SamplingParams(
            max_tokens=answer_tokens,
            temperature=0,
            ignore_eos=True,
            extra_args={"context_stream": stream.id} if stream is not None else None,
        )
        prompt = TokensPrompt(prompt_token_ids=list(tokens))
        sent = time.monotonic()
        wait, last = 0.0, None
        async for output in self._llm.generate(prompt, params, f"request-{name}"):
            if last is None:
                wait = time.monotonic() - sent
            last = output
        assert last is not None
        return Answer(list(last.outputs[0].token_ids), last.num_cached_tokens or 0, wait)

    async def cold(self, tokens: Sequence[int], name: str, answer_tokens: int) -> list[int]:
        """The answer when nothing is cached and no stream is open: stock vLLM's path."""
        await self._llm.reset_prefix_cache(reset_connector=True)
        answer = await self.ask(tokens, f"cold-{name}", answer_tokens)
        if answer.cached:
            raise RuntimeError(f"the prefix cache could not be reset: {answer.cached} tokens of {name} were cached")
        return answer.tokens

    async def figures(self) -> dict[str, int]:
        """The engine's integer counters, summed over its ranks; see `streams.Statistics`."""
        ranks = await self._ops.statistics()
        names = [name for name, value in ranks[0].items() if isinstance(value, int)]
        return {name: sum(rank[name] for rank in ranks) for name in names}

    async def phases(self) -> dict[str, int]:
        """The open streams by phase, as the engine counts them."""
        ranks = await self._ops.statistics()
        return dict(sum((Counter(rank["streams"]) for rank in ranks), Counter()))

    async def settled(self) -> dict[str, int]:
        """`phases` once the engine computes nothing any more: everything is computed, or there is no memory."""
        computed = -1
        while True:
            phases, figures = await self.phases(), await self.figures()
            if figures["tokens_computed"] == computed and "prefilling" not in phases:
                return phases
            computed = figures["tokens_computed"]
            await asyncio.sleep(_SETTLING_SECONDS)

    async def free_blocks(self) -> int:
        """The free KV blocks once nothing runs (aborted requests free theirs in the next step)."""
        for _ in range(50):
            open_streams = await self.phases()
            await asyncio.sleep(0.1)
            if not open_streams:
                break
        return (await self.figures())["free_blocks"]
