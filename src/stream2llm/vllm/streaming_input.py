"""vLLM's own way to stream a prompt, in this process: `StreamingInput`, the arm `input` of a replay.

What it cannot do: replace what was sent, give way under memory pressure (an open request keeps its KV blocks and its
sequence slot between two pieces), or be reached over HTTP. It has each piece sampled from once, and tokenises texts
piece by piece. Here it saves the HTTP round trips that the other arms have.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from stream2llm.workloads.replay.content import Content, Contents, Vocabulary
from stream2llm.workloads.replay.plan import Due, WorkloadError
from stream2llm.workloads.replay.recorder import Notes

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.engine.protocol import StreamingInput
    from vllm.v1.engine.async_llm import AsyncLLM


class InputEngine:
    """A stock engine in a process of its own, driven from this one. `shutdown` ends it.

    `options`: vLLM's engine options, as on the command line. Raises `SystemExit` (2) for one that vLLM does not know.
    """

    def __init__(
        self, model: str, options: Sequence[str] = (), max_tokens: int = 1, vocabulary: Vocabulary | None = None
    ) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self.failures: tuple[type[Exception], ...] = (ValueError, EngineDeadError, EngineGenerateError)
        self._llm: AsyncLLM = AsyncLLM.from_engine_args(_arguments(model, options))
        self._max_tokens = max_tokens
        self._vocabulary = vocabulary or Vocabulary()

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its answer."""
        return int(self._llm.vllm_config.model_config.max_model_len)

    def shutdown(self) -> None:
        self._llm.shutdown()
        del self._llm  # kept alive by a caller's frame, it would be finalised when the modules it needs are gone

    async def seconds(self, tokens: int) -> float:
        """From handing a fresh prompt of so many tokens to the engine to its first token."""
        from vllm import TokensPrompt

        ids = range(self._vocabulary.first, self._vocabulary.last + 1)
        prompt = TokensPrompt(prompt_token_ids=random.choices(ids, k=tokens))
        start = time.perf_counter()
        async for _ in self._llm.generate(prompt, self._params(1), f"probe-{secrets.token_hex(8)}"):
            pass
        return time.perf_counter() - start

    @asynccontextmanager
    async def delivery(self, contents: Contents, notes: Notes) -> AsyncIterator[_Delivery]:
        """For one query. Raises `WorkloadError` where it replaces its context."""
        delivery = _Delivery(self, contents, notes)
        try:
            yield delivery
        finally:
            await delivery.give_up()

    def input(self, content: Content, *, max_tokens: int | None, first: bool) -> StreamingInput | None:
        """A piece as vLLM wants it; None for one without tokens, which it would refuse."""
        from vllm import TokensPrompt
        from vllm.engine.protocol import StreamingInput

        ids = (
            self._llm.get_tokenizer().encode(content, add_special_tokens=first) if isinstance(content, str) else content
        )
        if not ids:
            return None
        return StreamingInput(TokensPrompt(prompt_token_ids=list(ids)), self._params(max_tokens or self._max_tokens))

    def generate(self, inputs: AsyncGenerator[StreamingInput, None]) -> AsyncGenerator[Any, None]:
        return self._llm.generate(inputs, self._params(1), f"query-{secrets.token_hex(8)}")

    @staticmethod
    def _params(max_tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        # Every piece is sampled from, since a request that is to go on must end its turn; the token is discarded.
        return SamplingParams(
            max_tokens=max_tokens, temperature=0, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )


def _arguments(model: str, options: Sequence[str]) -> AsyncEngineArgs:
    """vLLM's engine options with the defaults of `stream2llm serve`, and its own scheduler; sets the environment."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from stream2llm.vllm.serve import compilation, cpu_environment, defaults

    cpu = bool(current_platform.is_cpu())
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="stream2llm replay --arm input"))
    parsed = parser.parse_args(["--model", model, *options, *(compilation(options) if cpu else [])])
    if cpu:
        os.environ.update(cpu_environment(os.environ, parsed.tensor_parallel_size * parsed.pipeline_parallel_size))
    for name, value in defaults(parsed, cpu).items():
        if name != "scheduler_cls":
            setattr(parsed, name, value)
    parsed.disable_log_stats = True
    return AsyncEngineArgs.from_cli_args(parsed)


class _Delivery:
    """One query as a resumable request: an input for each operation, and a turn of one token for each input."""

    def __init__(self, engine: InputEngine, contents: Contents, notes: Notes) -> None:
        self._engine = engine
        self._contents = contents
        self._notes = notes
        self._inputs: asyncio.Queue[StreamingInput | None] = asyncio.Queue()
        self._turns: list[int | None] = []  # the operation of each turn but the last
        self._last_given = False
        self._reading: asyncio.Task[int] | None = None
        self._first: Callable[[], None] = lambda: None

    def open(self) -> None:
        if self._contents.opening:
            self._give(self._contents.opening, None)

    def hand_over(self, due: Due) -> None:
        self._notes.sent(due.number, due.tokens)
        self._give(self._contents.of(self._appended(due)), due.number)

    async def answer(self, due: Due, first: Callable[[], None]) -> int:
        self._first = first
        last = self._engine.input(self._contents.rest(self._appended(due)), max_tokens=None, first=not self._turns)
        if last is None:
            raise WorkloadError(
                "the last operation and the question have no tokens, which vLLM's StreamingInput refuses"
            )
        self._last_given = True
        self._put(last)
        self._inputs.put_nowait(None)
        assert self._reading is not None
        return await self._reading

    async def give_up(self) -> None:
        """Abort the request, unless it has ended."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    @staticmethod
    def _appended(due: Due) -> tuple[str, ...]:
        if due.added is None:
            raise WorkloadError("the context is replaced, and vLLM's StreamingInput can only append to it")
        return due.added

    def _give(self, content: Content, operation: int | None) -> None:
        piece = self._engine.input(content, max_tokens=1, first=not self._turns)
        if piece is not None:
            self._turns.append(operation)
            self._put(piece)

    def _put(self, piece: StreamingInput) -> None:
        self._inputs.put_nowait(piece)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> int:
        """Reads all turns; returns the tokens of the last one."""
        seen = 0
        async for output in self._engine.generate(self._given()):
            for _ in output.outputs[0].token_ids:
                if seen < len(self._turns):
                    if (operation := self._turns[seen]) is not None:
                        self._notes.acked(operation)
                elif seen == len(self._turns) and self._last_given:
                    self._first()
                seen += 1
        return seen - len(self._turns)

    async def _given(self) -> AsyncGenerator[StreamingInput, None]:
        while (piece := await self._inputs.get()) is not None:
            yield piece
