"""The demo from start to end, as its users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import serving
from web_site import serving_site

COMMAND = [str(Path(sys.executable).with_name("stream2llm")), "demo"]
FIGURES = {"ttft_wait_s", "ttft_stream_s", "speedup", "answers_equal", "pages", "prompt_tokens"}


def demo(*options: str, limit_s: float = 240) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160"}
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=limit_s, env=environ)


def test_asks_a_running_server_both_ways_and_prints_the_figures_last(server: serving.Server) -> None:
    done = demo("--server", server.base_url, "--pages", "6", "--delay", "0.2", "--json")

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() >= FIGURES
    assert figures["answers_equal"] is True
    assert figures["pages"] == 6
    assert 500 < figures["prompt_tokens"] < 4096
    assert figures["speedup"] == pytest.approx(figures["ttft_wait_s"] / figures["ttft_stream_s"], rel=0.2)
    assert done.stdout.count("first token") == 2
    assert "tokens prefilled" in done.stdout
    assert "Pydoc: module email.base64mime" in done.stdout


def test_the_same_seed_crawls_the_same_pages_in_the_same_order(server: serving.Server) -> None:
    def titles() -> list[str]:
        lines = demo("--server", server.base_url, "--pages", "5", "--delay", "0.05").stdout.splitlines()
        return [line.split("page", 1)[1][:40] for line in lines if " s  page" in line]

    first = titles()
    assert len(first) == 10
    assert first[:5] == [title[:40] for title in first[5:]]
    assert titles() == first


def test_crawls_another_site_and_says_what_it_left_out(server: serving.Server) -> None:
    with serving_site() as site:
        site.page("/", "Every good story starts somewhere.", "/next", "/gone")
        site.page("/next", "This one went on and came to its end.")
        done = demo("--server", f"{server.base_url}/v1", "--url", f"{site.url}/", "--question", "Where?", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["pages"] == 2
    assert f"left out: {site.url}/gone: HTTP 404" in done.stdout


def test_a_site_without_pages_is_an_error_that_names_the_reason(server: serving.Server) -> None:
    with serving_site() as site:
        done = demo("--server", server.base_url, "--url", f"{site.url}/nothing")

    assert done.returncode == 1
    assert "no page could be crawled" in done.stderr
    assert "HTTP 404" in done.stderr


def test_a_prompt_too_long_for_the_model_is_an_error_that_names_the_limit(server: serving.Server) -> None:
    done = demo("--server", server.base_url, "--pages", "6", "--page-chars", "30000", "--delay", "0")

    assert done.returncode == 1
    assert "4096" in done.stderr


def test_a_server_that_does_not_answer_is_an_error_that_names_it() -> None:
    done = demo("--server", "http://127.0.0.1:9")

    assert done.returncode == 1
    assert "no OpenAI-compatible server answers at http://127.0.0.1:9" in done.stderr


def test_works_against_a_stock_server_by_warming_its_prefix_cache(stock_server: serving.Server) -> None:
    done = demo("--server", stock_server.base_url, "--pages", "4", "--delay", "0.2", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["answers_equal"] is True
