"""What `stream2llm serve` sets and refuses, and that the real server starts and stops cleanly."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import time
from typing import Any

import httpx
import pytest

import serving
from stream2llm.vllm.serve import (
    ASYNC_SCHEDULER,
    SYNC_SCHEDULER,
    ServeRefusedError,
    check,
    compilation,
    cpu_environment,
    defaults,
    process_environment,
    tier_options,
    with_scheduling,
)


def options(**given: Any) -> argparse.Namespace:
    stock = {
        "scheduler_cls": None,
        "async_scheduling": None,
        "block_size": None,
        "dtype": "auto",
        "max_num_batched_tokens": None,
        "enable_prefix_caching": None,
        "runner": "auto",
        "grpc": False,
    }
    return argparse.Namespace(**{**stock, **given})


def test_the_scheduler_follows_the_kind_of_scheduling() -> None:
    assert defaults(options(), cpu=False) == {"scheduler_cls": ASYNC_SCHEDULER}
    assert defaults(options(async_scheduling=False), cpu=False) == {"scheduler_cls": SYNC_SCHEDULER}


def test_the_cpu_gets_small_blocks_and_steps_and_float32_unless_the_user_says_otherwise() -> None:
    small = {"block_size": 32, "dtype": "float32", "max_num_batched_tokens": 512}
    assert defaults(options(scheduler_cls=ASYNC_SCHEDULER), cpu=True) == small
    given = options(scheduler_cls=ASYNC_SCHEDULER, block_size=64, dtype="bfloat16", max_num_batched_tokens=2048)
    assert defaults(given, cpu=True) == {}


@pytest.mark.parametrize(
    ("given", "environ", "message"),
    [
        ({"enable_prefix_caching": False}, {}, "--no-enable-prefix-caching"),
        ({"scheduler_cls": "other.Scheduler"}, {}, "--scheduler-cls other.Scheduler"),
        ({"runner": "pooling"}, {}, "--runner pooling"),
        ({"grpc": True}, {}, "gRPC"),
        ({}, {"VLLM_USE_RUST_FRONTEND": "1"}, "Rust"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(
    given: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ServeRefusedError, match=message):
        check(options(**{"scheduler_cls": ASYNC_SCHEDULER, **given}), environ)


def test_a_host_tier_is_one_option_and_not_beside_another_connector() -> None:
    name, value = tier_options([], 2.5)
    assert name == "--kv-transfer-config"
    assert json.loads(value)["kv_connector_extra_config"] == {"host_gib": 2.5}
    assert tier_options(["--kv-transfer-config={}"], None) == []
    with pytest.raises(ServeRefusedError, match="MultiConnector"):
        tier_options(["--kv-transfer-config", "{}"], 1.0)


def test_the_plugins_own_options_are_added_to_the_users_additional_config() -> None:
    parsed = options(kv_transfer_config=object())
    user = {"a": 1, "stream2llm": {"policy": "fcfs", "correction": False}}
    assert with_scheduling(user, {"policy": "lcas", "preemption": "swap", "itl_factor": None}, parsed) == {
        "a": 1,
        "stream2llm": {"policy": "lcas", "correction": False, "preemption": "swap", "itl_factor": None},
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preemption": "drop"}, "choose one of cost, recompute, swap, off"),
        ({"preemption": "swap"}, "--host-gib"),
        ({"policy": "sjf"}, "no policy 'sjf': choose one of srpf"),
        ({"itl_factor": "fast"}, "a number above 1"),
    ],
)
def test_scheduling_that_cannot_work_is_refused_before_anything_is_loaded(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ServeRefusedError, match=message):
        with_scheduling(None, given, options(kv_transfer_config=None))


def test_usual_options_are_accepted() -> None:
    check(options(scheduler_cls=ASYNC_SCHEDULER, enable_prefix_caching=True), {"VLLM_USE_RUST_FRONTEND": "0"})


def test_the_plugin_is_added_to_the_users_list_and_else_to_all_installed_ones() -> None:
    assert process_environment({"VLLM_PLUGINS": "mine"}, ["other"])["VLLM_PLUGINS"] == "mine,stream2llm"
    assert process_environment({"VLLM_PLUGINS": ""}, ["other"])["VLLM_PLUGINS"] == "stream2llm"
    assert process_environment({}, ["other", "stream2llm"])["VLLM_PLUGINS"] == "other,stream2llm"


def test_the_cpu_engine_is_not_compiled_unless_the_user_speaks_of_it() -> None:
    assert compilation(["--max-model-len", "4096"]) == ["--enforce-eager"]
    for option in ("--no-enforce-eager", "--enforce-eager", "-O1", '--compilation-config={"mode": 3}'):
        assert compilation([option]) == []


def test_the_users_environment_wins() -> None:
    assert "VLLM_WORKER_MULTIPROC_METHOD" not in process_environment({"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, [])
    assert "OMP_NUM_THREADS" not in cpu_environment({"OMP_NUM_THREADS": "1"})
    assert set(cpu_environment({}, ranks=2)) == {"VLLM_CPU_KVCACHE_SPACE"}


def test_an_unusable_combination_ends_with_status_2_and_a_message(model: str) -> None:
    command = [*serving.OURS, model, "--no-enable-prefix-caching"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--no-enable-prefix-caching" in done.stderr
    assert "Traceback" not in done.stderr


def left_running(group: int, within_s: float) -> str:
    """The processes that the server left behind, once those that were on their way out have had time to go."""
    deadline = time.monotonic() + within_s
    while True:
        found = subprocess.run(["pgrep", "-a", "-g", str(group)], capture_output=True, text=True).stdout
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


SCHEDULING = ("--policy", "lcas", "--itl-factor", "1.1", "--preemption", "swap")
OURS = (serving.OURS, ("--host-gib", "0.1", *SCHEDULING), {})
THROUGH_VLLM = (
    serving.STOCK,
    ("--scheduler-cls", ASYNC_SCHEDULER, "--dtype", "float32", "--block-size", "32"),
    {"VLLM_PLUGINS": "stream2llm"},
)


@pytest.mark.parametrize(("stop_signal", "start"), [(signal.SIGINT, OURS), (signal.SIGTERM, THROUGH_VLLM)])
def test_the_server_stops_cleanly_with_a_stream_open(
    model: str, stop_signal: signal.Signals, start: tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]
) -> None:
    """Started by our command, and by vLLM's own as docs/serving.md has it."""
    command, options, environ = start
    with serving.running_server(command, model, *serving.SMALL, *options, environ=environ) as server:
        httpx.post(f"{server.base_url}/v1/context_streams", json={"text": "left open"}).raise_for_status()
        server.process.send_signal(stop_signal)
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.log()
        assert left_running(server.process.pid, within_s=20) == ""
