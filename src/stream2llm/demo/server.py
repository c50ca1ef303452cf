"""A server for the demo: `stream2llm serve` in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_SECONDS = 600.0
_SERVE = "from stream2llm.cli import main; main()"


class ServerError(RuntimeError):
    """The server did not start, or does not answer; the message says what to do."""


@contextmanager
def started_server(model: str) -> Iterator[str]:
    """Start a server on loopback and wait until it is ready; gives its address, ends it at the end.

    Raises `ServerError`, with the end of the server's log, if it does not come up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile(prefix="stream2llm-server-", suffix=".log") as log:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _SERVE, "serve", model, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"VLLM_NO_USAGE_STATS": "1", **os.environ},
            start_new_session=True,  # Ctrl-C is for the demo, which ends the server itself
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, Path(log.name))
            yield url
        finally:
            _end(process)


def served_model(url: str, api_key: str | None = None) -> str:
    """The name of the model that a running server serves. Raises `ServerError` if it does not answer."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(f"{url}/v1/models", headers=headers, timeout=30.0).raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise ServerError(f"no OpenAI-compatible server answers at {url}: {error}") from error


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise ServerError(f"the server ended with status {process.returncode}; its last lines:\n{tail}")
        try:
            if httpx.get(f"{url}/health", timeout=5.0).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    raise ServerError(f"the server was not ready within {START_SECONDS:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
