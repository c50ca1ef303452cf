from __future__ import annotations

import subprocess
import sys

NOISE = "print('noise', file=sys.stderr); subprocess.run(['sh', '-c', 'echo noise of a child >&2'])"
CODE = f"""
import subprocess, sys
from stream2llm.cli.quiet import quiet_libraries
with quiet_libraries() as terminal:
    print("ours", file=terminal)
    {NOISE}
    FAILURE
print("after", file=sys.stderr)
"""


def run(failure: str) -> str:
    command = [sys.executable, "-c", CODE.replace("FAILURE", failure)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_only_our_own_words_reach_standard_error() -> None:
    assert run("pass") == "ours\nafter\n"


def test_what_was_kept_is_shown_before_the_error() -> None:
    said = run("raise RuntimeError('no memory')")
    assert said.startswith("ours\nnoise\nnoise of a child\nTraceback")
    assert said.endswith("RuntimeError: no memory\n")
