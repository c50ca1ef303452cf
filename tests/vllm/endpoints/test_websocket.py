"""The same operations on a WebSocket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from http_calls import GREEDY, PAGES, STREAMS, Api, answer, events, ok, without_ids
from stream2llm.vllm.endpoints.websocket import sse_data

QUESTION = "\nWhich city?"
CONTEXT = "".join(PAGES[:8])
COMPLETE = {"op": "complete", "prompt": QUESTION, **GREEDY}


@contextmanager
def connected(api: Api) -> Iterator[ClientConnection]:
    with connect(api.server.base_url.replace("http", "ws") + f"{STREAMS}/ws", max_size=None) as ws:
        yield ws


def say(ws: ClientConnection, **operation: Any) -> dict[str, Any]:
    ws.send(json.dumps(operation))
    return hear(ws)


def hear(ws: ClientConnection) -> dict[str, Any]:
    return json.loads(ws.recv(timeout=60))


def wait_until_none_is_open(api: Api) -> None:
    deadline = time.monotonic() + 20
    while ok(api.get(""))["data"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestOperations:
    def test_each_write_is_answered_in_turn(self, api: Api) -> None:
        with connected(api) as ws:
            opened = say(ws, op="open", text=PAGES[0])
            assert (opened["op"], opened["object"], opened["version"]) == ("open", "context_stream", 1)
            appended = say(ws, op="append", text=PAGES[1])
            assert (appended["op"], appended["id"], appended["version"]) == ("append", opened["id"], 2)
            replaced = say(ws, op="replace", text=PAGES[0], expected_version=2)
            assert (replaced["op"], replaced["version"], replaced["tokens"]) == ("replace", 3, opened["tokens"])

    def test_the_answer_is_the_stock_answer(self, api: Api) -> None:
        with connected(api) as ws:
            for page in PAGES[:8]:
                say(ws, op="append", text=page)
            finished = say(ws, **COMPLETE)
        assert (finished["op"], finished["event"]) == ("complete", "response")
        assert answer(finished["data"]) == answer(api.plain(prompt=CONTEXT + QUESTION))

    def test_or_its_events_one_by_one(self, api: Api) -> None:
        stock = api.client.post("/v1/completions", json={**GREEDY, "prompt": CONTEXT + QUESTION, "stream": True})
        with connected(api) as ws:
            say(ws, op="open", text=CONTEXT)
            chunks = [say(ws, **COMPLETE, stream=True)]
            while chunks[-1]["event"] == "chunk":
                chunks.append(hear(ws))
        assert chunks.pop() == {"op": "complete", "event": "done"}
        assert without_ids([chunk["data"] for chunk in chunks]) == without_ids(events(stock))

    def test_writes_may_be_sent_without_waiting(self, api: Api) -> None:
        with connected(api) as ws:
            for n in range(300):
                ws.send(json.dumps({"op": "append", "text": f" {n}"}))
            ws.send(json.dumps(COMPLETE))
            acks = [hear(ws) for _ in range(300)]
            finished = hear(ws)
        assert [ack["version"] for ack in acks] == list(range(1, 301))
        whole = "".join(f" {n}" for n in range(300)) + QUESTION
        assert answer(finished["data"]) == answer(api.plain(prompt=whole))

    def test_after_the_answer_another_stream_may_follow(self, api: Api) -> None:
        with connected(api) as ws:
            first = say(ws, op="open", text=CONTEXT)
            say(ws, **COMPLETE)
            second = say(ws, op="open", messages=[{"role": "user", "content": "Hi"}])
            assert first["id"] != second["id"]
            chat = say(ws, op="complete", **GREEDY)
        assert answer(chat["data"]) == answer(api.plain_chat(messages=[{"role": "user", "content": "Hi"}]))

    def test_binary_messages_are_taken_as_utf_8(self, api: Api) -> None:
        with connected(api) as ws:
            ws.send(json.dumps({"op": "append", "text": "é"}, ensure_ascii=False).encode())
            assert hear(ws)["version"] == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("operation", "code"),
        [
            ({"op": "explode"}, 422),
            ({"op": "append"}, 422),
            ({"op": "append", "token_ids": [1]}, 400),
            ({"op": "append", "text": "b", "expected_version": 9}, 409),
            ({"op": "append", "text": "word " * 6000}, 400),
            ({"op": "open"}, 409),
            ({"op": "complete", "max_tokens": "many"}, 422),
            ({"op": "complete", "temperature": -1}, 400),
            ({"op": "complete", "model": "nobody/none"}, 404),
        ],
    )
    def test_leave_the_stream_open(self, api: Api, operation: dict[str, Any], code: int) -> None:
        with connected(api) as ws:
            say(ws, op="open", text=CONTEXT)
            error = say(ws, **operation)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["code"] == code
            assert say(ws, op="append", text="")["version"] == 2
            assert answer(say(ws, **COMPLETE)["data"]) == answer(api.plain(prompt=CONTEXT + QUESTION))

    def test_what_is_no_json_is_answered_too(self, api: Api) -> None:
        with connected(api) as ws:
            ws.send("{oops")
            assert hear(ws)["error"]["code"] == 422


class TestDepartures:
    def test_closing_the_socket_closes_the_stream(self, api: Api) -> None:
        with connected(api) as ws:
            say(ws, op="open", text=CONTEXT)
        wait_until_none_is_open(api)

    def test_generation_stops(self, api: Api) -> None:
        """BUGS 14."""
        for stream in (True, False):
            with connected(api) as ws:
                say(ws, op="open", text=CONTEXT)
                ws.send(json.dumps({**COMPLETE, "max_tokens": 3000, "ignore_eos": True, "stream": stream}))
                if stream:
                    hear(ws)
                else:
                    time.sleep(0.2)
            time.sleep(0.3)
            before = generated(api)
            time.sleep(0.5)
            assert generated(api) == before


def generated(api: Api) -> float:
    metrics = api.client.get("/metrics").text
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("vllm:generation_tokens_to"))


def test_server_sent_events_are_read_whatever_their_pieces() -> None:
    body = 'data: {"a": 1}\n\n: keep-alive\n\ndata: {"b": "é"}\n\ndata: [DONE]\n\n'

    async def data(size: int) -> list[str]:
        async def chunks() -> Any:
            for at in range(0, len(body), size):
                yield body[at : at + size]

        return [item async for item in sse_data(chunks())]

    for size in (1, 7, 1000):
        assert asyncio.run(data(size)) == ['{"a": 1}', '{"b": "é"}', "[DONE]"]
