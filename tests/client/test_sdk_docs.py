"""The snippets of docs/sdk.md, run as a reader would."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stream2llm

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OUTPUT = {
    0: r"\S",
    1: r"3 \d+ \d+\n.* length \d+",
    2: r"\d+ of \d+ tokens kept, \d+ computed in vain\n",
    3: r"\d+ of \d+ tokens kept\n.",
    4: "shorten it: ",
}


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, **options).stdout


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_does_what_it_shows(server, number):
    code = SNIPPETS[number].replace("http://localhost:8000", server.base_url)
    assert re.search(OUTPUT[number], run([sys.executable, "-W", "error", "-c", code]), re.DOTALL)


def test_the_full_example_is_short():
    assert len([line for line in SNIPPETS[0].splitlines() if line.strip()]) <= 16


def test_the_command_answers(server, tmp_path):
    [command] = re.findall(r"\$ (my-crawler .*)", PAGE)
    crawler = tmp_path / "my-crawler"
    crawler.write_text("#!/bin/sh\necho one page; sleep 0.2; echo another page\n")
    crawler.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "STREAM2LLM_URL": server.base_url}
    assert run(["sh", "-c", f"{command} --max-tokens 8"], env=environ).strip()


def test_every_exception_is_in_the_table():
    table = PAGE[PAGE.index("| exception |") : PAGE.index("All derive from")]
    exceptions = {
        name
        for name in stream2llm.__all__
        if isinstance(kind := getattr(stream2llm, name), type) and issubclass(kind, stream2llm.Stream2LLMError)
    }
    assert exceptions - {"Stream2LLMError"} <= set(re.findall(r"`(\w+)`", table))


def test_the_links_lead_somewhere():
    for target in re.findall(r"\]\((\w[\w-]*\.md)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / target).exists()


def test_every_field_of_an_ack_is_named():
    (sentence,) = re.findall(r"A write gives an `Ack`: (.*?)\n\n", PAGE, re.DOTALL)
    assert {field.name for field in dataclasses.fields(stream2llm.Ack)} <= set(re.findall(r"`(\w+)`", sentence))
