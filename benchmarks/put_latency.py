"""Latency of a write to a context stream over HTTP, and how it grows with the prompt.

Appends `--chunks` chunks of 16 tokens to a stream, one after the other, and times each from sending the request to
having read the answer, as a client on the same machine sees it. Repeats that on `--repeats` fresh streams. Before each
write it waits until the stream is prefilled: an op waits for the step under way, and that is the model's time, which
does grow with the context (with --busy it is part of what is measured). Starts a server with the tiny random-weight
model, or measures the one at --base-url, which needs a --max-model-len that `--chunks` times 16 tokens fit into.

    python -m benchmarks.put_latency

Prints one JSON object: `put_to_ack_ms` (median and p95 over all writes), and `growth`, the cost of the last chunk over
that of the fifth (medians of a window of writes around each; median, least and greatest over the repeats).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import httpx
from benchmarks._servers import serving, tiny_model

CHUNK_TOKENS = 16
EARLY = 5
WINDOW = 9  # writes around the fifth and at the end, whose median is taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--base-url", help="a running server; left out: one is started")
    parser.add_argument("--json", action="store_true", help="as all benchmarks; this one prints nothing else")
    parser.add_argument("--api-key")
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", choices=["text", "token_ids", "messages"], default="text")
    parser.add_argument("--pause-ms", type=float, default=5.0, help="between writes")
    parser.add_argument("--busy", action="store_true", help="write without waiting for the prefill")
    arguments = parser.parse_args()
    if arguments.base_url is not None:
        print(json.dumps(measure(arguments.base_url, arguments)))
        return
    longest = (arguments.chunks + 64) * CHUNK_TOKENS
    options = ("--max-model-len", str(longest), "--max-num-batched-tokens", "512", "--enforce-eager")
    with serving.running_server(serving.OURS, tiny_model(), *options) as server:
        print(json.dumps({"model": "tiny random-weight model", **measure(server.base_url, arguments)}))


def measure(base_url: str, arguments: argparse.Namespace) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {arguments.api_key}"} if arguments.api_key else {}
    with httpx.Client(base_url=base_url, headers=headers, timeout=60) as client:
        pause_s = arguments.pause_ms / 1000
        append_chunks(client, arguments.kind, 20, pause_s, arguments.busy, seed=-1)  # warm up
        runs = [
            append_chunks(client, arguments.kind, arguments.chunks, pause_s, arguments.busy, seed)
            for seed in range(arguments.repeats)
        ]
    setting = {"kind": arguments.kind, "pause_ms": arguments.pause_ms, "busy": arguments.busy}
    targets = {"put_to_ack_ms": 5.0, "growth": 1.5}
    return {"benchmark": "put_latency", **setting, **report(runs), "targets": targets}


def append_chunks(client: httpx.Client, kind: str, chunks: int, pause_s: float, busy: bool, seed: int) -> list[float]:
    """The latency of each append to one stream, in seconds."""
    dice = random.Random(seed)
    first = {"messages": [{"role": "user", "content": "Pages:"}]} if kind == "messages" else {}
    stream = client.post("/v1/context_streams", json=first).raise_for_status().json()["id"]
    latencies = []
    for _ in range(chunks):
        body = chunk(kind, dice)
        start = time.perf_counter()
        client.post(f"/v1/context_streams/{stream}/append", json=body).raise_for_status()
        latencies.append(time.perf_counter() - start)
        time.sleep(pause_s)
        while not busy and client.get(f"/v1/context_streams/{stream}").json()["state"] not in ("ready", "empty"):
            pass
    client.delete(f"/v1/context_streams/{stream}").raise_for_status()
    return latencies


WORDS = ["the", "of", "and", "to", "in", "is", "that", "for", "as", "was", "with", "by", "on", "are", "from", "at"]


def chunk(kind: str, dice: random.Random) -> dict[str, object]:
    """About 16 tokens: common words are one token each in every vocabulary."""
    if kind == "token_ids":
        return {"token_ids": [dice.randrange(1000, 20000) for _ in range(CHUNK_TOKENS)]}
    return {"text": "".join(f" {dice.choice(WORDS)}" for _ in range(CHUNK_TOKENS))}


def report(runs: list[list[float]]) -> dict[str, object]:
    every = sorted(1000 * latency for run in runs for latency in run)
    early = [statistics.median(run[EARLY - 1 - WINDOW // 2 : EARLY + WINDOW // 2]) for run in runs]
    late = [statistics.median(run[-WINDOW:]) for run in runs]
    growth = [last / fifth for fifth, last in zip(early, late, strict=True)]
    return {
        "chunks": len(runs[0]),
        "chunk_tokens": CHUNK_TOKENS,
        "repeats": len(runs),
        "put_to_ack_ms": {
            "median": round(statistics.median(every), 3),
            "p95": round(every[int(0.95 * (len(every) - 1))], 3),
            "max": round(every[-1], 3),
        },
        "fifth_chunk_ms": round(1000 * statistics.median(early), 3),
        "last_chunk_ms": round(1000 * statistics.median(late), 3),
        "growth": {
            "median": round(statistics.median(growth), 3),
            "min": round(min(growth), 3),
            "max": round(max(growth), 3),
        },
    }


if __name__ == "__main__":
    main()
