"""The HTTP API's contract on a script of faults, for what a real server does not do on command.

It keeps versions and contents as the contract says; an answer's text is the prompt it was asked for, so that a test
sees what reached the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import httpx

from stream2llm import RetryPolicy

# Faults, one for each request that arrives: the request is lost on the way; it is carried out and its answer is lost;
# it is carried out after the next one, when nobody waits for it any more; the server forgets all streams
# before it; a status is answered instead.
LOSE_REQUEST, LOSE_ANSWER, LATE, RESTART = "lose request", "lose answer", "late", "restart"
Fault = str | httpx.Response | None

AT_ONCE = RetryPolicy(retries=4, first_delay=0.0)


class ScriptedServer:
    """Call it with a request, as `httpx.MockTransport` does."""

    def __init__(self, faults: Iterable[Fault] = (), *, plugin: bool = True, models: bool = True) -> None:
        self.streams: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.plugin, self.models = plugin, models
        self._faults = iter(faults)
        self._late: list[tuple[httpx.Request, dict[str, Any]]] = []

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self)

    def content(self, stream_id: str) -> Any:
        return self.streams[stream_id]["content"]

    def calls(self, method: str, ending: str = "") -> list[Any]:
        """Bodies of the requests with this method and path ending."""
        return [body for m, path, body in self.requests if m == method and path.endswith(ending)]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.requests.append((request.method, request.url.path, body))
        fault = next(self._faults, None)
        if fault == LOSE_REQUEST:
            raise httpx.ConnectTimeout("lost on the way", request=request)
        if fault == LATE:
            self._late.append((request, body or {}))
            raise httpx.ReadError("given up", request=request)
        if isinstance(fault, httpx.Response):
            return fault
        if fault == RESTART:
            self.streams.clear()
        response = self._route(request, body or {})
        while self._late:
            self._route(*self._late.pop())
        if fault == LOSE_ANSWER:
            raise httpx.ReadError("answer lost", request=request)
        return response

    def _route(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        path = request.url.path
        if path == "/v1/models" and self.models:
            return httpx.Response(200, json={"data": [{"id": "first-model"}]})
        if path in ("/v1/completions", "/v1/chat/completions") and self.models:
            return _answer(body)
        if not self.plugin or not path.startswith("/v1/context_streams"):
            return httpx.Response(404, json={"detail": "Not Found"})
        if path == "/v1/context_streams":
            return self._open(body) if request.method == "POST" else httpx.Response(200, json=[])
        stream_id, _, action = path.removeprefix("/v1/context_streams/").partition("/")
        if (stream := self.streams.get(stream_id)) is None:
            return _error(404, f"No context stream {stream_id}.")
        route: dict[tuple[str, str], Callable[[], httpx.Response]] = {
            ("GET", ""): lambda: httpx.Response(200, json={**_ack(stream_id, stream), **stream["content"]}),
            ("DELETE", ""): lambda: self._close(stream_id),
            ("PUT", ""): lambda: _write(stream_id, stream, body, replace=True),
            ("POST", "append"): lambda: _write(stream_id, stream, body, replace=False),
            ("POST", "completions"): lambda: _finish(stream, body, "prompt"),
            ("POST", "chat/completions"): lambda: _finish(stream, body, "messages"),
        }
        return route[request.method, action]()

    def _open(self, body: dict[str, Any]) -> httpx.Response:
        if body["id"] in self.streams:
            return _error(409, "id is taken", "id")
        content = _content(body)
        self.streams[body["id"]] = stream = {"version": 1 if content else 0, "content": content, "state": "ready"}
        return httpx.Response(201, json=_ack(body["id"], stream))

    def _close(self, stream_id: str) -> httpx.Response:
        del self.streams[stream_id]
        return httpx.Response(200, json={})


def _content(body: dict[str, Any]) -> dict[str, Any]:
    return {kind: body[kind] for kind in ("text", "token_ids", "messages") if kind in body}


def _write(stream_id: str, stream: dict[str, Any], body: dict[str, Any], *, replace: bool) -> httpx.Response:
    if stream["state"] == "finished":
        return _error(409, "the stream is finished")
    if body.get("expected_version", stream["version"]) != stream["version"]:
        return _error(409, f"expected_version does not match {stream['version']}", "expected_version")
    (kind, more), *_ = _content(body).items()
    if not replace and stream["content"]:
        ((kind, held),) = stream["content"].items()
        more = held + more
    stream.update(content={kind: more}, version=stream["version"] + 1)
    return httpx.Response(200, json=_ack(stream_id, stream))


def _finish(stream: dict[str, Any], body: dict[str, Any], field: str) -> httpx.Response:
    if stream["state"] == "finished":
        return _error(409, "the stream is finished")
    if body.get("max_tokens", 1) < 1:
        return _error(400, "max_tokens must be at least 1", "max_tokens")
    stream["state"] = "finished"
    held = next(iter(stream["content"].values()), type(body[field])())
    return _answer({**body, field: held + body[field]})


def _answer(body: dict[str, Any]) -> httpx.Response:
    """A completion whose text is the prompt, or the last message's content; streamed if asked, one event a word."""
    chat = "messages" in body
    text = body["messages"][-1]["content"] if chat else str(body["prompt"])
    usage = {"prompt_tokens": len(text), "completion_tokens": len(text.split())}
    if not body.get("stream"):
        said = {"message": {"content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": "stop", **said}
        return httpx.Response(200, json={"id": "a", "choices": [choice], "usage": usage})
    words = text.split(" ")
    pieces = [word + " " for word in words[:-1]] + words[-1:]
    deltas = [{"delta": {"content": piece}} if chat else {"text": piece} for piece in pieces]
    events: list[Any] = [{"choices": [{"index": 0, **delta, "finish_reason": None}]} for delta in deltas]
    events[-1]["choices"][0]["finish_reason"] = "stop"
    events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
    return httpx.Response(200, content="".join(lines), headers={"content-type": "text/event-stream"})


def _ack(stream_id: str, stream: dict[str, Any]) -> dict[str, Any]:
    tokens = len(next(iter(stream["content"].values()), ""))
    return {"id": stream_id, "state": stream["state"], "version": stream["version"], "tokens": tokens, "lcp": 0}


def _error(status: int, message: str, param: str | None = None) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "x", "param": param, "code": status}})
