"""`stream2llm check exactness` as a user runs it, on an engine of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("stream2llm"))


def test_streams_are_exact_and_the_terminal_shows_progress_only(model: str) -> None:
    command = [PROGRAM, "check", "exactness", "--cases", "6", "--model", model, "--json"]
    environ = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert (report["cases"], report["equal"], report["leaked_blocks"]) == (6, 6, 0)
    assert report["reused_tokens"] > 0
    first, *_ = done.stderr.splitlines()
    assert first == "Starting the engine (about half a minute) ..."
    assert all(f"{what} " in done.stderr for what in ("streamed", "compared"))
    assert not any(noise in done.stderr for noise in ("Warning", "Triton", "Loading"))
