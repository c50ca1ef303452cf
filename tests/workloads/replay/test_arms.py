"""The arms against real servers: the same prompts in each of them, and what the engine computed of them."""

from __future__ import annotations

import asyncio
import itertools
import random

import httpx
import pytest

from http_calls import STREAMS
from replay_traces import query
from stream2llm import AsyncClient
from stream2llm.workloads.events import Arm, Clock, Run, What, read_events
from stream2llm.workloads.replay import server as servers
from stream2llm.workloads.replay.arms import arm_named
from stream2llm.workloads.replay.completions import Completions
from stream2llm.workloads.replay.content import Contents, Vocabulary
from stream2llm.workloads.replay.counters import counted, over_the_run
from stream2llm.workloads.replay.plan import plan
from stream2llm.workloads.replay.prefill import Prefills
from stream2llm.workloads.replay.run import record

WORDS = Vocabulary()
BLOCK = 32
TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 3
# Each has pieces that come while a write is under way (gaps of 0) and pieces that come later.
APPENDS = [query(f"append-{n}", [0.05, 0.0, 0.0, 0.3, 0.1], tokens=70 + n) for n in range(3)]
REPLACES = [
    query("replaced in the middle", [0.05, 0.2, 0.2, 0.1], replaces={1}),
    query("replaced with the question", [0.05, 0.2, 0.2], replaces={2}),
    query("replaced at once", [0.1], replaces={0}, opening=0),
    query("one piece", [0.1], opening=0),
]
TEXTS = [query("text", [0.05, 0.1, 0.1], text=TEXT), query("replaced text", [0.05, 0.1], text=TEXT, replaces={1})]
_serial = itertools.count()


def replayed(address, arm, queries, path, salt=None, seed=0):
    """The log of these queries, all arriving at once."""

    async def run():
        header = Run(clock=Clock.REAL, arm=Arm(arm), workload="test", qps=1, queries=len(queries), seed=seed)
        async with servers.connect(address) as http, AsyncClient(address, model="tiny") as client:
            completions = Completions(http, "tiny", salt or f"run-{next(_serial)}", max_tokens=4)
            way = arm_named(arm, client, completions)
            planned = plan(queries, [0.0] * len(queries))
            return await record(path, header, planned, way, count=lambda: counted(http), stop=asyncio.Event())

    return asyncio.run(run())


def cached_after(address, queries, salt, seed=0):
    """Prompt tokens that the server finds in its cache when it is asked all prompts again, and those of all prompts."""

    async def run():
        async with servers.connect(address) as http:
            before = await counted(http)
            for each in queries:
                prompt = Contents(each, WORDS, seed).prompt(each.context)
                await Completions(http, "tiny", salt).ask(prompt)
            return over_the_run(before, await counted(http))

    found = asyncio.run(run())
    return found["prompt_tokens_cached"], found["prompt_tokens"]


@pytest.mark.parametrize(
    ("arm", "queries"),
    [
        ("wait", [*APPENDS, *REPLACES]),
        ("warm", [*APPENDS, *REPLACES]),
        ("stream", [*APPENDS, *REPLACES]),
        ("stream", TEXTS),
    ],
    ids=["wait", "warm", "stream", "stream-text"],
)
def test_every_arm_has_the_engine_compute_the_prompts_of_the_trace(server, tmp_path, arm, queries):
    salt = f"prompts-{next(_serial)}"
    measured = replayed(server.base_url, arm, queries, tmp_path / "log.jsonl", salt)
    assert (measured.failed, len(measured.completion)) == (0, len(queries))
    cached, prompt_tokens = cached_after(server.base_url, queries, salt)
    assert cached > prompt_tokens - len(queries) * (BLOCK + 1)


@pytest.mark.parametrize(("arm", "answers"), [("wait", True), ("warm", True)])
def test_a_stock_server_takes_the_stock_arms(stock_server, tmp_path, arm, answers):
    measured = replayed(stock_server.base_url, arm, APPENDS, tmp_path / "log.jsonl")
    assert len(measured.completion) == len(APPENDS)
    assert measured.work_ratio is None, "a stock server does not say what it computed"
    calls = len(APPENDS) if arm == "wait" else sum(len(each.operations) for each in APPENDS)
    assert measured.counters["generation_tokens"] == calls + 3 * len(APPENDS)


def test_streaming_opens_a_stream_for_each_query_and_leaves_none(server, tmp_path):
    queries = [*APPENDS, *REPLACES]
    measured = replayed(server.base_url, "stream", queries, tmp_path / "log.jsonl")
    single = 2  # of one operation without an opening: there is nothing to stream
    assert measured.counters["opened"] == measured.counters["finals"] == len(queries) - single
    assert httpx.get(f"{server.base_url}{STREAMS}").json()["data"] == []


def test_nearly_everything_is_computed_before_the_question_and_nothing_twice(server, tmp_path):
    measured = replayed(server.base_url, "stream", APPENDS, tmp_path / "log.jsonl")
    tokens = sum(each.tokens for each in APPENDS)
    assert measured.counters["context_tokens_computed"] > 0.5 * tokens
    assert measured.work_ratio == pytest.approx(1, abs=0.02)


def test_pieces_that_come_during_a_write_go_with_the_next_one(server, tmp_path):
    path = tmp_path / "log.jsonl"
    measured = replayed(server.base_url, "stream", APPENDS[:1], path)
    _, records = read_events(path)
    events = [event for event in records if getattr(event, "what", None) in (What.SENT, What.ACKED)]
    sent = [event for event in events if event.what is What.SENT]
    acked = [event for event in events if event.what is What.ACKED]
    assert [event.operation for event in sent] == [event.operation for event in acked] == [0, 1, 2, 3]
    assert measured.counters["versions"] < 1 + 4
    assert acked[-1].computed >= BLOCK


def test_runs_on_one_server_do_not_find_each_others_prompts(server, tmp_path):
    replayed(server.base_url, "wait", APPENDS, tmp_path / "first.jsonl")
    again = replayed(server.base_url, "wait", APPENDS, tmp_path / "second.jsonl")
    assert again.counters["prompt_tokens_cached"] == 0


def test_a_query_that_the_server_refuses_is_an_error_and_the_others_are_answered(server, tmp_path):
    queries = [APPENDS[0], query("long", [0.05, 0.05, 0.05], tokens=3000), APPENDS[1]]
    for arm in ("wait", "warm", "stream"):
        measured = replayed(server.base_url, arm, queries, tmp_path / f"{arm}.jsonl")
        (failed,) = [item for item in measured.queries if item.error]
        assert failed.query == "long"
        assert "4096" in failed.error
        assert len(measured.completion) == 2


def test_a_server_that_has_gone_fails_every_query(tmp_path):
    measured = replayed("http://127.0.0.1:9", "wait", APPENDS, tmp_path / "log.jsonl")
    assert measured.failed == len(APPENDS)


def test_prefills_are_of_fresh_prompts(server):
    async def run():
        async with servers.connect(server.base_url) as http:
            prefills = Prefills(Completions(http, "tiny", "probes"), WORDS)
            before = await counted(http)
            seconds = [await prefills.seconds(tokens) for tokens in (512, 512)]
            return seconds, over_the_run(before, await counted(http))

    seconds, found = asyncio.run(run())
    assert min(seconds) > 0
    assert (found["prompt_tokens"], found["prompt_tokens_cached"]) == (1024, 0)


def test_ids_that_the_model_does_not_have_are_refused_with_the_option(server):
    async def run():
        async with servers.connect(server.base_url) as http:
            await Prefills(Completions(http, "tiny", "probes"), Vocabulary(1000, 10**6)).seconds(8)

    with pytest.raises(servers.ServerError, match="--vocabulary FIRST:LAST"):
        asyncio.run(run())


class TestServed:
    def served(self, address, model=None):
        async def run():
            async with servers.connect(address) as http:
                return await servers.served(http, model)

        return asyncio.run(run())

    def test_the_first_model_and_its_length(self, server):
        assert self.served(server.base_url + "/v1") == servers.Served("tiny", 4096)

    def test_a_model_that_it_does_not_have(self, server):
        with pytest.raises(servers.ServerError, match="does not serve the model 'other'; it has: tiny"):
            self.served(server.base_url, "other")

    def test_no_server(self):
        with pytest.raises(servers.ServerError, match=r"no server answers at http://127\.0\.0\.1:9"):
            self.served("http://127.0.0.1:9")


def test_stopping_closes_the_streams(server, tmp_path):
    async def run():
        slow = [query(f"slow-{n}-{random.random()}", [0.05, 600.0], tokens=64) for n in range(3)]
        header = Run(clock=Clock.REAL, arm=Arm.STREAM, workload="test", qps=1, queries=3)
        stop = asyncio.Event()
        async with servers.connect(server.base_url) as http, AsyncClient(server.base_url) as client:
            arm = arm_named("stream", client, Completions(http, "tiny", "stopped"))

            async def stop_when_open():
                while len((await http.get(STREAMS)).json()["data"]) < 3:  # noqa: ASYNC110 (it is the server that changes)
                    await asyncio.sleep(0.05)
                stop.set()

            stopping = asyncio.create_task(stop_when_open())
            planned = plan(slow, [0.0] * 3)
            measured = await record(tmp_path / "log", header, planned, arm, count=lambda: counted(http), stop=stop)
            await stopping
            return measured, (await http.get(STREAMS)).json()["data"]

    measured, left = asyncio.run(run())
    assert left == []
    assert measured.failed == 3
    assert measured.counters["opened"] == 3
