"""Short forms of the requests that the tests make."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

STREAMS = "/v1/context_streams"
GREEDY = {"temperature": 0, "max_tokens": 8}
PAGES = [f"Page {n}: the {n}th city of the list has {n * 7919} inhabitants and {n} rivers.\n" for n in range(1, 41)]


@dataclass
class Api:
    client: httpx.Client
    server: Any

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(STREAMS + path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.client.post(STREAMS + path, json=body, **options)

    def put(self, path: str, body: Any) -> httpx.Response:
        return self.client.put(STREAMS + path, json=body)

    def delete(self, path: str) -> httpx.Response:
        return self.client.delete(STREAMS + path)

    def open(self, **body: Any) -> dict[str, Any]:
        return ok(self.post("", body), 201)

    def append(self, stream: dict[str, Any], **body: Any) -> dict[str, Any]:
        return ok(self.post(f"/{stream['id']}/append", body))

    def replace(self, stream: dict[str, Any], **body: Any) -> dict[str, Any]:
        return ok(self.put(f"/{stream['id']}", body))

    def read(self, stream: dict[str, Any]) -> dict[str, Any]:
        return ok(self.get(f"/{stream['id']}", params={"content": True}))

    def complete(self, stream: dict[str, Any], **body: Any) -> dict[str, Any]:
        return ok(self.post(f"/{stream['id']}/completions", {**GREEDY, **body}))

    def chat(self, stream: dict[str, Any], **body: Any) -> dict[str, Any]:
        return ok(self.post(f"/{stream['id']}/chat/completions", {**GREEDY, **body}))

    def plain(self, **body: Any) -> dict[str, Any]:
        """vLLM's own completion, cold or not: the answer to compare with."""
        return ok(self.client.post("/v1/completions", json={**GREEDY, **body}))

    def plain_chat(self, **body: Any) -> dict[str, Any]:
        return ok(self.client.post("/v1/chat/completions", json={**GREEDY, **body}))

    def wait_until(self, stream: dict[str, Any], state: str, limit_s: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while (now := ok(self.get(f"/{stream['id']}")))["state"] != state:
            assert time.monotonic() < deadline, now
            time.sleep(0.02)
        return now


def ok(response: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()


def refused(response: httpx.Response, status: int) -> str:
    """The message of an error in vLLM's format."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    return str(error["message"])


def answer(body: dict[str, Any]) -> Any:
    """What has to be equal between two stock answers to the same prompt."""
    choices = [{k: v for k, v in choice.items() if k != "stop_reason"} for choice in body["choices"]]
    usage = {k: v for k, v in (body.get("usage") or {}).items() if k != "prompt_tokens_details"}
    return body["object"], body["model"], choices, usage


def events(response: httpx.Response) -> list[Any]:
    """The data of the server-sent events of an answer that has been read."""
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def without_ids(chunks: list[Any]) -> list[Any]:
    """A streamed answer without what differs between two requests: ids, times, and where its text was cut.

    vLLM sends tokens that pile up while the server is busy as one event, so the cuts are a matter of timing.
    """
    whole: list[Any] = []
    for chunk in chunks:
        kept = {k: v for k, v in chunk.items() if k not in ("id", "created")}
        if whole and whole[-1]["choices"] and kept["choices"]:
            whole[-1] = _joined(whole[-1], kept)
        else:
            whole.append(kept)
    return whole


def _joined(first: Any, then: Any, key: str = "") -> Any:
    if isinstance(first, dict) and isinstance(then, dict):
        return {k: _joined(first.get(k), then.get(k), k) for k in {**first, **then}}
    if isinstance(first, list) and isinstance(then, list) and len(first) == len(then):
        return [_joined(a, b, key) for a, b in zip(first, then, strict=True)]
    if key in ("text", "content") and isinstance(first, str) and isinstance(then, str):
        return first + then
    return first if then is None else then
