"""`stream2llm profile` on the real engine, and what the server makes of the profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepping import Engine
from stream2llm.costs import CostProfile, ProfileMismatchError, SourceKind
from stream2llm.costs.document import from_document
from stream2llm.costs.store import find, save
from stream2llm.vllm.profiling import BlockCopyTimer, ProfilingError, engine_arguments, profile
from stream2llm.vllm.subject import costs_for, estimate_for, shape_of, subject_of

PROGRAM = str(Path(sys.executable).with_name("stream2llm"))
KV_BYTES_PER_TOKEN = 3 * 2 * 2 * 32 * 4  # layers, keys and values, KV heads, head size, float32


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def measured(model: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """One run of the command, with prompts of up to 768 tokens and everything else as a user has it."""
    arguments = (model, "--json", "--max-tokens", "768", "--repeats", "2", "--max-model-len", "1024", "--enforce-eager")
    environ = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    return subprocess.run(
        [PROGRAM, "profile", *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        env={**environ, "STREAM2LLM_CACHE": str(cache), "VLLM_NO_USAGE_STATS": "1"},
    )


@pytest.fixture
def answer(measured: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert measured.returncode == 0, measured.stderr
    found: dict[str, Any] = json.loads(measured.stdout)
    return found


@pytest.fixture
def found(answer: dict[str, Any]) -> CostProfile:
    return from_document(answer["profile"])


def test_it_measures_prefill_against_new_tokens_and_context(found: CostProfile) -> None:
    assert found.source.kind is SourceKind.MEASURED
    assert found.prefill.base.xs[:3] == (1, 16, 23)
    assert found.prefill.base.xs[-1] == 768
    assert found.prefill.longest_context == 768 * 3 // 4
    assert 1e-5 < found.prefill_seconds(16) < found.prefill_seconds(768) < 60
    assert found.prefill_seconds(128, 512) >= found.prefill_seconds(128)
    assert found.prefill.error is not None
    assert found.prefill.error.samples > 2 * len(found.prefill.base.xs)


def test_it_measures_copies_of_the_engines_own_blocks(found: CostProfile) -> None:
    assert found.kv_bytes_per_token == KV_BYTES_PER_TOKEN
    for costs in (found.copy_out, found.copy_in):
        assert costs.seconds.xs[:3] == (32, 64, 128)
        longest = costs.seconds.xs[-1]
        assert longest == 1024
        bandwidth = longest * KV_BYTES_PER_TOKEN / costs.seconds(longest)
        assert 1e8 < bandwidth < 1e12, "bytes per second"


def test_progress_is_shown_on_standard_error(measured: subprocess.CompletedProcess[str]) -> None:
    for what in ("prefill", "prefill behind context", "copies"):
        assert what in measured.stderr


def test_the_server_finds_the_profile_by_itself(
    answer: dict[str, Any], found: CostProfile, cache: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAM2LLM_CACHE", str(cache))
    assert Path(answer["path"]).parent == cache / "profiles"
    assert costs_for(engine.engine.vllm_config) == found


def test_it_is_the_profile_of_this_machine_model_and_engine(found: CostProfile, engine: Engine, model: str) -> None:
    assert found.subject == subject_of(engine.engine.vllm_config)
    assert found.subject.model == Path(model).name
    assert found.subject.hardware.endswith(f"{os.environ['OMP_NUM_THREADS']} threads")
    assert found.subject.engine.startswith("vllm 0.")
    assert (found.subject.dtype, found.subject.block_size) == ("float32", 32)


def test_a_profile_of_something_else_is_refused_unless_forced(
    found: CostProfile, engine: Engine, tmp_path: Path
) -> None:
    """BUGS 19: the profile of another GPU, on the engine."""
    path = tmp_path / "other.json"
    other = replace(found, subject=replace(found.subject, hardware="8 x NVIDIA H200"))
    save(other, path)
    with pytest.raises(ProfileMismatchError, match="hardware '8 x NVIDIA H200' instead of"):
        costs_for(engine.engine.vllm_config, path)
    assert costs_for(engine.engine.vllm_config, path, force=True) == other


def test_without_a_profile_there_is_an_estimate_for_this_engine(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAM2LLM_CACHE", str(tmp_path))
    config = engine.engine.vllm_config
    assumed = costs_for(config)
    assert assumed == estimate_for(config)
    assert assumed.source.kind is SourceKind.ESTIMATE
    assert assumed.subject == subject_of(config)
    assert assumed.step_tokens == config.scheduler_config.max_num_batched_tokens
    assert assumed.kv_bytes_per_token == KV_BYTES_PER_TOKEN
    assert find(subject_of(config), tmp_path / "profiles") is None


def test_the_estimate_is_of_the_models_own_shape(engine: Engine) -> None:
    shape = shape_of(engine.engine.vllm_config.model_config)
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (3, 128, 4, 2, 32)
    assert shape.intermediate == 384
    layer = 128 * (2 * 128 + 2 * 64) + 3 * 128 * 384
    assert shape.matmul_parameters == 3 * layer


@pytest.fixture
def filled_blocks(engine: Engine) -> Iterator[Any]:
    """The KV cache of the engine's worker, with a different number in each place."""
    runner = engine.core.model_executor.driver_worker.worker.model_runner
    storage = runner.kv_caches[0]
    before = storage.clone()
    storage.copy_(before.new_tensor(range(storage.numel())).view(storage.shape))
    yield storage
    storage.copy_(before)


def test_measuring_copies_leaves_the_kv_cache_as_it_was(engine: Engine, filled_blocks: Any) -> None:
    expected = filled_blocks.clone()
    worker = engine.core.model_executor.driver_worker.worker
    assert BlockCopyTimer.stream2llm_block_bytes(worker) == 32 * KV_BYTES_PER_TOKEN
    out, back = BlockCopyTimer.stream2llm_time_copies(worker, [1, 10, 100], 2)
    assert len(out) == len(back) == 6
    assert min(*out, *back) > 0
    assert bool((filled_blocks == expected).all())


@pytest.mark.parametrize(
    ("options", "settings", "complaint"),
    [
        (("--data-parallel-size", "2"), {}, "--data-parallel-size: .*profile one"),
        (("--no-enable-prefix-caching",), {}, "--no-enable-prefix-caching: .*leave it on"),
        ((), {"repeats": 0}, "repeats=0"),
        ((), {"max_tokens": 8}, "max_tokens=8"),
        ((), {"longest_seconds": 0.0}, "longest_seconds=0.0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_an_engine_starts(
    model: str,
    options: tuple[str, ...],
    settings: dict[str, Any],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())  # what the CPU engine wants is left behind in it
    with pytest.raises(ProfilingError, match=complaint):
        profile(engine_arguments(model, options), **settings)


def test_the_engine_is_measured_with_the_servers_defaults(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    arguments = engine_arguments(model, ["--max-num-batched-tokens", "256"])
    assert (arguments.dtype, arguments.block_size, arguments.max_num_batched_tokens) == ("float32", 32, 256)
    assert engine_arguments(model, ["--block-size", "64"]).block_size == 64
