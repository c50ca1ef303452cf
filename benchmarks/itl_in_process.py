"""Inter-token latency of decodes beside context streams that are written to, without HTTP: what scheduling does to it.

`benchmarks.itl` measures the same over HTTP, where on few cores the API server and the clients take time from the
engine. Here the engine core is stepped by hand and its ops are called between two steps, as its own loop does: a gap is
the time from the end of one step to the end of the next, ops included. Blocks of some seconds in turn, with garbage
collection off:

base      `--decodes` requests decode, nothing else
streams   32 streams are open besides, and each gets a chunk every half second

`ratio_p99` and `ratio_p50` are `streams` over `base`: medians over the rounds, with the least and the greatest;
`prefilled` is the share of the streams' tokens that was computed at the end of a block.

    python -m benchmarks.itl_in_process --json

Expected: at most 1.10 at P99 with the factor 1.1. Without protection (`--itl-factor off`) as much as a step with
prefill takes longer than one without.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from benchmarks._servers import tiny_model

from stepping import BLOCK, Engine, running_engine
from stream2llm.embedded import resolve_model

TARGET = 1.10
PROMPT_TOKENS = 64
OPENING_TOKENS = 256
LIMIT = 4096  # tokens at which a stream is closed and another opened
VOCABULARY = range(1000, 20000)


@dataclass(frozen=True)
class Block:
    """Seconds between the ends of steps, and the share of the streams' tokens that was computed."""

    gaps: Sequence[float]
    prefilled: float = 1.0

    def at(self, share: float) -> float:
        gaps = sorted(self.gaps)
        return gaps[round(share * (len(gaps) - 1))]


class Writer:
    """Open streams that take turns to get a chunk, each every `every_s`."""

    def __init__(self, engine: Engine, streams: int, chunk: int, every_s: float, serial: Iterator[int]) -> None:
        self._engine, self._chunk, self._serial = engine, chunk, serial
        self._dice = random.Random(7)
        self._streams = [self._open() for _ in range(streams)]
        self._between = every_s / streams
        self._due = 0.0
        self._turn = 0

    def _open(self) -> tuple[str, list[int]]:
        name, tokens = f"stream-{next(self._serial)}", self._dice.choices(VOCABULARY, k=OPENING_TOKENS)
        self._engine.open(name, tokens)
        return name, tokens

    def start(self, now: float) -> None:
        self._due = now

    def write(self, now: float) -> None:
        """What is due."""
        while self._due <= now:
            self._due += self._between
            self._turn = (self._turn + 1) % len(self._streams)
            name, tokens = self._streams[self._turn]
            if len(tokens) + self._chunk > LIMIT:
                self._engine.close(name)
                self._streams[self._turn] = self._open()
                continue
            keep = len(tokens)
            tokens += self._dice.choices(VOCABULARY, k=self._chunk)
            self._engine.put(name, tokens, keep=keep)

    def close(self) -> float:
        """Close all; the share of their tokens that was computed."""
        acks = [self._engine.status(name) for name, _ in self._streams]
        for name, _ in self._streams:
            self._engine.close(name)
        return sum(ack["computed_tokens"] for ack in acks) / sum(ack["tokens"] for ack in acks)


def measure_block(engine: Engine, arguments: argparse.Namespace, writer: Writer | None) -> Block:
    dice = random.Random(5)
    engine.run()
    room = arguments.max_model_len - PROMPT_TOKENS
    decodes = [engine.ask(dice.choices(VOCABULARY, k=PROMPT_TOKENS), max_tokens=room) for _ in range(arguments.decodes)]
    engine.step(arguments.settle_steps)
    gc.collect()
    gc.disable()
    gaps, start = [], time.perf_counter()
    ended = start
    if writer is not None:
        writer.start(start)
    while ended - start < arguments.seconds:
        if writer is not None:
            writer.write(time.perf_counter())
        engine.step()
        now = time.perf_counter()
        gaps.append(now - ended)
        ended = now
    gc.enable()
    assert not any(engine.outputs[request].finished for request in decodes), "a completion ended within its block"
    prefilled = writer.close() if writer is not None else 1.0
    for request in decodes:
        engine.abort(request)
    engine.run()
    return Block(gaps, prefilled)


def measure(engine: Engine, arguments: argparse.Namespace) -> list[tuple[Block, Block]]:
    """Rounds of `base` and `streams`, in turn first; a first round, which warms up, is left out."""
    serial = iter(range(1_000_000))
    rounds = []
    for number in range(-1, arguments.rounds):
        blocks = {}
        for streams in (False, True) if number % 2 else (True, False):
            every_s = arguments.every_ms / 1000
            writer = Writer(engine, arguments.streams, arguments.chunk, every_s, serial) if streams else None
            blocks[streams] = measure_block(engine, arguments, writer)
        rounds.append((blocks[False], blocks[True]))
    return rounds[1:]


def report(rounds: Sequence[tuple[Block, Block]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, share in (("p99", 0.99), ("p50", 0.5)):
        ratios = [streams.at(share) / base.at(share) for base, streams in rounds]
        figures[f"ratio_{name}"] = round(median(ratios), 3)
        figures[f"ratio_{name}_min"], figures[f"ratio_{name}_max"] = round(min(ratios), 3), round(max(ratios), 3)
        figures[f"base_{name}_ms"] = round(1e3 * median(base.at(share) for base, _ in rounds), 2)
    figures["gaps"] = sum(len(streams.gaps) for _, streams in rounds)
    figures["prefilled"] = round(median(streams.prefilled for _, streams in rounds), 3)
    return {**figures, "target_ratio_p99": TARGET}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", default="default", help="default: the embedded one; `tiny`: random weights")
    parser.add_argument("--itl-factor", default="1.1", help="as of `stream2llm serve`; `off`: no protection")
    parser.add_argument("--decodes", type=int, default=4)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=64, help="tokens of an append")
    parser.add_argument("--every-ms", type=float, default=500, help="between two appends to one stream")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6, help="of each block")
    parser.add_argument("--settle-steps", type=int, default=30, help="before a block is measured")
    parser.add_argument("--max-model-len", type=int, default=8192)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    factor = None if arguments.itl_factor == "off" else float(arguments.itl_factor)
    blocks = (arguments.streams * LIMIT + arguments.decodes * arguments.max_model_len) // BLOCK + 64
    options = {
        "max_model_len": arguments.max_model_len,
        "max_num_batched_tokens": 512,
        "max_num_seqs": arguments.decodes + arguments.streams,
        "additional_config": {"stream2llm": {"itl_factor": factor}},
    }
    model = tiny_model() if arguments.model == "tiny" else resolve_model(arguments.model)
    with running_engine(model, asynchronous=False, blocks=blocks, **options) as engine:
        rounds = measure(engine, arguments)
    result = {
        "benchmark": "itl_in_process",
        "model": arguments.model,
        "itl_factor": factor,
        "decodes": arguments.decodes,
        "streams": arguments.streams,
        "stream_tokens_per_s": round(arguments.streams * arguments.chunk * 1000 / arguments.every_ms),
        "rounds": arguments.rounds,
        **report(rounds),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:>22}: {value}")


if __name__ == "__main__":
    main()
