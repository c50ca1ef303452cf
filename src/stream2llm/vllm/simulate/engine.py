"""An engine core without a model: a real scheduler, whose steps take what a cost profile says."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm import EngineArgs, SamplingParams
from vllm.config import KVTransferConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from stream2llm.clock import VirtualClock
from stream2llm.costs import CostProfile, Mode
from stream2llm.vllm.offload.copies import StepCopies
from stream2llm.vllm.options import Options
from stream2llm.vllm.scheduler import ContextScheduler
from stream2llm.workloads.machines import BLOCK, Machine
from stream2llm.workloads.playable import LONGEST_S

_TTL = 10 * LONGEST_S  # no stream expires
_SAMPLED = 7
# The scheduler sees token ids and block counts only, so the model's shape plays no part; its length limit does.
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Step:
    """One step: how long it took, in seconds, and the requests that generated their token at its end."""

    seconds: float
    tokens: int
    answered: tuple[str, ...]


class SimulatedEngine:
    """One engine. `policy` None: stock vLLM's own scheduler, which knows no streams.

    Synchronous scheduling, one token per answer, no data parallelism. `clock` is set forward by `step`.
    """

    def __init__(self, machine: Machine, policy: str | None, preemption: Mode, clock: VirtualClock) -> None:
        self.clock = clock
        self._profile = machine.profile
        config = _config(machine, policy, preemption)
        init_none_hash(_hash)
        self._hasher: Any = get_request_block_hasher(BLOCK, _hash)
        self.scheduler: Any = _scheduler(config, machine, policy, clock)
        self._template = EngineCoreRequest(
            "template", [1], None, SamplingParams(max_tokens=1), None, 0.0, None, None, None
        )
        self.tokens_computed = 0
        self.steps = 0

    def complete(self, request_id: str, prompt: list[int], stream: str | None = None) -> None:
        """A complete request with one token to generate; `stream`: the open stream that it finishes."""
        extra = {"context_stream": stream} if stream is not None else None
        self.scheduler.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, extra_args=extra),
                pooling_params=None,
                arrival_time=self.clock.time(),
                block_hasher=self._hasher,
            )
        )

    def open(self, stream: str, tokens: list[int]) -> None:
        self._start(self.scheduler.streams.open(stream, _TTL, {}, [], tokens, self._template, self._hasher))

    def put(self, stream: str, keep: int, tail: list[int]) -> None:
        """Write a version: the first `keep` tokens of the present one, then `tail`."""
        streams = self.scheduler.streams
        state = streams[stream].state
        self._start(streams.put(stream, state.created_at, state.version, 1, keep, tail, [], None, self._hasher))

    def _start(self, version: Request | None) -> None:
        if version is not None:
            self.scheduler.add_request(version)

    def computed_tokens(self, stream: str) -> int:
        """Tokens of an open stream whose KV is there."""
        return int(self.scheduler.streams[stream].computed)

    @property
    def invalidated_tokens(self) -> int:
        """Computed tokens that streams have lost to what replaced them, so far."""
        scheduler = self.scheduler
        return scheduler.streams.statistics.tokens_invalidated if isinstance(scheduler, ContextScheduler) else 0

    @property
    def has_work(self) -> bool:
        """As the engine core's loop asks before each step."""
        return bool(self.scheduler.has_requests())

    def step(self) -> Step:
        """Schedule, let the time pass that the step takes, and hand the scheduler its output."""
        output: SchedulerOutput = self.scheduler.schedule()
        seconds = self._seconds(output)
        self.clock.now += seconds
        self.tokens_computed += output.total_num_scheduled_tokens
        self.steps += output.total_num_scheduled_tokens > 0
        answers = self.scheduler.update_from_output(output, self._sampled(output))
        answered = tuple(
            answer.request_id for client in answers.values() for answer in client.outputs if answer.new_token_ids
        )
        return Step(seconds, output.total_num_scheduled_tokens, answered)

    def _seconds(self, output: SchedulerOutput) -> float:
        """The forward pass by the profile, and the copies of the host tier, which come before it."""
        requests = self.scheduler.requests
        chunks = [
            (new, requests[request_id].num_computed_tokens - new)
            for request_id, new in output.num_scheduled_tokens.items()
        ]
        seconds = self._profile.step_seconds(chunks)
        copies = output.kv_connector_metadata
        if isinstance(copies, StepCopies):
            seconds += self._profile.copy_out_seconds(len(copies.out) * BLOCK)
            seconds += self._profile.copy_in_seconds(len(copies.back) * BLOCK)
        return seconds

    def _sampled(self, output: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[id].is_prefill_chunk else [_SAMPLED] for id in ids]
        return ModelRunnerOutput(ids, {id: index for index, id in enumerate(ids)}, sampled)

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def figures(self) -> dict[str, Any]:
        """The scheduler's own statistics; of a stock one, what there is."""
        if isinstance(self.scheduler, ContextScheduler):
            return self.scheduler.context_figures()
        return {"tokens_computed": self.tokens_computed, "steps": self.steps}


def _hash(value: Any) -> bytes:
    """A cheap hash of a KV block: what is simulated is not an attack, and SHA-256 would be most of the time."""
    return hash(value).to_bytes(8, "little", signed=True)


def _config(machine: Machine, policy: str | None, preemption: Mode) -> VllmConfig:
    own = {"policy": policy, "preemption": preemption, "itl_factor": None, "correction": False}
    transfer = None
    host_blocks = machine.host_tokens // BLOCK
    if policy is not None and host_blocks:
        transfer = KVTransferConfig(
            kv_connector="HostTierConnector",
            kv_connector_module_path="stream2llm.vllm.offload.connector",
            kv_role="kv_both",
            kv_connector_extra_config={"host_blocks": host_blocks},
        )
    with _model_folder(machine.longest) as folder, _quiet():
        config = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            max_model_len=machine.longest,
            max_num_seqs=min(machine.sequences, machine.step_tokens),  # as vLLM requires
            max_num_batched_tokens=machine.step_tokens,
            block_size=BLOCK,
            enforce_eager=True,
            kv_transfer_config=transfer,
            additional_config={"stream2llm": own} if policy is not None else {},
        ).create_engine_config()
    config.cache_config.num_gpu_blocks = machine.kv_tokens // BLOCK
    return config


def _scheduler(config: VllmConfig, machine: Machine, policy: str | None, clock: VirtualClock) -> Scheduler:
    """As the engine core makes it, for a model with one group of KV cache layers."""
    blocks = config.cache_config.num_gpu_blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=config.model_config.dtype)
    group = KVCacheGroupSpec(["layer"], spec)

    class Simulated(ContextScheduler):
        def _profile(self, options: Options) -> CostProfile:
            return machine.profile

    Simulated.clock = clock
    with _quiet():
        return (Scheduler if policy is None else Simulated)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [group]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=False,
        )


@contextmanager
def _model_folder(longest: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**_MODEL, "max_position_embeddings": longest}))
        yield folder


@contextmanager
def _quiet() -> Iterator[None]:
    """vLLM reports how it would serve the model; there is none."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
