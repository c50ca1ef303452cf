"""The README's commands and snippets, run as a reader would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import serving

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands(containing: str) -> list[str]:
    """The console lines that contain it, without prompt and comment."""
    lines = [line for block in snippets("console") for line in block.splitlines()]
    return [line[2:].split("  #")[0].strip() for line in lines if line.startswith("$ ") and containing in line]


def run(command: list[str], limit_s: float = 120, **environ: str) -> str:
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "NO_COLOR": "1", **environ},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def here(text: str, server: serving.Server) -> str:
    """The text with the server of this test run in place of the reader's."""
    return text.replace("http://localhost:8000", server.base_url).replace('model="default"', f'model="{server.model}"')


def test_the_two_commands_come_first() -> None:
    assert snippets("console")[0].split("\n")[0].startswith("$ make demo")
    assert commands("make")[:2] == ["make demo", "make test"]


@pytest.mark.timeout(900)
def test_make_demo_starts_a_server_with_the_embedded_model_and_gives_equal_answers() -> None:
    # The environment is this one: it must not be installed anew under the running tests.
    output = run(
        ["make", "--no-print-directory", "--old-file=.venv/.ready", "demo", "ARGS=--pages 8 --delay 0.5 --json"],
        limit_s=800,
    )

    figures = json.loads(output.splitlines()[-1])
    assert figures["answers_equal"] is True
    assert figures["pages"] == 8
    assert figures["speedup"] > 1.5
    assert "encode_base64" in figures["answer"] or "Base64" in figures["answer"]


def test_make_test_and_the_ci_script_run_the_suite() -> None:
    assert ".venv/bin/pytest" in run(["make", "--dry-run", "--old-file=.venv/.ready", "test"])
    assert {"make lint", "make test"} <= set((ROOT / ".ci" / "run").read_text().splitlines())


@pytest.mark.parametrize("extra", sorted(set(re.findall(r"\.\[(\w+)\]", README))))
def test_the_extras_that_it_names_exist(extra: str) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]


def test_the_server_command_is_there() -> None:
    activate, command = commands("activate")[0], commands("stream2llm serve")[0]
    found = run(["bash", "-c", f"{activate} && command -v stream2llm"]).strip()
    assert found == str(ROOT / ".venv" / "bin" / "stream2llm")
    assert command == "stream2llm serve default"
    assert "Start vLLM's server" in run(["stream2llm", "serve", "--help"])


@pytest.mark.parametrize("number", range(len(snippets("python"))))
def test_a_python_snippet_prints_an_answer(number: int, server: serving.Server) -> None:
    assert run([sys.executable, "-W", "error", "-c", here(snippets("python")[number], server)]).strip()


def test_the_example_takes_a_dozen_lines() -> None:
    lines = [line for line in snippets("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 12


def test_the_shell_command_prints_an_answer(server: serving.Server) -> None:
    (command,) = commands("stream2llm ask")
    assert run(["bash", "-c", f"{command} --max-tokens 8"], STREAM2LLM_URL=server.base_url).strip()


def test_the_curl_commands_open_append_and_complete(server: serving.Server) -> None:
    (address,) = commands("streams=")
    outputs = [
        run(["bash", "-c", f"{here(address, server)}\n{command.replace('curl', 'curl -S --fail-with-body', 1)}"])
        for command in commands("curl")
    ]
    assert all(output.endswith("}\n") for output in outputs)
    opened, appended, completed = map(json.loads, outputs)
    assert (opened["version"], appended["version"]) == (1, 2)
    assert appended["lcp"] <= opened["tokens"] < appended["tokens"]
    assert completed["usage"]["prompt_tokens"] > appended["tokens"]
    assert completed["choices"][0]["text"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_vllm_command_in_the_documentation_names_our_plugin_and_schedulers() -> None:
    from stream2llm.vllm.serve import ASYNC_SCHEDULER, PLUGIN, SYNC_SCHEDULER

    page = (ROOT / "docs" / "serving.md").read_text()
    assert f"VLLM_PLUGINS={PLUGIN} vllm serve MODEL" in page
    assert f"--scheduler-cls {ASYNC_SCHEDULER}" in page
    assert SYNC_SCHEDULER.rpartition(".")[2] in page


def test_the_measuring_commands_generate_and_simulate(tmp_path: Path) -> None:
    for command in (*commands("trace generate"), *commands("stream2llm simulate")):
        done = run(["bash", "-c", f"cd {tmp_path} && {command}"])
        assert "50" in done or "simulated (virtual clock)" in done


def test_the_replaying_commands_are_those_of_the_replay_page() -> None:
    page = (ROOT / "docs" / "replay.md").read_text()
    replays = commands("stream2llm replay")
    assert len(replays) == 2
    assert all(f"$ {command}" in page for command in (*replays, *commands("stream2llm report")))
