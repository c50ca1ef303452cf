"""`stream2llm report` from a shell, and the commands of docs/report.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from event_logs import events, run, write

DOCUMENT = Path(__file__).parents[2] / "docs" / "report.md"
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line[2:].split("  #")[0].strip()
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]


def report(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from stream2llm.cli import main; main()", "report", *arguments]
    environ = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environ)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the logs of waiting, which takes 1 s, and of a stream, which takes 0.25 s."""
    runs = tmp_path / "runs"
    runs.mkdir()
    write(runs / "wait.jsonl", run("wait"), list(events([1.0] * 4)))
    write(runs / "stream.jsonl", run(policy="srpf", preemption="cost"), list(events([0.25] * 4)))
    return tmp_path


def test_it_prints_the_tables_and_writes_the_report(folder: Path) -> None:
    done = report(folder, "runs/wait.jsonl", "runs/stream.jsonl", "-o", "report")
    assert done.returncode == 0, done.stderr
    assert "crawler, 4 queries/s, delays x1 · simulated (virtual clock)" in done.stdout
    assert re.search(r"stream srpf cost +4 x +4 x", done.stdout)
    assert done.stdout.endswith("Written to report/report.html\n")
    assert {path.suffix for path in (folder / "report").iterdir()} == {".html", ".json", ".png"}


def test_as_json_it_prints_what_it_writes(folder: Path) -> None:
    done = report(folder, "runs/wait.jsonl", "runs/stream.jsonl", "-o", "report", "--json", "--profile", "2xh100")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((folder / "report" / "report.json").read_text())
    assert list((folder / "report").glob("costs-*.png"))


def broken(folder: Path) -> dict[str, Path]:
    """Files that are no event logs, by what is wrong with them."""
    files = {name: folder / f"{name}.jsonl" for name in ("empty", "trace", "header", "version")}
    files["empty"].write_text("")
    files["trace"].write_text('{"format": "stream2llm-trace", "version": 1, "workload": "crawler"}\n')
    files["header"].write_text('{"format": "stream2llm-events", "version": 1, "clock": "lunar"}\n')
    files["version"].write_text('{"format": "stream2llm-events", "version": 9}\n')
    return files


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("empty", "empty.jsonl: the file is empty; its first line must be the header"),
        ("trace", "trace.jsonl: this is a stream2llm-trace file, not a stream2llm-events file"),
        ("header", "header.jsonl, line 1: Invalid enum value 'lunar' - at `$.clock`"),
        ("version", "version.jsonl: version 9 of stream2llm-events; this release reads version 1"),
        ("missing", "missing.jsonl: No such file or directory"),
    ],
)
def test_a_file_that_is_no_event_log_is_one_line_and_exit_status_2(folder: Path, name: str, complaint: str) -> None:
    broken(folder)
    done = report(folder, "runs/wait.jsonl", f"{name}.jsonl", "-o", "report")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"stream2llm report: {complaint}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["runs", "-o", "report"], 2, "runs: Is a directory"),
        (["runs/wait.jsonl", "runs/../runs/wait.jsonl", "-o", "report"], 2, "runs/wait.jsonl is named twice"),
        (["runs/wait.jsonl", "-o", "runs/stream.jsonl"], 1, "the report cannot be written to runs/stream.jsonl"),
        (["runs/wait.jsonl", "-o", "report", "--profile", "3xh200"], 2, "the cost profile 3xh200 cannot be read"),
        (["runs/wait.jsonl"], 2, "Missing option"),
        (["-o", "report"], 2, "Missing argument 'LOG...'"),
    ],
)
def test_what_cannot_be_done_is_said(folder: Path, arguments: list[str], status: int, complaint: str) -> None:
    done = report(folder, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_that_is_cut_off_is_reported_with_a_note(folder: Path) -> None:
    path = folder / "runs" / "stream.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    done = report(folder, "runs/wait.jsonl", "runs/stream.jsonl", "-o", "report")
    assert done.returncode == 0, done.stderr
    assert "note: The log breaks off and was read up to there: runs/stream.jsonl, line 25" in done.stdout


def test_without_matplotlib_it_says_what_to_install(folder: Path) -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from stream2llm.cli import main; main()"
    command = [sys.executable, "-c", code, "report", "runs/wait.jsonl", "-o", "report"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "stream2llm report needs matplotlib for its pictures, which is not installed: pip install '.[workloads]'\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_documentation_runs(folder: Path, command: str) -> None:
    environ = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=folder, env=environ)
    assert done.returncode == 0, done.stderr
    assert (folder / "report" / "report.html").exists()


def test_the_python_of_the_documentation_runs(folder: Path) -> None:
    (snippet,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "median=0.25" in done.stdout
    assert "median=4.0" in done.stdout
