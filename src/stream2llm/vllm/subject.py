"""What an engine is to the cost model: the subject of its profile, its shape, and the costs to reckon with."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm.costs.builtin import CPU_CORE, ModelShape, accelerator_named, estimate
from stream2llm.costs.profile import CostProfile, Subject
from stream2llm.costs.store import find, load
from stream2llm.embedded import cache_directory
from stream2llm.vllm.compat import installed_version

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig


def profiles_directory() -> Path:
    """Where `stream2llm profile` leaves profiles and the server looks for its own."""
    return cache_directory() / "profiles"


def costs_for(config: VllmConfig, path: Path | None = None, force: bool = False) -> CostProfile:
    """The costs of the engine with this configuration: the profile at `path` if given, else the one measured on this
    machine, else an estimate from public figures (`source.kind` tells).

    Raises `ProfileError` for a file that is no profile, and for one of another subject unless `force` is set.
    """
    subject = subject_of(config)
    if path is not None:
        return load(path, subject, force)
    return find(subject, profiles_directory()) or estimate_for(config)


def estimate_for(config: VllmConfig) -> CostProfile:
    """An estimate for the engine, from its shape and what is public about its hardware."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        accelerator, devices = CPU_CORE, _threads()
    else:
        accelerator = accelerator_named(current_platform.get_device_name())
        devices = config.parallel_config.world_size
    step_tokens = config.scheduler_config.max_num_batched_tokens
    return estimate(subject_of(config), accelerator, devices, shape_of(config.model_config), step_tokens)


def subject_of(config: VllmConfig) -> Subject:
    """What a profile of the engine is a profile of; the same in every process of it."""
    model, cache = config.model_config, config.cache_config
    dtype = str(model.dtype).removeprefix("torch.")
    if model.quantization:
        dtype += f", {model.quantization} weights"
    if cache.cache_dtype != "auto":
        dtype += f", {cache.cache_dtype} KV cache"
    return Subject(
        hardware=_hardware(config.parallel_config.world_size),
        model=_model_name(model.model),
        engine=f"vllm {installed_version()}",
        dtype=dtype,
        block_size=cache.block_size,
    )


def shape_of(model: ModelConfig) -> ModelShape:
    """The model's shape as far as its configuration tells; for estimates only."""
    architecture = model.model_arch_config
    text: dict[str, Any] = model.hf_text_config.to_dict()
    width = text.get("intermediate_size") or 4 * architecture.hidden_size
    if architecture.num_experts:
        width = (text.get("moe_intermediate_size") or width) * max(1, architecture.num_experts_per_token)
    item = model.dtype.itemsize
    return ModelShape(
        name=_model_name(model.model),
        layers=architecture.total_num_hidden_layers,
        hidden=architecture.hidden_size,
        heads=architecture.total_num_attention_heads,
        kv_heads=architecture.total_num_kv_heads,
        head_dim=architecture.head_size,
        intermediate=width,
        weight_bytes=item,
        kv_bytes=item,
    )


def _model_name(model: str) -> str:
    """A hub's name as it is; of a folder its own name, since where it lies says nothing about the model."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def _hardware(devices: int) -> str:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return f"{_cpu_name()}, {_threads()} threads" + (f" in each of {devices} workers" if devices > 1 else "")
    return f"{devices} x {current_platform.get_device_name()}"


def _threads() -> int:
    """The threads that the CPU engine computes with: what was set for it, else all of the machine's."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
