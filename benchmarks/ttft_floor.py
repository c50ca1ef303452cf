"""TTFT after the last chunk against the floor: stock vLLM on the same prompt, all of it cached already.

Two servers on one machine, one of them idle at any time; each prompt is measured on both, in turn. The stock server has
answered the prompt before, so its prefix cache holds all of it: no server can do better. On the other server the prompt
is streamed in chunks, the server is given time to prefill, then the last chunk is handed over and the answer asked for:
in one request with the question (`ratio`), and as a write of its own before the question (`ratio_written`), which costs
a round trip and a step more.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import httpx
from benchmarks._servers import serving, tiny_model

from stream2llm import Client

CHUNK_WORDS = 4  # about 16 tokens


def prompt_chunks(rng: random.Random, chunks: int) -> list[str]:
    """Chunks of about 16 tokens: every word is followed by a number."""
    words = ["prefill", "overlaps", "retrieval", "stream", "context", "cache", "block", "token", "page", "search"]
    return [
        " ".join(f"{rng.choice(words)} {rng.randrange(1000)}" for _ in range(CHUNK_WORDS)) + ". " for _ in range(chunks)
    ]


def first_token_s(response: httpx.Response, start: float) -> float:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            return time.perf_counter() - start
    raise RuntimeError("the answer had no token")


def stock_ttft(client: httpx.Client, prompt: str) -> float:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    start = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        return first_token_s(response, start)


def streamed_ttft(client: Client, chunks: list[str], question: str, *, written: bool) -> float:
    with client.stream(text=chunks[0]) as stream:
        for chunk in chunks[1:-1]:
            stream.append(chunk)
        while stream.status().state in ("waiting", "prefilling"):
            time.sleep(0.01)
        rest = question if written else chunks[-1] + question
        start = time.perf_counter()
        if written:
            stream.append(chunks[-1])
        for _ in stream.complete(prompt=rest, max_tokens=1, temperature=0, stream=True):
            return time.perf_counter() - start
    raise RuntimeError("the answer had no token")


def measure(prompts: int, chunks: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    model = tiny_model()
    with (
        serving.running_server(
            serving.STOCK, model, "--dtype", "float32", "--block-size", "32", *serving.SMALL
        ) as stock,
        serving.running_server(serving.OURS, model, *serving.SMALL) as ours,
        httpx.Client(base_url=stock.base_url, timeout=60) as stock_client,
        Client(ours.base_url, model="tiny") as client,
    ):
        floor: list[float] = []
        streamed: list[float] = []
        written: list[float] = []
        for number in range(prompts + 3):
            question = "What is said of the cache?"
            parts = prompt_chunks(rng, chunks)
            whole = "".join(parts) + question
            stock_ttft(stock_client, whole)
            times = (
                stock_ttft(stock_client, whole),
                streamed_ttft(client, parts, question, written=False),
                streamed_ttft(client, prompt_chunks(rng, chunks), question, written=True),
            )
            if number >= 3:  # the first ones warm both servers up
                for series, seconds in zip((floor, streamed, written), times, strict=True):
                    series.append(seconds)
    ratios = sorted(ours_s / floor_s for ours_s, floor_s in zip(streamed, floor, strict=True))
    return {
        "benchmark": "ttft_floor",
        "model": "tiny random-weight model",
        "prompts": prompts,
        "floor_ms": round(1e3 * statistics.median(floor), 2),
        "streamed_ms": round(1e3 * statistics.median(streamed), 2),
        "ratio": round(statistics.median(streamed) / statistics.median(floor), 3),
        "ratio_written": round(statistics.median(written) / statistics.median(floor), 3),
        "ratio_p10": round(ratios[len(ratios) // 10], 3),
        "ratio_p90": round(ratios[len(ratios) * 9 // 10], 3),
        "target": 1.25,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="as all benchmarks; this one prints nothing else")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--chunks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.prompts, arguments.chunks, arguments.seed)))
