"""`stream2llm serve`: vLLM's own server with the plug-in switched on and defaults that suit the machine.

Started from Python through vLLM's `serve` subcommand, so every option of vLLM's works, several API-server processes and
data parallelism included; the CPU wheel's `vllm` console command does not start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from stream2llm.costs import Mode
from stream2llm.policy import policy
from stream2llm.vllm.options import KEY, Options

PLUGIN = "stream2llm"
ASYNC_SCHEDULER = "stream2llm.vllm.scheduler.AsyncContextScheduler"
SYNC_SCHEDULER = "stream2llm.vllm.scheduler.ContextScheduler"
# vLLM's default of 128 on the CPU would leave up to 127 tokens to be computed again per version.
CPU_BLOCK_SIZE = 32
# A complete request waits for the step under way: on the CPU, vLLM's default of 2048 tokens or more takes seconds.
CPU_STEP_TOKENS = 512


class ServeRefusedError(Exception):
    """A combination of options that context streams cannot work with."""


def serve(
    model: str, options: Sequence[str], *, host_gib: float | None = None, scheduling: Mapping[str, Any] | None = None
) -> None:
    """Run the server until it is interrupted.

    `options` are vLLM's own. `host_gib`: the host tier's size (docs/swap.md). `scheduling`: the plug-in's own options
    (`stream2llm.vllm.options.Options`). Raises `ServeRefusedError` for a combination that cannot work, `SystemExit` (2)
    for an option that vLLM does not know.
    """
    cpu = _is_cpu()
    os.environ.update(process_environment(os.environ, _general_plugins()))
    arguments = parse(["--model", model, *options, *tier_options(options, host_gib)], cpu)
    if scheduling:
        arguments.additional_config = with_scheduling(arguments.additional_config, scheduling, arguments)
    if cpu:
        os.environ.update(cpu_environment(os.environ, ranks=_ranks(arguments)))
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.logger import configure_logging_from_args

    configure_logging_from_args(arguments)
    subcommand = ServeSubcommand()
    subcommand.validate(arguments)
    # vLLM handles SIGINT and SIGTERM itself and lets this through once the engine has been shut down.
    try:
        subcommand.cmd(arguments)
    except KeyboardInterrupt:
        sys.exit(130)


def parse(arguments: Sequence[str], cpu: bool) -> argparse.Namespace:
    """vLLM's arguments with our defaults where the user gave none; raises `ServeRefusedError`."""
    from vllm.entrypoints.cli.serve import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="stream2llm serve"))
    parsed = parser.parse_args([*arguments, *(compilation(arguments) if cpu else [])])
    for name, value in defaults(parsed, cpu).items():
        setattr(parsed, name, value)
    check(parsed, os.environ)
    return parsed


def compilation(arguments: Sequence[str]) -> list[str]:
    """No compilation on the CPU unless an option speaks of it: it takes minutes at a start and gains little. Pure."""
    about = ("--enforce-eager", "--no-enforce-eager", "--compilation-config", "-cc", "-O", "--optimization-level")
    return [] if any(argument.startswith(about) for argument in arguments) else ["--enforce-eager"]


def defaults(parsed: argparse.Namespace, cpu: bool) -> dict[str, Any]:
    """The options to set: the scheduler always, others only where the user left vLLM's default. Pure."""
    chosen: dict[str, Any] = {}
    if parsed.scheduler_cls is None:
        chosen["scheduler_cls"] = SYNC_SCHEDULER if parsed.async_scheduling is False else ASYNC_SCHEDULER
    if cpu:
        if parsed.block_size is None:
            chosen["block_size"] = CPU_BLOCK_SIZE
        if parsed.dtype == "auto":
            chosen["dtype"] = "float32"  # bfloat16 without AMX or AVX512-BF16 is 8 times slower
        if parsed.max_num_batched_tokens is None:
            chosen["max_num_batched_tokens"] = CPU_STEP_TOKENS
    return chosen


def tier_options(options: Sequence[str], host_gib: float | None) -> list[str]:
    """vLLM's options for a host tier of that size. Pure; raises `ServeRefusedError`."""
    if host_gib is None:
        return []
    if any(option.startswith("--kv-transfer-config") for option in options):
        raise ServeRefusedError(
            "--host-gib beside --kv-transfer-config: vLLM has one place for a connector; name both there, as children "
            "of its MultiConnector (docs/swap.md)"
        )
    return ["--kv-transfer-config", json.dumps(host_tier_connector(host_gib=host_gib))]


def host_tier_connector(**size: float) -> dict[str, Any]:
    """vLLM's KV-transfer configuration for a host tier; `size` is its `host_gib` or its `host_blocks`. Pure."""
    return {
        "kv_connector": "HostTierConnector",
        "kv_connector_module_path": "stream2llm.vllm.offload",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": size,
    }


def with_scheduling(
    additional_config: Any, scheduling: Mapping[str, Any], parsed: argparse.Namespace
) -> dict[str, Any]:
    """The additional config with the plug-in's options in it. Pure; raises `ServeRefusedError`."""
    config = dict(additional_config) if isinstance(additional_config, dict) else {}
    ours = {**config.get(KEY, {}), **scheduling}
    try:
        options = Options.parsed(ours)
        policy(options.policy)
    except ValueError as error:
        raise ServeRefusedError(str(error)) from error
    if options.preemption is Mode.SWAP and parsed.kv_transfer_config is None:
        raise ServeRefusedError("--preemption swap: there is nowhere to swap to; give --host-gib too")
    return {**config, KEY: ours}


def check(parsed: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Refuse, before anything is loaded, what cannot work. Pure; raises `ServeRefusedError`."""
    if parsed.enable_prefix_caching is False:
        raise ServeRefusedError(
            "--no-enable-prefix-caching: context streams reuse KV blocks through the prefix cache; leave it on"
        )
    if not str(parsed.scheduler_cls).startswith("stream2llm."):
        raise ServeRefusedError(
            f"--scheduler-cls {parsed.scheduler_cls}: context streams need their own scheduler; leave the option out, "
            f"or derive your class from {ASYNC_SCHEDULER} and start it through vLLM's own command"
        )
    if environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0") or getattr(parsed, "grpc", False):
        raise ServeRefusedError("the Rust and gRPC front ends load no endpoint plug-ins; use vLLM's Python API server")
    if parsed.runner == "pooling":
        raise ServeRefusedError("--runner pooling: context streams need a model that generates")


def process_environment(environ: Mapping[str, str], general_plugins: Sequence[str]) -> dict[str, str]:
    """The environment variables to set for every vLLM process. Pure.

    `VLLM_PLUGINS` is an allow-list over all plug-in groups; endpoint plug-ins load only when it names them. Where the
    user set it we add ourselves; where not, every installed general plug-in goes on loading as it would have.
    """
    listed = environ.get("VLLM_PLUGINS")
    allowed = general_plugins if listed is None else [name for name in listed.split(",") if name]
    chosen = {"VLLM_PLUGINS": ",".join(dict.fromkeys([*allowed, PLUGIN]))}
    if "VLLM_WORKER_MULTIPROC_METHOD" not in environ:
        chosen["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # as vLLM's own command does
    return chosen


def cpu_environment(environ: Mapping[str, str], ranks: int = 1) -> dict[str, str]:
    """What suits the CPU engine where the user set nothing. Pure but for the cores that this process may use.

    Left alone, a single engine leaves one core to the server and takes half of the memory for the KV cache. Several
    engines are bound to cores by vLLM.
    """
    cores = sorted(os.sched_getaffinity(0))
    chosen = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    if ranks == 1:
        chosen |= {"OMP_NUM_THREADS": str(len(cores)), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
    return {name: value for name, value in chosen.items() if name not in environ}


def _ranks(arguments: argparse.Namespace) -> int:
    return int(arguments.data_parallel_size * arguments.tensor_parallel_size * arguments.pipeline_parallel_size)


def _general_plugins() -> list[str]:
    groups = ("vllm.general_plugins", "vllm.platform_plugins", "vllm.io_processor_plugins", "vllm.stat_logger_plugins")
    return [plugin.name for group in groups for plugin in entry_points(group=group)]


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
