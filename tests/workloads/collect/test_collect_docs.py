"""The commands of docs/collect.md, and the traces that they made."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stream2llm.workloads.trace import Kind, Trace, read_trace
from web_site import serving_site

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "collect.md").read_text()
COMMANDS = re.findall(r"^\$ stream2llm (collect .*)$", PAGE, re.MULTILINE)
TRACES = ROOT / "tests" / "data" / "traces"
MAIN = [sys.executable, "-c", "from stream2llm.cli import main; main()"]


def sample(kind: str) -> Trace:
    return read_trace(TRACES / f"{kind}.jsonl.gz")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[1:4]))
def test_a_command_collects_a_trace(command: str, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("What is encoded?\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "base64.md").write_text("Base64 encodes bytes as text.")
    with serving_site() as site:
        site.page("/", "Base64 encodes bytes as text.")
        here = re.sub(r"https?://\S+", f"{site.url}/", command)
        here = re.sub(r"/usr/share\S+", "notes", re.sub(r"tests/data/\S+", "questions.txt", here))
        done = subprocess.run([*MAIN, *shlex.split(here)], capture_output=True, text=True, timeout=120, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    made = read_trace(next(tmp_path.glob("*.jsonl*")))
    assert [query.question.text for query in made.queries] == [
        "Question: What is encoded?\nAnswer in one or two sentences."
    ]
    if "tests/data" in command:  # the command that made a trace of the repository gives the same header

        def counted(trace: Trace) -> str:
            return re.sub(r"\d+ passages", "N passages", trace.header.description)

        shipped = sample(here.split()[1])
        assert counted(made) == counted(shipped)
        assert (made.header.workload, made.header.license) == (shipped.header.workload, shipped.header.license)


def test_the_page_has_a_command_of_each_kind_for_own_material_and_for_the_samples() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["crawl", "anns", "crawl", "anns"]


@pytest.mark.parametrize(("kind", "op"), [("crawl", Kind.APPEND), ("anns", Kind.REPLACE)])
def test_a_shipped_trace_is_small_licensed_and_of_real_text(kind: str, op: Kind) -> None:
    trace = sample(kind)

    assert (TRACES / f"{kind}.jsonl.gz").stat().st_size < 400_000
    assert trace.header.license == "PSF-2.0"
    assert "a latency was added" in trace.header.description
    questions = [line for line in (TRACES / f"{kind}.questions.txt").read_text().splitlines() if line[0] != "#"]
    assert [f"Question: {line}\nAnswer in one or two sentences." for line in questions] == [
        query.question.text for query in trace.queries
    ]
    for query in trace.queries:
        assert all(operation.op is op for operation in query.operations)
        assert query.retrieval_s > 0
        assert 1000 < query.tokens < 13_000
        assert all(len(piece.text or "") > 50 for piece in query.pieces.values())


def test_the_licence_stands_beside_the_traces() -> None:
    text = (TRACES / "LICENSES.md").read_text()
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in text
    for kind in ("crawl", "anns"):
        assert f"`{kind}.jsonl.gz`" in text
