"""Real pages without a network: the standard library's documentation server, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pydoc_site() -> Iterator[str]:
    """Serve the standard library's documentation on loopback; gives its address, ends it at the end.

    Isolated and without site-packages, so that the pages are the standard library's alone.
    """
    with (
        tempfile.TemporaryDirectory() as empty,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-u", "-m", "pydoc", "-n", "127.0.0.1", "-p", "0"],
            stdin=subprocess.PIPE,  # its end ends the server
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=empty,
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        try:
            found = re.search(r"http://\S+", process.stdout.readline())
            if not found:
                raise RuntimeError("the documentation server (python -m pydoc) did not start")
            yield found[0]
        finally:
            process.stdin.close()
            process.terminate()
