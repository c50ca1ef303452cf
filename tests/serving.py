"""Servers for tests: real processes on free ports, with the tiny model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

START_LIMIT_S = 240


@dataclass(frozen=True)
class Server:
    """A running server. `log()` is what it has printed so far."""

    base_url: str
    model: str
    process: subprocess.Popen[bytes]
    log_file: Path
    api_key: str | None = None
    options: Sequence[str] = field(default=())

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_server(
    command: Sequence[str],
    model: str,
    *options: str,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start `command MODEL options`, wait until it is healthy, and stop it as Ctrl-C does."""
    port = free_port()
    arguments = [*command, model, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), *options]
    if api_key is not None:
        arguments += ["--api-key", api_key]
    # Without the last, stock vLLM takes nearly all of the machine's memory for the KV cache.
    modest = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    env = {**os.environ, **modest, **(environ or {})}
    with tempfile.NamedTemporaryFile(suffix=".log", delete=False) as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    log_file = Path(log.name)
    server = Server(f"http://127.0.0.1:{port}", "tiny", process, log_file, api_key, tuple(options))
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        stop(process)
        log_file.unlink()


def stop(process: subprocess.Popen[bytes], limit_s: float = 60) -> int:
    """Interrupt the server; what is left after the limit is killed. The exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _wait_until_healthy(server: Server) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with {server.process.returncode}:\n{server.log()[-6000:]}")
        try:
            if httpx.get(f"{server.base_url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise TimeoutError(f"the server was not healthy within {START_LIMIT_S} s:\n{server.log()[-6000:]}")


OURS = (str(Path(sys.executable).with_name("stream2llm")), "serve")
STOCK = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model")
SMALL = ("--max-model-len", "4096", "--max-num-seqs", "8", "--max-num-batched-tokens", "512", "--enforce-eager")
