"""Standard error for our own words while libraries and their processes start."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def quiet_libraries() -> Iterator[TextIO]:
    """Keep what this process and its children write to standard error off it, and give the real one to write to.

    On an exception what was kept is written after all. At the level of the file descriptor, because warnings come
    from C++ and from the engine's processes too.
    """
    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile() as kept, os.fdopen(real, "w", buffering=1, closefd=False) as terminal:
        os.dup2(kept.fileno(), 2)
        try:
            yield terminal
        except BaseException:
            terminal.flush()
            _restore(real)
            kept.seek(0)
            sys.stderr.write(kept.read().decode(errors="replace"))
            raise
        finally:
            terminal.flush()
            _restore(real)
            os.close(real)


def _restore(real: int) -> None:
    sys.stderr.flush()
    os.dup2(real, 2)
