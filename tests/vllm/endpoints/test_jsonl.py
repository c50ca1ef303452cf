"""One request: JSON Lines, applied as they arrive."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from http_calls import GREEDY, PAGES, STREAMS, Api, answer, events, ok, refused, without_ids
from stream2llm.vllm.endpoints.errors import ApiError
from stream2llm.vllm.endpoints.jsonl import Line, read_lines

QUESTION = "\nWhich city?"
CONTEXT = "".join(PAGES[:8])
APPENDS = [{"op": "append", "text": page} for page in PAGES[:8]]
COMPLETE = {"op": "complete", "prompt": QUESTION, **GREEDY}


def lines(*operations: Any) -> bytes:
    return b"".join(json.dumps(operation).encode() + b"\n" for operation in operations)


def upload(api: Api, content: Any, method: str = "POST") -> Any:
    return api.client.request(method, f"{STREAMS}/jsonl", content=content)


def open_streams(api: Api) -> list[Any]:
    return ok(api.get(""))["data"]


class TestLines:
    """Pure: from the chunks of a body to lines."""

    @staticmethod
    def read(*chunks: bytes, limit: int = 100) -> list[list[Line]]:
        async def body() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        async def all_lines() -> list[list[Line]]:
            return [found async for found in read_lines(body(), limit)]

        return asyncio.run(all_lines())

    def test_a_line_may_come_in_any_pieces(self) -> None:
        whole = "é\nzwei\n".encode()
        for cut in range(len(whole)):
            assert [line.data for found in self.read(whole[:cut], whole[cut:]) for line in found] == [
                "é".encode(),
                b"zwei",
            ]

    def test_lines_of_one_chunk_come_together_and_empty_ones_not_at_all(self) -> None:
        assert self.read(b"a\n\n \nb\nc", b"d\n") == [[Line(1, b"a"), Line(4, b"b")], [Line(5, b"cd")]]

    def test_the_last_needs_no_end(self) -> None:
        assert self.read(b"a\nb") == [[Line(1, b"a")], [Line(2, b"b")]]

    def test_one_that_is_too_long_is_refused_before_it_has_ended(self) -> None:
        with pytest.raises(ApiError, match="longer than 100 bytes") as refusal:
            self.read(*[b"x" * 30] * 10)
        assert refusal.value.status == 413


class TestUpload:
    @pytest.mark.parametrize("method", ["POST", "PUT"])
    def test_is_answered_by_the_stock_answer(self, api: Api, method: str) -> None:
        response = upload(api, lines({"op": "open", "ttl": 60}, *APPENDS, COMPLETE), method)
        assert answer(ok(response)) == answer(api.plain(prompt=CONTEXT + QUESTION))

    def test_the_complete_may_stand_anywhere(self, api: Api) -> None:
        expected = answer(api.plain(prompt=CONTEXT + QUESTION))
        assert answer(ok(upload(api, lines(COMPLETE, *APPENDS)))) == expected
        assert answer(ok(upload(api, lines(*APPENDS[:3], COMPLETE, *APPENDS[3:])))) == expected

    def test_with_replacements(self, api: Api) -> None:
        operations = [*APPENDS, {"op": "replace", "text": PAGES[0]}, APPENDS[1], COMPLETE]
        assert answer(ok(upload(api, lines(*operations)))) == answer(api.plain(prompt=PAGES[0] + PAGES[1] + QUESTION))

    def test_of_messages_is_answered_by_the_chat_endpoint(self, api: Api) -> None:
        message = {"role": "user", "content": "Pages:\n"}
        asking = {"role": "user", "content": QUESTION}
        operations = [
            {"op": "append", "messages": [message]},
            *APPENDS,
            {"op": "complete", "messages": [asking], **GREEDY},
        ]
        whole = [{"role": "user", "content": "Pages:\n" + CONTEXT}, asking]
        assert answer(ok(upload(api, lines(*operations)))) == answer(api.plain_chat(messages=whole))

    def test_of_nothing_but_the_question(self, api: Api) -> None:
        assert answer(ok(upload(api, lines(COMPLETE)))) == answer(api.plain(prompt=QUESTION))

    def test_with_server_sent_events(self, api: Api) -> None:
        response = upload(api, lines(*APPENDS, {**COMPLETE, "stream": True}))
        stock = api.client.post("/v1/completions", json={**GREEDY, "prompt": CONTEXT + QUESTION, "stream": True})
        assert without_ids(events(response)) == without_ids(events(stock))

    def test_is_applied_as_it_arrives(self, api: Api) -> None:
        seen: list[int] = []

        def body() -> Iterator[bytes]:
            yield lines({"op": "open", "id": "slow", "ttl": 60})
            for append in APPENDS:
                yield lines(append)
                time.sleep(0.1)
                seen.append(ok(api.get("/slow"))["version"])
            yield lines(COMPLETE)

        assert answer(ok(upload(api, body()))) == answer(api.plain(prompt=CONTEXT + QUESTION))
        assert seen == list(range(1, 9))

    def test_curl_with_a_slow_producer(self, api: Api) -> None:
        produce = (
            "import json, sys, time\n"
            "for operation in json.loads(sys.argv[1]):\n"
            "    print(json.dumps(operation), flush=True)\n"
            "    time.sleep(0.05)\n"
        )
        producer = subprocess.Popen(
            [sys.executable, "-c", produce, json.dumps([COMPLETE, *APPENDS])], stdout=subprocess.PIPE
        )
        url = f"{api.server.base_url}{STREAMS}/jsonl"
        done = subprocess.run(
            ["curl", "-sS", "-N", "-T", "-", url], stdin=producer.stdout, capture_output=True, check=True
        )
        assert producer.stdout is not None
        producer.stdout.close()
        assert producer.wait() == 0
        assert answer(json.loads(done.stdout)) == answer(api.plain(prompt=CONTEXT + QUESTION))


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "status", "where"),
        [
            (b"", 422, "complete"),
            (lines(*APPENDS), 422, "complete"),
            (lines(COMPLETE, COMPLETE), 422, "Line 2: a second complete"),
            (lines(APPENDS[0]) + b"{oops\n", 422, "Line 2: not JSON"),
            (b"\xff\n", 422, "Line 1"),
            (lines([1]), 422, "Line 1"),
            (lines({"op": "explode"}), 422, "open, append, replace, complete"),
            (lines(APPENDS[0], {"op": "open"}), 409, "Line 2"),
            (lines({"op": "append"}), 422, "Line 1"),
            (lines({"op": "append", "text": "a", "txt": "b"}), 422, "txt"),
            (lines(APPENDS[0], {"op": "append", "token_ids": [1]}), 400, "Line 2"),
            (lines({"op": "append", "text": "word " * 6000}), 400, "4095"),
            (lines({"op": "open", "model": "nobody/none"}), 404, "Line 1"),
            (lines(APPENDS[0], {"op": "append", "text": "b", "expected_version": 7}), 409, "Line 2"),
            (lines(APPENDS[0], {**COMPLETE, "endpoint": "embeddings"}), 422, "endpoint"),
            (lines(APPENDS[0], {**COMPLETE, "endpoint": "chat/completions"}), 400, "holds text"),
            (lines(APPENDS[0], {**COMPLETE, "max_tokens": "many"}), 422, "max_tokens"),
            (lines({"op": "append", "text": "x" * (17 * 2**20)}), 413, "16777216"),
            (lines({"op": "open"}) + b"[" * 200_000 + b"\n", 422, "Line 2"),
        ],
    )
    def test_name_the_line_and_close_the_stream(self, api: Api, body: bytes, status: int, where: str) -> None:
        assert where in refused(upload(api, body), status)
        assert open_streams(api) == []

    def test_an_id_that_is_taken_belongs_to_somebody_else(self, api: Api) -> None:
        api.open(id="theirs")
        refused(upload(api, lines({"op": "open", "id": "theirs"}, COMPLETE)), 409)
        assert [stream["id"] for stream in open_streams(api)] == ["theirs"]


def test_fifty_clients_that_vanish_in_the_middle_close_their_streams(api: Api) -> None:
    """BUGS 7: the connection is reset in the middle of a chunk."""
    address = urlsplit(api.server.base_url)
    for n in range(50):
        client = socket.create_connection((address.hostname, address.port))
        head = f"POST {STREAMS}/jsonl HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = lines(*APPENDS[: n % 8], COMPLETE)
        begun = b"40\r\n" + b'{"op": "app'[: n % 12]
        client.sendall(head.encode() + f"{len(body):x}\r\n".encode() + body + b"\r\n" + begun)
        time.sleep(0.005 * (n % 5))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.close()
    deadline = time.monotonic() + 20
    while open_streams(api):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answer(ok(upload(api, lines(*APPENDS, COMPLETE)))) == answer(api.plain(prompt=CONTEXT + QUESTION))
