"""Random operations against a reference: who owns which KV block, and what is reported of each stream, at every step.

The real scheduler and KV-cache manager are driven; `ownership.check_invariants` looks at them after each operation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest

from ownership import check_invariants
from stepping import Engine

LONGEST = 1000
NAMES = ("s0", "s1", "s2", "s3", "s4")
TTLS = (100.0, 1000.0, 100_000.0)


def text(number: int, start: int, end: int) -> list[int]:
    """Tokens `start` to `end` of one of a few texts, so that prompts have prefixes in common."""
    return random.Random(number).choices(range(10, 49000), k=LONGEST)[start:end]


@dataclass(frozen=True)
class Reference:
    """What a stream must report: a model of it that knows nothing of blocks."""

    tokens: list[int]
    version: int
    lcp: int
    ttl: float
    expires_at: float
    finished: bool = False

    @classmethod
    def opened(cls, tokens: list[int], ttl: float, now: float) -> Reference:
        return cls(tokens, int(bool(tokens)), 0, ttl, now + ttl)

    def written(self, tokens: list[int], now: float) -> Reference:
        pairs = zip(self.tokens, tokens, strict=False)
        lcp = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(tokens)))
        return replace(self, tokens=tokens, version=self.version + 1, lcp=lcp, expires_at=now + self.ttl)


@dataclass(frozen=True)
class Asked:
    request: str
    prompt: list[int]
    max_tokens: int


class Driver:
    """Does the same to the engine and to the reference; each method is an operation."""

    def __init__(self, engine: Engine, ballast: int) -> None:
        self.engine = engine
        self.pool = engine.scheduler.kv_cache_manager.block_pool
        self.ballast = self.pool.get_new_blocks(ballast)  # kept by the test, so that little is enough to fill the pool
        self.now = time.time()
        self.streams: dict[str, Reference] = {}
        self.asked: list[Asked] = []

    def open(self, name: str, number: int, length: int, ttl: float) -> None:
        tokens = text(number, 0, length)
        ack = self.engine.open(name, tokens, ttl)
        if name in self.streams and not self.streams[name].finished:
            assert ack["error"] == "exists"
        else:
            assert "error" not in ack
            self.streams[name] = Reference.opened(tokens, ttl, self.now)

    def replace(self, name: str, number: int, cut: int, length: int, keep: int) -> None:
        """The tokens up to `cut`, then another text."""
        kept = self._tokens(name)[:cut]
        self._put(name, [*kept, *text(number, len(kept), length)], min(keep, len(kept)))

    def append(self, name: str, number: int, more: int) -> None:
        tokens = self._tokens(name)
        self._put(name, [*tokens, *text(number, len(tokens), len(tokens) + more)], len(tokens))

    def write_to_another_version(self, name: str) -> None:
        if name in self.streams and not self.streams[name].finished:
            assert self.engine.put(name, [1, 2], base=self.streams[name].version + 1)["error"] == "conflict"

    def finish(self, name: str, cut: int, more: int, max_tokens: int) -> None:
        """The final request's prompt goes on after the first `cut` tokens of the stream's."""
        self._ask([*self._tokens(name)[:cut], *text(9, 0, more)], max_tokens, name)
        if name in self.streams:
            self.streams[name] = replace(self.streams[name], finished=True)

    def ask_without_a_stream(self, number: int, length: int, max_tokens: int) -> None:
        self._ask(text(number, 0, length), max_tokens)

    def abort(self, choice: int) -> None:
        if self.asked:
            self.engine.abort(self.asked.pop(choice % len(self.asked)).request)

    def close(self, name: str) -> None:
        answer = self.engine.close(name)
        assert answer.get("error") == (None if name in self.streams else "unknown")
        self.streams.pop(name, None)

    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
            check_invariants(self.engine, self.ballast)

    def reset_prefix_cache(self, running: bool) -> None:
        """As for new weights; vLLM refuses while requests run, unless it is to preempt them."""
        blocks = len(self.ballast)
        self.drop_ballast()
        self.engine.scheduler.reset_prefix_cache(reset_running_requests=running, reset_connector=running)
        assert self.engine.figures["pinned_blocks"] == 0
        if not running:
            blocks = min(blocks, self.pool.get_num_free_blocks())
        self.ballast = self.pool.get_new_blocks(blocks)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.streams = {
            name: stream for name, stream in self.streams.items() if stream.finished or stream.expires_at > self.now
        }
        self.engine.core.context_sweep()

    def check(self) -> None:
        """Every block has the owners it should have; every stream is what the reference says."""
        check_invariants(self.engine, self.ballast)
        for name, expected in self.streams.items():
            status = self.engine.status(name)
            assert (status["version"], status["lcp"]) == (expected.version, expected.lcp)
            assert (status["state"] == "finished") == expected.finished
            if not expected.finished:
                assert self.engine.core.context_read(name)["token_ids"] == expected.tokens
                assert status["expires_at"] == expected.expires_at
                assert status["computed_tokens"] <= status["tokens"] == len(expected.tokens)
        opened = [stream["id"] for stream in self.engine.core.context_list()]
        assert sorted(opened) == sorted(name for name, stream in self.streams.items() if not stream.finished)

    def end(self) -> None:
        """Every request has a complete answer, and a cold engine's; nothing is lost."""
        self.engine.run()
        self.check()
        for name in list(self.streams):
            self.close(name)
        self.engine.run()
        self.check()
        self.drop_ballast()
        assert self.engine.free_blocks == self.pool.num_gpu_blocks - 1
        for asked in self.asked:
            assert self.engine.answer(asked.request) == self.engine.cold(asked.prompt, asked.max_tokens)

    def drop_ballast(self) -> None:
        self.pool.free_blocks(self.ballast)
        self.ballast = []

    def _tokens(self, name: str) -> list[int]:
        stream = self.streams.get(name)
        return [] if stream is None or stream.finished else stream.tokens

    def _put(self, name: str, tokens: list[int], keep: int) -> None:
        ack = self.engine.put(name, tokens, keep=keep)
        stream = self.streams.get(name)
        if stream is None or stream.finished:
            assert ack["error"] == ("finished" if stream is not None else "unknown")
        else:
            assert "error" not in ack
            self.streams[name] = stream.written(tokens, self.now)

    def _ask(self, prompt: list[int], max_tokens: int, name: str | None = None) -> None:
        self.asked.append(Asked(self.engine.ask(prompt, name, max_tokens), prompt, max_tokens))


def random_operation(dice: random.Random, driver: Driver) -> None:
    """One operation, sensible in most cases; how often each comes is chosen so that blocks are fought over."""
    opened = [name for name, stream in driver.streams.items() if not stream.finished]
    name = dice.choice(opened) if opened and dice.random() < 0.9 else dice.choice(NAMES)
    fresh = dice.choice([other for other in NAMES if other not in opened] or NAMES)
    number, answer = dice.randrange(7), dice.randint(1, 12)
    long = dice.randint(LONGEST // 2, LONGEST)
    operations: dict[Callable[[], None], int] = {
        lambda: driver.open(fresh, number, dice.choice([long, long, 0, 40]), dice.choice(TTLS)): 6 if opened else 12,
        lambda: driver.open(name, number, 100, 100.0): 1,
        lambda: driver.append(name, number, dice.randrange(300)): 5,
        lambda: driver.replace(name, number, dice.randrange(LONGEST), long, dice.randrange(LONGEST)): 3,
        lambda: driver.write_to_another_version(name): 1,
        lambda: driver.finish(name, LONGEST, dice.randint(1, 60), answer): 2,
        lambda: driver.finish(name, dice.randrange(LONGEST), dice.randint(1, 60), answer): 1,
        lambda: driver.ask_without_a_stream(number, dice.randint(1, LONGEST), answer): 2,
        lambda: driver.abort(dice.randrange(100)): 1,
        lambda: driver.close(name): 1,
        lambda: driver.pass_time(dice.choice([60.0, 600.0])): 1,
        lambda: driver.reset_prefix_cache(dice.random() < 0.5): 1,
        lambda: driver.step(dice.choice([1, 1, 2, 3, 5, 8])): 30,
    }
    (operation,) = dice.choices(list(operations), list(operations.values()))
    operation()


@pytest.mark.parametrize("seed", range(3))
def test_every_block_has_the_owners_it_should_have_whatever_happens(engine: Engine, seed: int) -> None:
    """Five streams of up to 20 % of the pool, of which the test keeps 60 % and more."""
    dice = random.Random(seed)
    driver = Driver(engine, dice.randint(100, 122))
    try:
        with patch("time.time", lambda: driver.now):
            for _ in range(200):
                random_operation(dice, driver)
                driver.check()
        driver.end()
    finally:
        driver.drop_ballast()
