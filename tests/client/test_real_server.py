"""The SDK against real servers: ours, and vLLM's own without the plug-in."""

import asyncio
import random
import re
import time
import warnings

import httpx
import pytest

from stream2llm import (
    AsyncClient,
    Client,
    ContextTooLong,
    InvalidRequest,
    ModelNotFound,
    PrefixWarmingWarning,
    RetryPolicy,
    StreamConflict,
    StreamFinished,
    StreamNotFound,
)

TEXT = "".join(f"Page {n}: the quick brown fox jumps over {n} lazy dogs. " for n in range(60))
GREEDY = {"temperature": 0, "max_tokens": 16}


def fresh():
    """A cache salt that nothing in the prefix cache has."""
    return f"salt-{random.random()}"


def cold(server, endpoint="completions", **body):
    """A stock answer with nothing in the prefix cache."""
    body = {"model": server.model, "cache_salt": fresh(), **GREEDY, **body}
    answer = httpx.post(f"{server.base_url}/v1/{endpoint}", json=body, timeout=60).json()["choices"][0]
    return answer["text"] if endpoint == "completions" else answer["message"]["content"]


def metric(server, name, **labels):
    """The sum of a counter or gauge over all label sets that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = httpx.get(f"{server.base_url}/metrics").text.splitlines()
    found = [line for line in lines if re.match(rf"{name}[{{ ]", line) and all(label in line for label in wanted)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def client(server):
    with Client(server.base_url) as client:
        yield client


def test_the_answer_is_that_of_a_cold_stock_request(server, client):
    with client.stream(text=TEXT[:700]) as stream:
        ack = stream.append(TEXT[700:1500])
        assert (ack.version, ack.state in ("waiting", "prefilling", "ready")) == (2, True)
        assert 0 < ack.lcp < ack.tokens
        stream.replace(TEXT[:1000] + "Something else. ")
        answer = stream.complete(prompt="\nWhy?", **GREEDY)
    assert answer.text == cold(server, prompt=TEXT[:1000] + "Something else. \nWhy?")
    assert answer.usage["completion_tokens"] == GREEDY["max_tokens"]
    assert answer.finish_reason == "length"


def test_a_streamed_answer_is_the_same_a_token_a_piece(server, client):
    with client.stream(text=TEXT) as stream:
        answer = stream.complete(prompt="\nWhy?", stream=True, **GREEDY)
        pieces = list(answer)
    assert answer.text == cold(server, prompt=TEXT + "\nWhy?")
    assert len(pieces) == answer.usage["completion_tokens"] == GREEDY["max_tokens"]


def test_chat_is_the_same_with_pages_inside_the_users_message(server, client):
    system = {"role": "system", "content": "Be brief."}
    with client.stream(messages=[system, {"role": "user", "content": "Pages: "}]) as stream:
        stream.append(TEXT)
        stream.append("Question: why?")
        answer = stream.chat(stream=True, **GREEDY)
        assert all(piece.text or piece.finish_reason for piece in answer)
    messages = [system, {"role": "user", "content": f"Pages: {TEXT}Question: why?"}]
    assert answer.text == cold(server, "chat/completions", messages=messages)


def test_token_ids_are_continued_by_token_ids(server, client):
    ids = list(range(100, 300))
    with client.stream(token_ids=ids[:80]) as stream:
        assert stream.append(token_ids=ids[80:]).tokens == 200
        answer = stream.complete(prompt=[7, 8], **GREEDY)
    assert answer.text == cold(server, prompt=[*ids, 7, 8])


def test_an_emoji_may_be_cut_in_two(server, client):
    with client.stream(text="a \ud83c") as stream:
        stream.append("\udf89 b")
        assert stream.complete(prompt="?", **GREEDY).text == cold(server, prompt="a 🎉 b?")


def test_streams_are_listed_while_they_are_open(client):
    with client.stream(text="a", ttl=60) as stream:
        [listed] = [ack for ack in client.streams() if ack.id == stream.id]
        assert listed.expires_at - listed.created_at == pytest.approx(60, abs=1)
    assert stream.id not in [ack.id for ack in client.streams()]


def test_an_expired_stream_is_opened_again_by_the_next_write(server, client):
    with client.stream(text=TEXT[:300], ttl=0.3) as stream:
        time.sleep(0.6)
        with pytest.raises(StreamNotFound):
            stream.status()
        ack = stream.append(TEXT[300:600])
        assert (ack.reopened, ack.version) == (True, 1)
        time.sleep(0.6)
        assert stream.complete(prompt="?", **GREEDY).text == cold(server, prompt=TEXT[:600] + "?")


def test_another_writer_is_a_conflict(server, client):
    with client.stream(text="a") as stream:
        httpx.post(f"{server.base_url}/v1/context_streams/{stream.id}/append", json={"text": "b"})
        with pytest.raises(StreamConflict) as raised:
            stream.append("c")
        assert raised.value.version == 2


def test_a_stream_finished_by_somebody_else_takes_no_more(server, client):
    with client.stream(text="a") as stream:
        finish = f"{server.base_url}/v1/context_streams/{stream.id}/completions"
        httpx.post(finish, json={"prompt": "b", "max_tokens": 1}).raise_for_status()
        for use in (lambda: stream.append("c"), stream.complete):
            with pytest.raises(StreamFinished):
                use()


@pytest.mark.parametrize(
    ("opening", "kind", "param"),
    [
        ({"text": "word " * 9000}, ContextTooLong, None),
        ({"token_ids": [1] * 4096}, ContextTooLong, None),
        ({"text": "a", "model": "nope"}, ModelNotFound, "model"),
        ({"text": "a", "ttl": -1}, InvalidRequest, "ttl"),
        ({"token_ids": [10**7]}, InvalidRequest, "token_ids"),
    ],
)
def test_a_refusal_is_the_fitting_exception(client, opening, kind, param):
    with pytest.raises(kind) as raised, client.stream(**opening):
        pass
    assert param in (None, raised.value.param)


def test_a_refused_write_or_completion_leaves_the_stream_as_it_was(server, client):
    with client.stream(text="a") as stream:
        with pytest.raises(ContextTooLong):
            stream.append("word " * 9000)
        with pytest.raises(InvalidRequest):
            stream.complete(prompt="?", max_tokens=-1)
        with pytest.raises(InvalidRequest):
            stream.chat()
        assert stream.append("b").version == 2
        assert stream.complete(prompt="?", **GREEDY).text == cold(server, prompt="ab?")


def test_leaving_an_answer_half_read_stops_the_server(server, client):
    with client.stream(text=TEXT) as stream:
        answer = stream.complete(stream=True, max_tokens=3600, ignore_eos=True)
        next(answer)
        assert metric(server, "vllm:num_requests_running") >= 1
    wait_for(lambda: metric(server, "vllm:num_requests_running") == 0)


class Lossy(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A real transport that loses requests and answers by a seeded dice."""

    def __init__(self, seed):
        self._dice = random.Random(seed)
        self._sync, self._async = httpx.HTTPTransport(), httpx.AsyncHTTPTransport()
        self.lost = 0

    def _lose(self, chance, error, request):
        if self._dice.random() < chance:
            self.lost += 1
            raise error("lost", request=request)

    def handle_request(self, request):
        self._lose(0.2, httpx.ConnectError, request)
        response = self._sync.handle_request(request)
        response.read()
        self._lose(0.3, httpx.ReadError, request)
        return response

    async def handle_async_request(self, request):
        self._lose(0.2, httpx.ConnectError, request)
        response = await self._async.handle_async_request(request)
        await response.aread()
        self._lose(0.3, httpx.ReadError, request)
        return response

    def close(self):
        self._sync.close()

    async def aclose(self):
        await self._async.aclose()


PERSISTENT = RetryPolicy(retries=30, first_delay=0.001, longest_delay=0.01)


def random_writes(seed):
    dice = random.Random(seed)
    return [(dice.choice(["append", "append", "replace"]), TEXT[: dice.randrange(20, 900)]) for _ in range(8)]


def written(writes):
    content = ""
    for how, text in writes:
        content = content + text if how == "append" else text
    return content


@pytest.mark.parametrize("seed", range(4))
def test_losses_on_the_network_lose_and_double_nothing(server, seed):
    transport, writes = Lossy(seed), random_writes(seed)
    with Client(server.base_url, transport=transport, retry=PERSISTENT) as client, client.stream(text="") as stream:
        for how, text in writes:
            getattr(stream, how)(text)
        answer = stream.complete(prompt="?", **GREEDY)
    assert transport.lost > 0
    assert answer.text == cold(server, prompt=written(writes) + "?")


def test_losses_are_overcome_by_the_async_client_too(server):
    transport, writes = Lossy(5), random_writes(5)

    async def scenario():
        client = AsyncClient(server.base_url, transport=transport, retry=PERSISTENT)
        async with client, client.stream(text="") as stream:
            for how, text in writes:
                await getattr(stream, how)(text)
            answer = await stream.complete(prompt="?", stream=True, **GREEDY)
            return "".join([piece.text async for piece in answer])

    assert asyncio.run(scenario()) == cold(server, prompt=written(writes) + "?")
    assert transport.lost > 0


class TestStockServer:
    """Without the plug-in: the same answers, from a prefix cache that was warmed."""

    pytestmark = pytest.mark.filterwarnings("ignore::stream2llm.PrefixWarmingWarning")

    @pytest.fixture
    def client(self, stock_server):
        with Client(stock_server.base_url) as client:
            yield client

    def test_one_warning_says_so(self, client):
        with pytest.warns(PrefixWarmingWarning, match="no context streams"), client.stream(text="a"):
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with client.stream(text="a") as stream:
                assert stream.append("b").tokens is None

    @pytest.mark.parametrize("streamed", [False, True])
    def test_the_answer_is_that_of_a_cold_request(self, stock_server, client, streamed):
        with client.stream(text=TEXT[:500]) as stream:
            stream.append(TEXT[500:2000])
            stream.replace(TEXT[:1200])
            answer = stream.complete(prompt="\nWhy?", stream=streamed, **GREEDY)
            if streamed:
                list(answer)
        assert answer.text == cold(stock_server, prompt=TEXT[:1200] + "\nWhy?")

    def test_chat_and_token_ids_are_answered_as_well(self, stock_server, client):
        with client.stream(messages=[{"role": "user", "content": "Pages: "}]) as stream:
            stream.append(TEXT)
            answer = stream.chat(**GREEDY)
        messages = [{"role": "user", "content": "Pages: " + TEXT}]
        assert answer.text == cold(stock_server, "chat/completions", messages=messages)
        with client.stream(token_ids=list(range(100, 200))) as stream:
            assert stream.complete([5], **GREEDY).text == cold(stock_server, prompt=[*range(100, 200), 5])

    def test_the_context_is_computed_before_the_question_comes(self, stock_server, client):
        with client.stream(text=TEXT, cache_salt=fresh()) as stream:
            wait_for(lambda: metric(stock_server, "vllm:num_requests_running") == 0)
            hits = metric(stock_server, "vllm:prefix_cache_hits_total")
            prompt_tokens = stream.complete(prompt="\nWhy?", **GREEDY).usage["prompt_tokens"]
        assert metric(stock_server, "vllm:prefix_cache_hits_total") - hits > 0.9 * prompt_tokens

    def test_the_question_hangs_up_on_a_warm_up_under_way(self, stock_server, client):
        before = metric(stock_server, "vllm:request_success_total")
        with client.stream(text=TEXT * 4, cache_salt=fresh()) as stream:
            time.sleep(0.1)  # of the warm-up's half second or more
            answer = stream.complete(prompt="?", **GREEDY)
        assert answer.text == cold(stock_server, prompt=TEXT * 4 + "?")
        completed_but_the_warm_up = 2
        wait_for(lambda: metric(stock_server, "vllm:num_requests_running") == 0)
        assert metric(stock_server, "vllm:request_success_total") - before == completed_but_the_warm_up

    def test_the_async_client_falls_back_as_well(self, stock_server):
        async def scenario():
            async with AsyncClient(stock_server.base_url) as client, client.stream(text=TEXT) as stream:
                await stream.append("More. ")
                return (await stream.complete(prompt="?", **GREEDY)).text

        assert asyncio.run(scenario()) == cold(stock_server, prompt=TEXT + "More. ?")
