"""A progress bar, on a real terminal and elsewhere."""

from __future__ import annotations

import os

import pytest

from stream2llm.cli.progress import progress


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a usual terminal; these variables would overrule what the file is."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_a_terminal_shows_how_many_are_done() -> None:
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal:
        with progress("simulating", 4, terminal) as ended:
            for _ in range(3):
                ended()
        shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "simulating" in shown
    assert "3/4" in shown


def test_what_is_no_terminal_stays_empty(tmp_path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file, progress("simulating", 2, file) as ended:
        ended()
    assert path.read_text() == ""
