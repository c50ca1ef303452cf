from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import stream2llm

PROGRAM = str(Path(sys.executable).with_name("stream2llm"))


def test_the_version_is_the_packages() -> None:
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"stream2llm {stream2llm.__version__}\n"
