"""Progress bars on standard error, for what takes a while."""

from __future__ import annotations

import sys
import time
from typing import Self, TextIO

PATIENCE_S = 1.0
"""What is done sooner shows no bar."""


class Bars:
    """A bar for each thing that is done. There are none unless standard error is a terminal."""

    def __init__(self, terminal: TextIO | None = None) -> None:
        """`terminal`: where they go instead of standard error."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(file=terminal or sys.stderr)
        self._progress = Progress(
            *columns,
            console=console,
            disable=not console.is_terminal,
            redirect_stderr=terminal is None,  # else standard error is kept off the terminal, and must stay off it
        )
        self._tasks: dict[str, TaskID] = {}
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """Move the bar of `what`; a new one if there is none. Without a `total` nobody knows how much there is."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done)
        if time.monotonic() - self._since > PATIENCE_S:
            self._progress.start()
