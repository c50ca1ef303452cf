import asyncio
import json
import socket
import threading
import time
import warnings
from contextlib import closing, contextmanager

import httpx
import pytest

from stream2llm import AsyncClient, Client, InvalidRequest, PrefixWarmingWarning, StreamFinished
from stream2llm.client.flow import Send
from stream2llm.client.warming import AsyncWarmer, Warmer

from .scripted_server import AT_ONCE, ScriptedServer

pytestmark = pytest.mark.filterwarnings("ignore::stream2llm.PrefixWarmingWarning")


def stock():
    return ScriptedServer(plugin=False)


def client(server, **options):
    return Client("http://server", transport=server.transport, retry=AT_ONCE, **options)


def wait_for(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def warm_ups(server):
    return [body for body in server.calls("POST", "completions") if body.get("max_tokens") == 1]


def test_one_warning_a_client_says_what_to_do():
    c = client(stock())
    with pytest.warns(PrefixWarmingWarning, match="stream2llm serve") as caught, c.stream(text="a"):
        pass
    assert [caught[0].filename, len(caught)] == [__file__, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with c.stream(text="b"):
            pass


def test_the_answer_is_to_the_whole_content():
    server = stock()
    with client(server).stream(text="a") as stream:
        stream.append("b")
        assert stream.complete(prompt="?", max_tokens=5).text == "ab?"
    assert server.calls("POST", "/completions")[-1] == {"model": "first-model", "prompt": "ab?", "max_tokens": 5}


def test_messages_are_asked_by_chat():
    server = stock()
    with client(server, model="m").stream(messages=[{"role": "user", "content": "a"}]) as stream:
        stream.append("b")
        stream.chat([{"role": "user", "content": "?"}])
    messages = [{"role": "user", "content": "ab"}, {"role": "user", "content": "?"}]
    assert server.calls("POST", "/chat/completions")[-1] == {"model": "m", "messages": messages}


def test_token_ids_are_asked_as_token_ids():
    with client(stock()).stream(token_ids=[1]) as stream:
        stream.append(token_ids=[2])
        assert stream.complete(prompt=[3]).text == "[1, 2, 3]"


def test_what_the_stream_was_opened_with_is_in_the_request_as_far_as_it_is_for_it():
    server = stock()
    everything = {"ttl": 5, "cache_salt": "s", "priority": 2, "model": "m", "add_special_tokens": False, "tools": []}
    with client(server).stream(text="a", **everything) as stream:
        stream.complete()
    with client(server).stream(messages=[{"role": "user", "content": "a"}], **everything) as stream:
        stream.chat()
    common = {"model": "m", "cache_salt": "s", "priority": 2}
    text, chat = server.calls("POST", "/v1/completions")[-1], server.calls("POST", "/chat/completions")[-1]
    assert text == common | {"add_special_tokens": False, "prompt": "a"}
    assert chat == common | {"tools": [], "messages": [{"role": "user", "content": "a"}]}


def test_acks_count_versions_and_leave_unknown_what_is_unknown():
    with client(stock()).stream() as stream:
        assert (stream.ack.version, stream.ack.state) == (0, "empty")
        ack = stream.append("a")
        assert (ack.version, ack.state, ack.tokens, ack.lcp) == (1, "warming", None, None)
        assert stream.replace("b").version == 2
        assert stream.status().version == 2
        assert stream.warming


def test_every_write_warms_the_cache_with_one_token():
    server = stock()
    with client(server).stream(text="a") as stream:
        wait_for(lambda: len(warm_ups(server)) == 1)
        stream.append("b")
        wait_for(lambda: len(warm_ups(server)) == 2)
    assert [body["prompt"] for body in warm_ups(server)] == ["a", "ab"]
    assert all(body["stream"] for body in warm_ups(server))


def test_nothing_is_warmed_with_nothing():
    server = stock()
    with client(server).stream(text=""):
        time.sleep(0.05)
    assert warm_ups(server) == []


def test_a_warm_up_that_fails_costs_nothing_else():
    server = ScriptedServer([None, None, None, httpx.Response(400)], plugin=False)
    with client(server).stream(text="a") as stream:
        wait_for(lambda: len(warm_ups(server)) == 1)
        assert stream.complete(prompt="?").text == "a?"


def test_a_finished_stream_takes_no_more():
    with client(stock()).stream(text="a") as stream:
        stream.complete()
        with pytest.raises(StreamFinished):
            stream.append("b")


def test_the_wrong_endpoint_is_refused_by_its_right_name():
    with client(stock()).stream(text="a") as stream:
        with pytest.raises(InvalidRequest, match=r"complete\(\)"):
            stream.chat()
        assert stream.complete().text == "a"


@pytest.mark.parametrize("prompt", [["a", "b"], 5, [1, 2]])
def test_a_prompt_that_does_not_continue_the_content_is_refused(prompt):
    with client(stock()).stream(text="a") as stream, pytest.raises(InvalidRequest):
        stream.complete(prompt)


class SlowServer:
    """Counts requests in flight; holds each until it is let go."""

    def __init__(self):
        self.prompts, self.in_flight, self.most = [], 0, 0
        self.go = threading.Event()

    def __call__(self, request):
        self.prompts.append(json.loads(request.content)["prompt"])
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        assert self.go.wait(5)
        self.in_flight -= 1
        return httpx.Response(200, content=b"data: [DONE]\n\n")


def test_one_warm_up_is_in_flight_and_the_newest_wins():
    server = SlowServer()
    http = httpx.Client(base_url="http://server", transport=httpx.MockTransport(server))
    warmer = Warmer(lambda step: http.stream(step.method, step.path, json=step.body))
    for prompt in ("a", "ab", "abc"):
        warmer.offer(Send("POST", "/v1/completions", {"prompt": prompt}))
        wait_for(lambda: server.prompts)
    server.go.set()
    wait_for(lambda: len(server.prompts) == 2 and server.in_flight == 0)
    assert (server.prompts, server.most) == (["a", "abc"], 1)


def test_what_is_not_sent_yet_is_forgotten_at_the_end():
    server = SlowServer()
    http = httpx.Client(base_url="http://server", transport=httpx.MockTransport(server))
    warmer = Warmer(lambda step: http.stream(step.method, step.path, json=step.body))
    warmer.offer(Send("POST", "/v1/completions", {"prompt": "a"}))
    wait_for(lambda: server.prompts)
    warmer.offer(Send("POST", "/v1/completions", {"prompt": "ab"}))
    warmer.stop()
    server.go.set()
    wait_for(lambda: server.in_flight == 0)
    assert server.prompts == ["a"]


def test_the_end_hangs_up_on_what_is_in_flight():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        http = httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        received = threading.Event()

        @contextmanager
        def open_response(step):
            with http.stream(step.method, step.path, json=step.body) as response:
                received.set()
                yield response

        warmer = Warmer(open_response)
        warmer.offer(Send("POST", "/v1/completions", {"prompt": "a"}))
        connection, _ = listener.accept()
        with connection, closing(http):
            connection.settimeout(5)
            sent = b""
            while not sent.endswith(b"}"):
                sent += connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert received.wait(5)
            time.sleep(0.05)
            warmer.stop()
            assert connection.recv(65536) == b""


def test_the_async_warmer_keeps_one_in_flight_and_hangs_up_at_the_end():
    async def scenario():
        prompts, cancelled = [], []
        second = asyncio.Event()

        async def hang(request):
            prompts.append(json.loads(request.content)["prompt"])
            try:
                if len(prompts) == 2:
                    second.set()
                await asyncio.sleep(0.02 if prompts == ["a"] else 60)
            except asyncio.CancelledError:
                cancelled.append(prompts[-1])
                raise
            return httpx.Response(200)

        http = httpx.AsyncClient(base_url="http://server", transport=httpx.MockTransport(hang))
        warmer = AsyncWarmer(lambda step: http.stream(step.method, step.path, json=step.body))
        for prompt in ("a", "ab", "abc"):
            warmer.offer(Send("POST", "/v1/completions", {"prompt": prompt}))
            await asyncio.sleep(0.001)
        await second.wait()
        await warmer.stop()
        assert (prompts, cancelled) == (["a", "abc"], ["abc"])

    asyncio.run(scenario())


def test_the_async_client_falls_back_as_well():
    server = stock()

    async def scenario():
        c = AsyncClient("http://server", transport=server.transport, retry=AT_ONCE)
        async with c.stream(text="a") as stream:
            await asyncio.sleep(0.02)
            await stream.append("b")
            return await stream.complete(prompt="?")

    with pytest.warns(PrefixWarmingWarning) as caught:
        answer = asyncio.run(scenario())
    assert answer.text == "ab?"
    assert [caught[0].filename, len(caught)] == [__file__, 1]
    assert warm_ups(server)[0]["prompt"] == "a"
