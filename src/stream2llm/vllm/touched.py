"""The table of vLLM symbols that this package touches, and why; `compat` checks it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Touched:
    """A symbol: `module:Class.method`, `module:function`, `module:NAME`, or `module:Class.attribute`.

    `parameters` are those that we pass or override, which must still exist; `use` is why we touch it.
    """

    name: str
    use: str
    parameters: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    @property
    def path(self) -> list[str]:
        return self.name.partition(":")[2].split(".")


_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_REQUEST = "vllm.v1.request:Request"

TOUCHED: tuple[Touched, ...] = (
    # vllm/scheduler.py: overridden
    Touched(f"{_SCHEDULER}.__init__", "subclassed to add the stream table"),
    Touched(f"{_SCHEDULER}.schedule", "runs on queues that hold only the plan", ("throttle_prefills",)),
    Touched(f"{_SCHEDULER}.add_request", "a final request names its stream in extra_args", ("request",)),
    Touched(
        f"{_SCHEDULER}.update_from_output",
        "a step has ended: its time is noted",
        ("scheduler_output", "model_runner_output"),
    ),
    Touched(f"{_SCHEDULER}._enqueue_waiting_request", "a version's request is parked instead", ("request",)),
    Touched(
        f"{_SCHEDULER}._preempt_request",
        "a preempted version is parked; phase 2 preempts versions",
        ("request", "timestamp", "drop_stale_output"),
    ),
    Touched(
        f"{_SCHEDULER}._update_request_with_output",
        "a version ends when its prefill is done",
        ("request", "new_token_ids", "is_stale"),
    ),
    Touched(f"{_SCHEDULER}._free_blocks", "a version leaves its blocks to its stream", ("request",)),
    Touched(f"{_SCHEDULER}.reset_prefix_cache", "pins are let go first", ("reset_running_requests", "reset_connector")),
    Touched(f"{_SCHEDULER}.set_pause_state", "parked versions may run when it ends", ("pause_state",)),
    Touched(f"{_REQUEST}.skip_reading_prefix_cache", "such a final request cannot use its stream's blocks"),
    Touched(f"{_SCHEDULER}.get_num_unfinished_requests", "parked versions count only while they may run"),
    Touched(f"{_SCHEDULER}.has_finished_requests", "parked versions are not finished"),
    # vllm/scheduler.py: called or read
    Touched(f"{_SCHEDULER}.finish_requests", "retires a version", ("request_ids", "finished_status")),
    Touched(f"{_SCHEDULER}.get_request_counts", "tells finished requests from queued ones"),
    Touched(
        f"{_SCHEDULER}._handle_blocked_waiting_request", "a request whose grammar is ready is planned", ("request",)
    ),
    Touched(f"{_SCHEDULER}._request_blocks_can_be_freed", "whether evicting gives blocks back at once", ("request",)),
    *(
        Touched(f"{_SCHEDULER}.{attribute}", "read for the snapshot, or set while stock schedule() runs")
        for attribute in (
            "running",
            "waiting",
            "kv_holding_waiting",
            "deferred_waiting",
            "requests",
            "finished_req_ids",
            "max_num_running_reqs",
            "max_num_active_reqs",
            "max_num_scheduled_tokens",
            "max_model_len",
            "num_waiting_for_streaming_input",
            "num_lookahead_tokens",
            "num_spec_tokens",
            "block_size",
            "hash_block_size",
            "kv_cache_manager",
            "cache_config",
            "connector",
            "_pause_state",
            "_inflight_prefills",
            "lora_config",
            "grammar_compile_error_reqs",
            "scheduler_config",
            "adaptive_long_prefill_threshold",
        )
    ),
    Touched("vllm.v1.core.sched.async_scheduler:AsyncScheduler", "subclassed, behind the mixin"),
    Touched("vllm.v1.core.sched.interface:PauseState.UNPAUSED", "nothing is admitted while paused"),
    Touched("vllm.v1.core.sched.output:SchedulerOutput.num_scheduled_tokens", "which requests now hold their blocks"),
    Touched("vllm.v1.core.sched.output:SchedulerOutput.total_num_scheduled_tokens", "statistics"),
    Touched("vllm.v1.core.sched.output:SchedulerOutput.scheduled_new_reqs", "who was admitted"),
    Touched("vllm.v1.core.sched.output:CachedRequestData.resumed_req_ids", "who was admitted again"),
    *(
        Touched(f"vllm.v1.core.sched.request_queue:RequestQueue.{method}", "our queue keeps the policy's order")
        for method in (
            "add_request",
            "pop_request",
            "peek_request",
            "prepend_request",
            "prepend_requests",
            "remove_request",
            "remove_requests",
        )
    ),
    Touched("vllm.v1.core.sched.request_queue:FCFSRequestQueue", "shows stock schedule() the planned requests"),
    # vllm/pins.py, vllm/streams.py, vllm/scheduler.py: KV blocks
    Touched(f"{_MANAGER}.get_blocks", "the blocks a version leaves", ("request_id",)),
    Touched(f"{_MANAGER}.get_computed_blocks", "what a waiting request finds in the cache", ("request",)),
    *(
        Touched(f"{_MANAGER}.{attribute}", "read for pins and for the snapshot")
        for attribute in (
            "coordinator",
            "block_pool",
            "num_kv_cache_groups",
            "watermark_blocks",
            "empty_kv_cache_blocks",
        )
    ),
    Touched(
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.get_num_blocks_to_allocate",
        "the blocks a request still needs, counted as stock admission does",
        (
            "request_id",
            "num_tokens",
            "new_computed_blocks",
            "num_encoder_tokens",
            "total_computed_tokens",
            "num_local_computed_tokens",
            "num_tokens_main_model",
            "apply_admission_cap",
            "prefill_end",
        ),
    ),
    Touched("vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.single_type_managers", "block size of each group"),
    Touched(
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.req_to_blocks",
        "whether a decode needs another block",
    ),
    Touched("vllm.v1.core.block_pool:BlockPool.touch", "takes a reference to a pinned block", ("blocks",)),
    Touched("vllm.v1.core.block_pool:BlockPool.free_blocks", "gives it back", ("ordered_blocks",)),
    Touched("vllm.v1.core.block_pool:BlockPool.get_num_free_blocks", "the step's block budget"),
    Touched("vllm.v1.core.block_pool:BlockPool.num_gpu_blocks", "size of the pool"),
    Touched("vllm.v1.core.kv_cache_utils:KVCacheBlock.ref_cnt", "whether a stream alone holds a block"),
    Touched("vllm.v1.core.kv_cache_utils:KVCacheBlock.block_hash", "only blocks with a hash can be found again"),
    Touched("vllm.v1.core.kv_cache_utils:KVCacheBlock.is_null", "placeholders are not pinned"),
    Touched("vllm.v1.core.kv_cache_utils:get_request_block_hasher", "continues from the hashes that are there"),
    # vllm/streams.py: a version's request
    Touched(
        f"{_REQUEST}.__init__",
        "a version is an ordinary request",
        (
            "request_id",
            "prompt_token_ids",
            "sampling_params",
            "pooling_params",
            "arrival_time",
            "lora_request",
            "cache_salt",
            "priority",
            "block_hasher",
        ),
    ),
    Touched(f"{_REQUEST}.update_block_hashes", "hashes the new blocks"),
    *(
        Touched(f"{_REQUEST}.{attribute}", "read for the snapshot, or set on a version")
        for attribute in (
            "block_hashes",
            "_block_hasher",
            "status",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_tokens",
            "num_tokens_with_spec",
            "num_prompt_tokens",
            "num_preemptions",
            "num_stale_output_tokens",
            "drop_stale_output",
            "lora_request",
            "arrival_time",
            "priority",
        )
    ),
    Touched("vllm.v1.request:RequestStatus.FINISHED_STOPPED", "how a version ends"),
    Touched("vllm.v1.request:RequestStatus.FINISHED_ABORTED", "how a version is superseded"),
    Touched("vllm.v1.request:RequestStatus.PREEMPTED", "what may be admitted"),
    # vllm/plugin.py, vllm/routing.py, vllm/ops.py: the op channel
    Touched("vllm.v1.engine:EngineCoreRequest", "template of a stream's versions"),
    Touched("vllm.v1.engine.core:EngineCore.add_request", "hands a version to the scheduler", ("request_wave",)),
    Touched("vllm.v1.engine.core:EngineCore.request_block_hasher", "hashes blocks as for every request"),
    Touched("vllm.v1.engine.core:EngineCore.scheduler", "holds the stream table"),
    Touched("vllm.v1.engine.core:EngineCoreProc._convert_msgspec_args", "turns the template back into a struct"),
    Touched("vllm.v1.engine.core_client:AsyncMPClient._call_utility_async", "calls an op", ("method", "engine")),
    Touched("vllm.v1.engine.core_client:AsyncMPClient.call_utility_all_async", "calls an op on all ranks", ("method",)),
    Touched("vllm.v1.engine.core_client:MPClient.core_engines", "the data-parallel ranks, in order"),
    Touched(
        "vllm.v1.engine.core_client:DPLBAsyncMPClient.get_core_engine_for_request",
        "wrapped: a final request goes to its stream's rank",
        ("request",),
    ),
    # vllm/endpoints: content to tokens, the final request, errors
    Touched(
        "vllm.entrypoints.openai.completion.api_router:create_completion", "answers the final request", ("request",)
    ),
    Touched(
        "vllm.entrypoints.openai.chat_completion.api_router:create_chat_completion",
        "answers the final request",
        ("request", "raw_request"),
    ),
    Touched(
        "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest.build_chat_params",
        "renders messages as the chat endpoint does",
    ),
    Touched(
        "vllm.entrypoints.serve.engine.serving:BaseServing._check_model", "an unknown model is a 404", ("request",)
    ),
    Touched(
        "vllm.entrypoints.serve.engine.serving:BaseServing._maybe_get_adapters", "LoRA adapter by name", ("request",)
    ),
    *(
        Touched(f"vllm.renderers.online_renderer:OnlineRenderer.{attribute}", "renders as the chat endpoint does")
        for attribute in (
            "renderer",
            "model_config",
            "chat_template",
            "chat_template_content_format",
            "default_chat_template_kwargs",
            "use_harmony",
            "trust_request_chat_template",
            "validate_chat_template",
            "render_chat",
        )
    ),
    Touched(
        "vllm.renderers.base:BaseRenderer.render_messages_async", "applies the chat template", ("messages", "params")
    ),
    Touched("vllm.renderers.base:BaseRenderer.validate_token_ids", "an unknown token id is a 400", ("parameter",)),
    Touched("vllm.renderers.base:BaseRenderer.tokenizer", "tokenises text"),
    Touched("vllm.renderers.params:ChatParams.with_defaults", "the server's template options"),
    Touched("vllm.v1.engine.input_processor:InputProcessor.process_inputs", "builds and checks a stream's template"),
    Touched("vllm.v1.engine.async_llm:AsyncLLM.check_admission", "no new stream while the server is too busy"),
    Touched("vllm.plugins.endpoint_plugins.interface:EndpointPlugin", "the plug-in's protocol"),
    Touched("vllm.entrypoints.launchers.api_server.app_state:init_app_state", "sets online_renderer and the servings"),
    # vllm/serve.py
    Touched("vllm.entrypoints.cli.serve:ServeSubcommand.cmd", "starts the server", ("args",)),
    Touched("vllm.entrypoints.cli.serve:ServeSubcommand.validate", "vLLM's own checks of options", ("args",)),
    Touched("vllm.entrypoints.cli.serve:make_arg_parser", "vLLM's options"),
    Touched("vllm.logger:configure_logging_from_args", "as vLLM's command does"),
    # vllm/streaming_input.py: the arm `input` of a replay
    Touched("vllm.v1.engine.async_llm:AsyncLLM.generate", "takes a prompt as it grows", ("prompt", "sampling_params")),
    Touched("vllm.engine.protocol:StreamingInput", "a piece of such a prompt"),
    # vllm/offload: the host tier, a KV connector
    *(
        Touched(f"vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1.{hook}", "the host tier is one")
        for hook in (
            "get_num_new_matched_tokens",
            "update_state_after_alloc",
            "build_connector_meta",
            "request_finished",
            "register_kv_caches",
            "handle_preemptions",
            "start_load_kv",
            "requires_kv_delivery",
            "reset_cache",
        )
    ),
    Touched(f"{_REQUEST}.block_hashes", "what a request could find on the host"),
    Touched("vllm.v1.kv_cache_interface:KVCacheConfig.kv_cache_groups", "one group is served"),
    Touched("vllm.v1.kv_cache_interface:KVCacheConfig.kv_cache_tensors", "where a block's bytes lie"),
    Touched("vllm.v1.kv_cache_interface:KVCacheConfig.num_blocks", "where a block's bytes lie"),
    # vllm/profiling.py, vllm/subject.py: the cost model
    *(
        Touched(f"vllm.v1.engine.llm_engine:LLMEngine.{method}", "runs the engine that is profiled")
        for method in ("from_engine_args", "add_request", "step", "collective_rpc")
    ),
    Touched("vllm.v1.metrics.stats:RequestStateStats.scheduled_ts", "time of a prefill"),
    Touched("vllm.v1.metrics.stats:RequestStateStats.first_token_ts", "time of a prefill"),
    Touched("vllm.v1.worker.gpu_model_runner:GPUModelRunner.kv_caches", "the blocks whose copies are timed"),
    Touched("vllm.config.model:ModelConfig.model_arch_config", "shape of the model, for estimates"),
    Touched("vllm.config.model:ModelConfig.hf_text_config", "shape of the model, for estimates"),
)
