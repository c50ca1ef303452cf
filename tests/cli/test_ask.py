"""`stream2llm ask` as a process, against real servers."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

PROGRAM = str(Path(sys.executable).with_name("stream2llm"))
PAGES = [f"Page {n}: the quick brown fox jumps over {n} lazy dogs.\n" for n in range(20)]
CHAT = [{"role": "system", "content": "Answer the question from the context."}]


def ask(*arguments, data=b"", env=None, question="Why?"):
    environ = {**os.environ, **(env or {})}
    return subprocess.run(
        [PROGRAM, "ask", question, *map(str, arguments)], input=data, capture_output=True, timeout=60, env=environ
    )


def start(*arguments):
    return subprocess.Popen(
        [PROGRAM, "ask", "Why?", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class Streams:
    """The context streams that are open on a server and were not when the test began."""

    def __init__(self, server):
        self._url = f"{server.base_url}/v1/context_streams"
        self._known = {stream["id"] for stream in self._all()}

    def open(self):
        return [stream for stream in self._all() if stream["id"] not in self._known]

    def tokens(self):
        return sum(stream["tokens"] for stream in self.open())

    def _all(self):
        return httpx.get(self._url).json()["data"]


@pytest.fixture
def streams(server):
    return Streams(server)


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_chunks_are_streamed_as_they_come_and_the_answer_is_printed(server, streams):
    with start("--url", server.base_url, "--max-tokens", 8) as process:
        process.stdin.write(PAGES[0].encode())
        process.stdin.flush()
        wait_for(lambda: streams.tokens() > 30)
        before = streams.tokens()
        process.stdin.write("".join(PAGES[1:]).encode())
        process.stdin.flush()
        wait_for(lambda: streams.tokens() > before + 100)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert out.decode().strip()
    assert streams.open() == []


@pytest.mark.parametrize("form", [[], ["--lines"]])
def test_the_question_is_asked_about_the_whole_input(server, form):
    answer = ask("--url", server.base_url, "--max-tokens", 4, "--json", *form, data="".join(PAGES).encode())
    result = json.loads(answer.stdout)
    content = "Context:\n" + "".join(PAGES) + "\n\nQuestion: Why?"
    prompt = httpx.post(
        f"{server.base_url}/tokenize",
        json={"model": server.model, "messages": [*CHAT, {"role": "user", "content": content}]},
    ).json()
    assert result["usage"]["prompt_tokens"] == prompt["count"]
    assert result["chunks"] == (20 if form else 1)
    assert result["context_streams"] is True
    assert result["usage"]["completion_tokens"] == 4
    assert 0 < result["ttft_s"] < 60
    assert result["answer"]


def test_operations_replace_what_was_there(server):
    lines = [{"op": "append", "text": "old " * 200}, {"op": "replace", "text": "new"}]
    data = "\n".join(map(json.dumps, lines)).encode()
    result = json.loads(ask("--url", server.base_url, "--jsonl", "--json", "--max-tokens", 2, data=data).stdout)
    assert result["chunks"] == 2
    assert result["usage"]["prompt_tokens"] < 100


def test_raw_text_is_completed_as_it_is(server):
    text = "".join(PAGES)
    completed = ask("--url", server.base_url, "--completion", "--max-tokens", 1, "--json", data=text.encode())
    tokens = httpx.post(f"{server.base_url}/tokenize", json={"model": server.model, "prompt": text + "Why?"}).json()
    assert json.loads(completed.stdout)["usage"]["prompt_tokens"] == tokens["count"]


def test_a_server_without_the_plug_in_is_asked_as_well(stock_server):
    answer = ask("--url", stock_server.base_url, "--max-tokens", 4, "--json", data="".join(PAGES).encode())
    assert json.loads(answer.stdout)["context_streams"] is False
    assert answer.stderr.decode().count("no context streams") == 1


def test_the_answer_is_greedy_and_of_256_tokens_at_most_unless_told_otherwise(server):
    def answer(*arguments):
        return json.loads(ask("--url", server.base_url, "--json", *arguments, data=PAGES[0].encode()).stdout)

    greedy = answer()
    assert greedy["answer"] == answer()["answer"]
    assert greedy["usage"]["completion_tokens"] == 256
    drawn = {answer("--temperature", 2, "--max-tokens", 32)["answer"] for _ in range(2)}
    assert len(drawn) == 2


def test_the_address_and_the_key_come_from_the_environment(server):
    env = {"STREAM2LLM_URL": server.base_url, "STREAM2LLM_API_KEY": "unneeded"}
    assert ask("--max-tokens", 1, data=b"a", env=env).returncode == 0


def test_empty_input_is_said(server):
    answer = ask("--url", server.base_url, "--max-tokens", 1)
    assert answer.returncode == 0
    assert b"standard input was empty" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "data", "status", "message"),
    [
        (["--jsonl"], b'{"op": "append"}', 4, "line 1"),
        (["--model", "nope"], b"a", 1, "`nope` does not exist"),
        ([], b"word " * 9000, 1, "limit is 4095"),
        (["--lines", "--jsonl"], b"", 2, "one of --lines and --jsonl"),
        (["--max-tokens", "0"], b"", 2, "--max-tokens"),
        (["--temperature", "-1"], b"", 2, "--temperature"),
    ],
)
def test_every_failure_has_its_message_and_exit_status(server, streams, arguments, data, status, message):
    answer = ask("--url", server.base_url, *arguments, data=data)
    assert (answer.returncode, answer.stdout) == (status, b"")
    assert message in answer.stderr.decode()
    assert "Traceback" not in answer.stderr.decode()
    assert streams.open() == []


def test_a_server_that_is_not_there_is_named():
    answer = ask("--url", "http://127.0.0.1:9", data=b"a")
    assert answer.returncode == 3
    assert b"127.0.0.1:9" in answer.stderr
    assert b"is the server running?" in answer.stderr


def test_an_interrupt_closes_the_stream(server, streams):
    with start("--url", server.base_url) as process:
        process.stdin.write(PAGES[0].encode())
        process.stdin.flush()
        wait_for(lambda: streams.tokens() > 20)
        process.send_signal(signal.SIGINT)
        process.wait(10)
    assert process.returncode == 130
    wait_for(lambda: streams.open() == [])


def test_a_terminal_as_input_is_told_how_to_use_it():
    primary, secondary = pty.openpty()
    answer = subprocess.run([PROGRAM, "ask", "Why?"], stdin=secondary, capture_output=True, timeout=30)
    os.close(primary)
    os.close(secondary)
    assert answer.returncode == 2
    assert b"my-crawler | stream2llm ask" in answer.stderr


def test_a_terminal_sees_chunks_tokens_and_ttft(server):
    primary, secondary = pty.openpty()
    command = [PROGRAM, "ask", "Why?", "--url", server.base_url, "--max-tokens", "2"]
    subprocess.run(command, input=b"a page", stdout=subprocess.PIPE, stderr=secondary, timeout=60, check=True)
    os.close(secondary)
    seen = os.read(primary, 65536).decode()
    os.close(primary)
    assert "1 chunk, " in seen
    assert "s after the last chunk" in seen


def test_the_help_tells_the_exit_statuses():
    text = subprocess.run([PROGRAM, "ask", "--help"], capture_output=True, text=True).stdout
    assert all(word in text for word in ("Exit status:", "130", "--jsonl", "STREAM2LLM_URL"))
