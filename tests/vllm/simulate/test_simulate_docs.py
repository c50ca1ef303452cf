"""docs/simulate.md: its commands, run one after another as a reader would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from stream2llm.cli import app
from stream2llm.workloads.measured import read

PAGE = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()
COMMANDS = [line.split("  #")[0].strip() for line in re.findall(r"^\$ stream2llm (.*)$", PAGE, re.MULTILINE)]
LONG = "reproduce"  # minutes; tests/cli/test_reproduce.py runs it with fewer queries


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands but the long ones have been run."""
    folder = tmp_path_factory.mktemp("simulate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            if not command.startswith(LONG):
                done = CliRunner().invoke(app, shlex.split(command))
                assert done.exit_code == 0, (command, done.output)
    return folder


def test_the_page_shows_each_step() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["simulate", "simulate", "report", LONG, LONG]


def test_both_logs_are_of_the_same_queries_and_streaming_is_sooner(folder: Path) -> None:
    wait, stream = read(folder / "wait.jsonl"), read(folder / "stream.jsonl")
    assert len(wait.ttft) == len(stream.ttft) == 300
    assert all(stream.quantile(share) < wait.quantile(share) for share in (0.5, 0.95, 0.99))


def test_the_report_says_that_it_is_simulated(folder: Path) -> None:
    assert "simulated (virtual clock)" in (folder / "report" / "report.html").read_text()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(LONG)])
def test_the_long_commands_have_options_that_exist(command: str) -> None:
    _, name, *options = shlex.split(command)
    group = typer.main.get_command(app).commands[LONG]  # type: ignore[attr-defined]
    group.commands[name].make_context(name, options)
