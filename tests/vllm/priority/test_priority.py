"""`--scheduling-policy priority`: a request's priority counts before the policy, for service and for memory alike; open
streams come after every request, whatever its priority."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ownership import check_invariants
from stepping import BLOCK, MAX_MODEL_LEN, Engine, left_empty, running_engine, tokens
from steps import computed, finished, request, runs

BLOCKS = 161  # 160 blocks of 32 tokens: 5,120 tokens


@pytest.fixture(scope="module")
def shared(model: str) -> Iterator[Engine]:
    with running_engine(model, asynchronous=True, blocks=BLOCKS, scheduling_policy="priority") as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    with left_empty(shared, BLOCKS - 1):
        yield shared


@pytest.fixture
def rng() -> random.Random:
    return random.Random(23)


def ask(engine: Engine, prompt: list[int], priority: int, max_tokens: int = 8) -> str:
    """The lower the priority, the sooner. (A request's priority is no sampling parameter.)"""
    add = engine.engine.add_request
    engine.engine.add_request = lambda *args, **kwargs: add(*args, **kwargs, priority=priority)
    try:
        return engine.ask(prompt, max_tokens=max_tokens)
    finally:
        del engine.engine.add_request


@pytest.mark.parametrize("priority", [-3, 0, 5, 1 << 40])
def test_a_request_of_any_priority_goes_before_a_stream_that_is_being_prefilled(
    engine: Engine, rng: random.Random, priority: int
) -> None:
    engine.open("s", tokens(rng, 1900))
    engine.step(2)
    asked = ask(engine, tokens(rng, 600), priority)
    assert request(engine, asked).priority == priority
    engine.step()
    assert runs(engine, asked)
    assert engine.status("s")["state"] != "ready"


def test_an_older_stream_takes_the_memory_of_the_youngest(engine: Engine, rng: random.Random) -> None:
    contexts = [tokens(rng, 38 * BLOCK) for _ in range(4)]
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
        engine.run()
    engine.put("s0", [*contexts[0], *tokens(rng, 14 * BLOCK)], keep=38 * BLOCK)
    engine.run()
    held = computed(engine)
    assert (held["s0"], held["s1"], held["s2"]) == (52 * BLOCK, 38 * BLOCK, 38 * BLOCK)
    assert 28 * BLOCK <= held["s3"] < 38 * BLOCK


def test_a_longer_request_of_higher_priority_begins_to_answer_first(engine: Engine, rng: random.Random) -> None:
    """The policy alone would let the shorter one go on."""
    engine.open("s", tokens(rng, 64))
    engine.run()
    low = ask(engine, tokens(rng, 1000), 9)
    engine.step(2)
    high = ask(engine, tokens(rng, 1800), 0)
    for _ in range(100):
        if {low, high} & {*engine.outputs}:
            break
        engine.step()
        check_invariants(engine)
    assert high in engine.outputs
    assert low not in engine.outputs


@pytest.mark.parametrize(("waiting", "coming", "yields"), [(0, 9, False), (9, 0, True)])
def test_a_request_takes_the_blocks_kept_for_one_of_lower_priority_only(
    engine: Engine, rng: random.Random, waiting: int, coming: int, yields: bool
) -> None:
    """One that is parked in the middle of its prefill keeps its blocks, unless one of higher priority lacks them."""
    engine.open("s", tokens(rng, 64))
    engine.run()
    parked = ask(engine, tokens(rng, 1900), waiting)
    engine.step(14)
    urgent = ask(engine, tokens(rng, MAX_MODEL_LEN - 200), -1, max_tokens=150)
    engine.step(2)
    assert not runs(engine, parked)
    assert runs(engine, urgent)
    kept = engine.scheduler.pins_of(request(engine, parked)).tokens
    assert kept >= 40 * BLOCK
    comes = ask(engine, tokens(rng, 1900), coming)
    engine.step(16)
    check_invariants(engine)
    pins = engine.scheduler.pins_of(request(engine, parked))
    assert (pins is not None and pins.tokens < kept) is yields
    engine.run()
    assert all(finished(engine, id) for id in (parked, urgent, comes))
