"""Inter-token latency of plain requests beside context streams that are being written to, over the same without any.

A few plain completions decode over HTTP, in blocks of some seconds, in turn in three arms on one server:

base      nothing else
streams   a process of its own keeps 32 streams open and appends a chunk to each every half second
writes    the same with empty chunks: as many writes and a stream table as large, but nothing to prefill

`ratio_p99` and `ratio_p50` are `streams` over `base`, of the gaps between events as the client reads them.
`engine_ratio_*` are the same from the server's own histogram, whose timestamps are the engine core's: client and HTTP
count only as far as they hold the engine up: its cores, all but one, are its own. `writes_*` are `writes` over `base`:
how much of it is not prefill. The least and the greatest ratio are over the rounds. `base_halves_*` is the second half
of the `base` blocks over the first: a ratio no further from 1 than that means nothing. On a machine too busy the
API server hands several tokens over at once: the client's P50 is then near zero, and only the engine's figures count.

    python -m benchmarks.itl --json --serve-option "--itl-factor 1.1"

Expected: `ratio_p99` at most 1.10 where decodes are protected; without, as much as a step with prefill takes longer
than one without. `prefilled` says what that cost the streams: the share of their tokens that was computed when a block
ended. With few cores, look at `writes` first: what it loses no scheduler can give back.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import multiprocessing
import os
import random
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import httpx
from benchmarks._servers import engine_cores, serving, set_apart, tiny_model

from stream2llm import AsyncClient
from stream2llm.client import AsyncContextStream

BASE, STREAMS, WRITES = "base", "streams", "writes"
# An even number of rounds has every arm as often before as behind each other one.
ORDERS = ((BASE, STREAMS, WRITES), (WRITES, STREAMS, BASE))
TARGET = 1.10
SETTLE_S = 1.0
LEAST_EVENTS = 25  # of each completion in a block, however slow the machine is
PROMPT_TOKENS = 64
OPENING_TOKENS = 256
VOCABULARY = range(1000, 20000)
# Bounds of the server's histogram, in seconds: close enough together that a ratio of 1.1 can be told from 1.0.
BUCKETS = [0.0005 * 1.02**step for step in range(470)]
Events = list[tuple[float, str]]
HISTOGRAM = re.compile(r'vllm:inter_token_latency_seconds_bucket\{.*le="([^"]+)".*\} (\S+)')


@dataclass(frozen=True)
class Load:
    """What the writer does: `streams` streams, to each of which `chunk` tokens are appended every `every_s`."""

    base_url: str
    streams: int
    chunk: int
    every_s: float
    limit: int  # tokens at which a stream is closed and another opened


@dataclass(frozen=True)
class Block:
    """What was seen in one block: gaps between events in seconds, the server's histogram, what the writer did."""

    arm: str
    gaps: Sequence[float]
    histogram: Mapping[float, float]
    tokens: int
    writer: Mapping[str, float]


class Decodes:
    """Plain completions, and when each of their events was read; one that ends is followed by another."""

    def __init__(self, client: httpx.AsyncClient, count: int, max_tokens: int) -> None:
        dice = random.Random(5)
        prompts = [dice.choices(VOCABULARY, k=PROMPT_TOKENS) for _ in range(count)]
        self._answers: list[list[Events]] = [[] for _ in prompts]
        self._tasks = [
            asyncio.create_task(self._decode(client, prompt, max_tokens, answers))
            for prompt, answers in zip(prompts, self._answers, strict=True)
        ]

    @staticmethod
    async def _decode(client: httpx.AsyncClient, prompt: list[int], max_tokens: int, answers: list[Events]) -> None:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        while True:
            events: Events = []
            answers.append(events)
            # What an event says is looked at later: reading must not be what takes time.
            async with client.stream("POST", "/v1/completions", json={**body, "return_token_ids": True}) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        events.append((time.perf_counter(), line))

    async def further(self, count: int) -> None:
        """Wait until each has so many events more than now."""
        wanted = [seen + count for seen in self._seen()]
        while any(seen < least for seen, least in zip(self._seen(), wanted, strict=True)):
            self._raise_if_failed()
            await asyncio.sleep(0.01)

    def _seen(self) -> list[int]:
        return [sum(map(len, answers)) for answers in self._answers]

    async def stop(self) -> None:
        self._raise_if_failed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _raise_if_failed(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    def between(self, start: float, end: float) -> tuple[list[float], int]:
        """The gaps between events of an answer, and the number of tokens, in that time."""
        answers = [events for answers in self._answers for events in answers]
        seen = [[event for event in events if start <= event[0] <= end] for events in answers]
        gaps = [late - early for events in seen for (early, _), (late, _) in pairwise(events)]
        tokens = sum(
            len(json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"])
            for events in seen
            for _, line in events[1:]
        )
        return gaps, tokens


def write_until_told(load: Load, link: Connection) -> None:
    """The writer's process: for each arm named on the link, keep streams open and write, until told to stop."""
    while (arm := link.recv()) is not None:
        link.send(asyncio.run(_write_block(load, link, load.chunk if arm == STREAMS else 0)))


async def _write_block(load: Load, link: Connection, chunk: int) -> dict[str, float]:
    dice = random.Random(7)
    async with AsyncClient(load.base_url) as client:
        writers = [Writer(client, load, chunk, random.Random(dice.random())) for _ in range(load.streams)]
        await asyncio.gather(*(writer.open() for writer in writers))
        await all_ready(client)
        link.send("ready")
        tasks = [
            asyncio.create_task(writer.write_on(load.every_s * number / load.streams))
            for number, writer in enumerate(writers)
        ]
        while not link.poll():
            await asyncio.sleep(0.02)
            for task in tasks:
                if task.done():
                    task.result()
        link.recv()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        acks = await client.streams()
        await asyncio.gather(*(writer.close() for writer in writers))
    return {
        "writes": sum(writer.writes for writer in writers),
        "tokens": sum(ack.tokens for ack in acks),
        "computed": sum(ack.computed_tokens for ack in acks),
    }


async def all_ready(client: AsyncClient) -> None:
    while True:
        if all(ack.state == "ready" for ack in await client.streams()):
            return
        await asyncio.sleep(0.05)


class Writer:
    """One stream, opened anew when it has become too long."""

    def __init__(self, client: AsyncClient, load: Load, chunk: int, dice: random.Random) -> None:
        self._client, self._load, self._chunk, self._dice = client, load, chunk, dice
        self._stream: AsyncContextStream
        self._length = 0
        self.writes = 0

    async def open(self) -> None:
        self._stream = self._client.stream(token_ids=self._dice.choices(VOCABULARY, k=OPENING_TOKENS))
        self._length = OPENING_TOKENS
        await self._stream.open()

    async def write_on(self, delay_s: float) -> None:
        """Write until cancelled, at even times; the streams take turns, each with its own `delay_s`."""
        due = time.perf_counter() + delay_s
        while True:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += self._load.every_s
            if self._length + self._chunk > self._load.limit:
                await self.close()
                await self.open()
            await self._stream.append(token_ids=self._dice.choices(VOCABULARY, k=self._chunk))
            self._length += self._chunk
            self.writes += 1

    async def close(self) -> None:
        await self._stream.close()


async def measure_block(client: httpx.AsyncClient, link: Connection, arm: str, arguments: argparse.Namespace) -> Block:
    if arm != BASE:
        link.send(arm)
        await asyncio.to_thread(link.recv)
    decodes = Decodes(client, arguments.decodes, arguments.max_model_len - PROMPT_TOKENS)
    await decodes.further(1)
    await asyncio.sleep(SETTLE_S)
    gc.collect()
    gc.disable()
    before, start = await histogram(client), time.perf_counter()
    await asyncio.gather(asyncio.sleep(arguments.seconds), decodes.further(LEAST_EVENTS))
    end, after = time.perf_counter(), await histogram(client)
    gc.enable()
    await decodes.stop()
    writer: dict[str, float] = {}
    if arm != BASE:
        link.send("stop")
        writer = await asyncio.to_thread(link.recv)
    gaps, tokens = decodes.between(start, end)
    return Block(arm, gaps, {bound: count - before.get(bound, 0) for bound, count in after.items()}, tokens, writer)


async def histogram(client: httpx.AsyncClient) -> dict[float, float]:
    """The server's inter-token latencies since its start: how many were at most so many seconds."""
    text = (await client.get("/metrics")).raise_for_status().text
    return {float(bound): float(count) for bound, count in HISTOGRAM.findall(text)}


async def measure(base_url: str, link: Connection, arguments: argparse.Namespace) -> list[list[Block]]:
    """Rounds of one block for each arm; a first round, which warms up, is left out."""
    # No connection is used again: the server may be closing it.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=base_url, timeout=120, limits=limits) as client:
        rounds = []
        for number in range(-1, arguments.rounds):
            blocks = [await measure_block(client, link, arm, arguments) for arm in ORDERS[number % 2]]
            rounds.append(sorted(blocks, key=lambda block: ORDERS[0].index(block.arm)))
    return rounds[1:]


def report(rounds: Sequence[Sequence[Block]]) -> dict[str, Any]:
    base, streams, writes = ([blocks[place] for blocks in rounds] for place in range(3))
    halves = base[: (len(base) + 1) // 2], base[len(base) // 2 :]
    return {
        **ratios("", streams, base),
        "target_ratio_p99": TARGET,
        **ratios("writes_", writes, base),
        "base_halves_p99": round(client_s(halves[1], 0.99) / client_s(halves[0], 0.99), 3),
        "base_halves_engine_p99": round(engine_s(halves[1], 0.99) / engine_s(halves[0], 0.99), 3),
        "arms": {BASE: arm_figures(base), STREAMS: arm_figures(streams), WRITES: arm_figures(writes)},
    }


def ratios(prefix: str, loaded: Sequence[Block], base: Sequence[Block]) -> dict[str, float]:
    p99s = [client_s([ours], 0.99) / client_s([bare], 0.99) for ours, bare in zip(loaded, base, strict=True)]
    figures = {
        "ratio_p99": client_s(loaded, 0.99) / client_s(base, 0.99),
        "ratio_p99_min": min(p99s),
        "ratio_p99_max": max(p99s),
        "ratio_p50": client_s(loaded, 0.5) / client_s(base, 0.5),
        "engine_ratio_p99": engine_s(loaded, 0.99) / engine_s(base, 0.99),
        "engine_ratio_p50": engine_s(loaded, 0.5) / engine_s(base, 0.5),
    }
    return {prefix + name: round(value, 3) for name, value in figures.items()}


def arm_figures(blocks: Sequence[Block]) -> dict[str, float]:
    gaps = [gap for block in blocks for gap in block.gaps]
    figures = {
        "p50_ms": round(1e3 * client_s(blocks, 0.5), 2),
        "p99_ms": round(1e3 * client_s(blocks, 0.99), 2),
        "engine_p50_ms": round(1e3 * engine_s(blocks, 0.5), 2),
        "engine_p99_ms": round(1e3 * engine_s(blocks, 0.99), 2),
        "gaps": len(gaps),
        "tokens_per_event": round(sum(block.tokens for block in blocks) / len(gaps), 3),
    }
    if sent := sum(block.writer.get("tokens", 0) for block in blocks):
        figures["writes"] = sum(block.writer["writes"] for block in blocks)
        figures["prefilled"] = round(sum(block.writer["computed"] for block in blocks) / sent, 3)
    return figures


def client_s(blocks: Iterable[Block], share: float) -> float:
    gaps = sorted(gap for block in blocks for gap in block.gaps)
    return gaps[round(share * (len(gaps) - 1))]


def engine_s(blocks: Sequence[Block], share: float) -> float:
    """The quantile of the server's histograms, interpolated within its bucket."""
    bounds = sorted(blocks[0].histogram)
    counts = [sum(block.histogram[bound] for block in blocks) for bound in bounds]
    wanted = share * counts[-1]
    place = next(place for place, count in enumerate(counts) if count >= wanted)
    low, below = (bounds[place - 1], counts[place - 1]) if place else (0.0, 0.0)
    if math.isinf(bounds[place]):
        return low
    return low + (bounds[place] - low) * (wanted - below) / max(1.0, counts[place] - below)


def measure_server(base_url: str, arguments: argparse.Namespace) -> list[list[Block]]:
    limit = arguments.max_model_len // 2
    load = Load(base_url, arguments.streams, arguments.chunk, arguments.every_ms / 1000, limit)
    processes = multiprocessing.get_context("spawn")
    link, end = processes.Pipe()
    writer = processes.Process(target=write_until_told, args=(load, end), daemon=True)
    writer.start()
    end.close()  # so that reading from the link of a writer that died is an error
    rounds = asyncio.run(measure(base_url, link, arguments))
    link.send(None)
    writer.join()
    return rounds


def server_options(arguments: argparse.Namespace) -> list[str]:
    return [
        *("--max-model-len", str(arguments.max_model_len), "--max-num-batched-tokens", str(arguments.step_tokens)),
        *("--max-num-seqs", str(arguments.decodes + arguments.streams), "--enforce-eager"),
        *("--custom-histogram-buckets", json.dumps({"inter_token_latency": BUCKETS})),
        *(part for option in arguments.serve_option for part in shlex.split(option)),
    ]


def setting(arguments: argparse.Namespace) -> dict[str, Any]:
    own = {
        "model": arguments.model or "tiny random-weight model",
        "engine_cores": arguments.engine_cores,
        "serve_options": arguments.serve_option,
    }
    return {
        **(own if arguments.base_url is None else {}),
        "decodes": arguments.decodes,
        "streams": arguments.streams,
        "chunk_tokens": arguments.chunk,
        "every_ms": arguments.every_ms,
        "stream_tokens_per_s": round(arguments.streams * arguments.chunk * 1000 / arguments.every_ms),
        "rounds": arguments.rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--base-url", help="a running server; left out: one is started (its histogram is finer)")
    parser.add_argument("--model", help="default: the tiny random-weight model")
    parser.add_argument("--decodes", type=int, default=4, help="plain completions at a time")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=64, help="tokens of an append")
    parser.add_argument("--every-ms", type=float, default=500, help="between two appends to one stream")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4, help="measured in each block")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--engine-cores", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--serve-option", action="append", default=[], help="more for the server; may be given again")
    arguments = parser.parse_args()
    if arguments.base_url is not None:
        rounds = measure_server(arguments.base_url, arguments)
    else:
        options = server_options(arguments)
        model, environ = arguments.model or tiny_model(), engine_cores(arguments.engine_cores)
        with serving.running_server(serving.OURS, model, *options, environ=environ) as server:
            set_apart(arguments.engine_cores)
            rounds = measure_server(server.base_url, arguments)
    result = {"benchmark": "itl", **setting(arguments), **report(rounds)}
    if arguments.json:
        print(json.dumps(result))
        return
    for arm in (BASE, STREAMS, WRITES):
        print(f"{arm:>8}: {result['arms'][arm]}")
    print(
        f"streams over base: P99 {result['ratio_p99']} ({result['ratio_p99_min']} to {result['ratio_p99_max']}), "
        f"P50 {result['ratio_p50']}; in the engine P99 {result['engine_ratio_p99']}, P50 {result['engine_ratio_p50']}; "
        f"base against itself: P99 {result['base_halves_p99']}; wanted: P99 at most {TARGET}"
    )


if __name__ == "__main__":
    main()
