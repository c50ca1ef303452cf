"""docs/replay.md: its commands, run one after another as a reader would, and the logs they leave."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stream2llm.workloads.events import Arm, What, read_events
from stream2llm.workloads.measured import read

PAGE = (Path(__file__).parents[3] / "docs" / "replay.md").read_text()
COMMANDS = [line.split("  #")[0].strip() for line in re.findall(r"^\$ stream2llm (.*)$", PAGE, re.MULTILINE)]
MAIN = [sys.executable, "-c", "from stream2llm.cli import main; main()"]
QUERIES = 5
# The server of the tests takes 4096 tokens; and nobody wants to wait for retrieval in real time here.
HERE = {"--queries 20": f"--queries {QUERIES}", "--token-scale 8": "--token-scale 16 --time-scale 0.1"}


@pytest.fixture(scope="module")
def folder(server, model, tmp_path_factory):
    """Where all commands but the server's have been run."""
    folder = tmp_path_factory.mktemp("replay")
    said: list[str] = []
    environ = {**os.environ, "STREAM2LLM_URL": server.base_url, "VLLM_CPU_KVCACHE_SPACE": "1"}
    for command in COMMANDS:
        if command.startswith("serve"):
            continue
        for theirs, ours in HERE.items():
            command = command.replace(theirs, ours)
        arguments = shlex.split(command.replace("--model default", f"--model {model}"))
        if "--match-paper" in arguments:
            arguments += ["--token-scale", "16"]
        done = subprocess.run([*MAIN, *arguments], capture_output=True, text=True, cwd=folder, env=environ, timeout=240)
        assert done.returncode == 0, (command, done.stdout + done.stderr)
        said.append(done.stderr)
    (folder / "stderr").write_text("".join(said))
    return folder


def test_the_page_shows_each_step(folder):
    assert [command.split()[0] for command in COMMANDS] == [
        *("serve", "trace", "replay", "replay", "report"),
        *("replay", "replay"),
    ]


@pytest.mark.parametrize("arm", [Arm.WAIT, Arm.INPUT, Arm.STREAM])
def test_every_query_was_answered(folder, arm):
    measured = read(folder / f"{arm.value}.jsonl")
    assert (measured.run.arm, measured.failed, len(measured.ttft)) == (arm, 0, QUERIES)


def test_the_report_compares_the_arms(folder):
    assert (folder / "report" / "report.html").stat().st_size > 10_000


def test_streaming_input_acknowledges_each_piece_but_the_last(folder):
    """A turn that it takes for a piece is one of the query, and the tokens of its last turn are the answer's."""
    path = folder / "input.jsonl"
    _, records = read_events(path)
    events = [event for event in records if hasattr(event, "what")]
    sent = [(event.query, event.operation) for event in events if event.what is What.SENT]
    acked = [(event.query, event.operation) for event in events if event.what is What.ACKED]
    assert sorted(acked) == sorted(sent)
    assert {item.generated for item in read(path).queries} == {1}


def test_what_was_chosen_is_said_as_on_the_page(folder):
    said = (folder / "stderr").read_text()
    (shown,) = re.findall(r"```\n(matched to .*?)```", PAGE, re.DOTALL)
    words = [r"[\d.e+-]+" if re.fullmatch(r"[\d.]+", word) else re.escape(word) for word in shown.split()]
    assert re.search(r"\s+".join(words), said), said
