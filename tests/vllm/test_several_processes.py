"""Two API-server processes and two data-parallel ranks: a stream works whichever process a request reaches."""

from __future__ import annotations

import random
from typing import Any

import httpx

import serving


def call(server: serving.Server, method: str, path: str, **body: Any) -> Any:
    """One request on a connection of its own, so that the kernel gives it to any of the processes."""
    return httpx.request(method, f"{server.base_url}{path}", json=body or None, timeout=60).raise_for_status().json()


def test_a_stream_lives_on_one_rank_and_is_served_by_every_process(model: str) -> None:
    rng = random.Random(4)
    options = ("--data-parallel-size", "2", "--api-server-count", "2", "--enable-prompt-tokens-details")
    with serving.running_server(serving.OURS, model, *serving.SMALL, *options) as server:
        for _ in range(10):
            text = " ".join(str(rng.randrange(1000)) for _ in range(200))
            stream = call(server, "POST", "/v1/context_streams", text=text[:100])["id"]
            for start in range(100, len(text), 150):
                call(server, "POST", f"/v1/context_streams/{stream}/append", text=text[start : start + 150])
            while (status := call(server, "GET", f"/v1/context_streams/{stream}"))["state"] != "ready":
                pass
            question = {"max_tokens": 6, "temperature": 0}
            if rng.random() < 0.5:
                answer = call(server, "POST", f"/v1/context_streams/{stream}/completions", prompt=" so", **question)
            else:  # through the stock endpoint, which knows of no stream until the engine sees the request
                named = {"vllm_xargs": {"context_stream": stream}, "model": "tiny", **question}
                answer = call(server, "POST", "/v1/completions", prompt=text + " so", **named)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= status["computed_tokens"] > 600
            stock = call(server, "POST", "/v1/completions", model="tiny", prompt=text + " so", **question)
            assert answer["choices"][0]["text"] == stock["choices"][0]["text"]
        assert call(server, "GET", "/v1/context_streams")["data"] == []
