"""The real CPU engine in this process, stepped by hand, so that a test decides between which steps an op arrives."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 4
STEP_TOKENS = 128
BLOCK = 32

_serial = itertools.count()
_VOCABULARY = range(10, 49000)


def tokens(rng: random.Random, count: int) -> list[int]:
    """Random token ids, special ones left out."""
    return rng.choices(_VOCABULARY, k=count)


class Engine:
    """`LLMEngine` with context streams. Answers are greedy token ids."""

    def __init__(self, model: str, *, asynchronous: bool, blocks: int, **options: Any) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        name = "AsyncContextScheduler" if asynchronous else "ContextScheduler"
        arguments = {
            "dtype": "float32",
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": STEP_TOKENS,
            "block_size": BLOCK,
            "num_gpu_blocks_override": blocks,
            "enforce_eager": True,
            "scheduler_cls": f"stream2llm.vllm.scheduler.{name}",
            **options,
        }
        config = EngineArgs(model=model, **arguments).create_engine_config()
        # vLLM turns asynchronous scheduling off on the CPU, where it gains nothing. Its logic works there all the same:
        # a step is scheduled before the output of the one before is known.
        config.scheduler_config.async_scheduling = asynchronous
        self.engine = LLMEngine(
            vllm_config=config, executor_class=Executor.get_class(config), log_stats=False, multiprocess_mode=False
        )
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.outputs: dict[str, Any] = {}

    def template(self, lora: Any = None, **fields: Any) -> Any:
        from vllm import SamplingParams, TokensPrompt

        prompt = TokensPrompt(prompt_token_ids=[1], **fields)
        return self.engine.input_processor.process_inputs(
            "template", prompt, SamplingParams(max_tokens=1, temperature=0), ("generate",), lora_request=lora
        )

    def open(self, stream: str, tokens: Sequence[int] = (), ttl: float = 600.0, lora: Any = None) -> dict[str, Any]:
        return self.core.context_open(stream, ttl, {"kind": "token_ids"}, [], list(tokens), self.template(lora))

    def put(self, stream: str, tokens: Sequence[int], base: int | None = None, keep: int = 0) -> dict[str, Any]:
        """Write `tokens` as the whole new prompt; the first `keep` of them are sent by reference."""
        status = self.core.context_status(stream)
        version = status.get("version", 0) if base is None else base
        created_at = status.get("created_at", 0.0)
        return self.core.context_put(stream, created_at, version, 1, keep, list(tokens[keep:]), [], None)

    def close(self, stream: str) -> dict[str, Any]:
        return self.core.context_close(stream)

    def status(self, stream: str) -> dict[str, Any]:
        return self.core.context_status(stream)

    @property
    def figures(self) -> dict[str, Any]:
        return self.core.context_statistics()

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def ask(
        self, tokens: Sequence[int], stream: str | None = None, max_tokens: int = 8, lora: Any = None, **params: Any
    ) -> str:
        """Send a request, the final one of `stream` if given; its id."""
        from vllm import SamplingParams, TokensPrompt

        request_id = f"request-{next(_serial)}"
        extra = {"context_stream": stream} if stream is not None else None
        greedy = {"temperature": 0, "ignore_eos": True, **params}
        sampling = SamplingParams(max_tokens=max_tokens, extra_args=extra, **greedy)
        self.engine.add_request(request_id, TokensPrompt(prompt_token_ids=list(tokens)), sampling, lora_request=lora)
        return request_id

    def abort(self, request_id: str) -> None:
        self.engine.abort_request([request_id])

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if self.core.scheduler.has_requests() or self.core.batch_queue:
                for output in self.engine.step():
                    self.outputs[output.request_id] = output

    def run(self, limit: int = 2000) -> None:
        """Step until the engine would sleep."""
        for _ in range(limit):
            if not (self.core.scheduler.has_requests() or self.core.batch_queue):
                return
            self.step()
            if self._grammars_are_compiled:
                time.sleep(0.002)
        raise AssertionError(f"the engine is still busy after {limit} steps: {self.figures}")

    @property
    def _grammars_are_compiled(self) -> bool:
        """Whether a request waits for a thread that compiles its grammar: steps do nothing for it."""
        from vllm.v1.request import RequestStatus

        waiting = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        return any(request.status == waiting for request in self.scheduler.requests.values())

    def answer(self, request_id: str) -> list[int]:
        output = self.outputs[request_id]
        assert output.finished
        return list(output.outputs[0].token_ids)

    def cached(self, request_id: str) -> int:
        """Prompt tokens of a finished request that were found in the cache."""
        return int(self.outputs[request_id].num_cached_tokens)

    def cold(self, tokens: Sequence[int], max_tokens: int = 8, **params: Any) -> list[int]:
        """The answer of the engine with nothing cached, every stream being gone."""
        self.run()
        assert self.scheduler.reset_prefix_cache(reset_connector=True)
        request_id = self.ask(tokens, max_tokens=max_tokens, **params)
        self.run()
        return self.answer(request_id)

    def settle(self) -> None:
        """Close every stream and finish every request, so that the next test finds an empty engine."""
        for stream in self.core.context_list():
            self.close(stream["id"])
        self.abort_all()
        self.run()
        self.outputs.clear()
        assert self.scheduler.reset_prefix_cache(reset_connector=True)

    def abort_all(self) -> None:
        requests = [request.request_id for request in self.scheduler.requests.values()]
        self.engine.abort_request(requests, internal=True)


@contextmanager
def running_engine(model: str, **options: Any) -> Any:
    """An `Engine`, and nothing of it left behind."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with _unloaded("llvmlite"):
        engine = Engine(model, **options)
    try:
        yield engine
    finally:
        engine.core.shutdown()
        # Collected late, it would shut down once more and take its successor's process groups with it.
        engine.engine.engine_core._finalizer.detach()
        del engine
        gc.collect()
        cleanup_dist_env_and_memory()
        os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)


@contextmanager
def left_empty(engine: Engine, free_blocks: int) -> Iterator[None]:
    """An empty engine; whatever is done to it, every KV block must be free again once its streams are closed."""
    assert engine.free_blocks == free_blocks
    yield
    engine.settle()
    assert engine.free_blocks == free_blocks, "KV blocks leaked"


@contextmanager
def _unloaded(package: str) -> Iterator[None]:
    """The package as if it were not loaded.

    vLLM scans every loaded module for kernels when it makes a model runner, and fails on llvmlite's library objects,
    which have whatever attribute they are asked for. N-gram speculation loads them.
    """
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == package}
    try:
        yield
    finally:
        sys.modules.update(hidden)
