"""Random interleavings on the real engine: every answer is a cold engine's, and nothing leaks."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepping import MAX_MODEL_LEN, Engine

STREAMS = 4
LONGEST = MAX_MODEL_LEN - 100

STREAM = st.integers(0, STREAMS - 1)
OP = st.one_of(
    st.tuples(st.just("append"), STREAM, st.integers(0, 700)),
    st.tuples(st.just("replace"), STREAM, st.integers(0, LONGEST)),
    st.tuples(st.just("finish"), STREAM, st.integers(0, 40)),
    st.tuples(st.just("abort"), STREAM, st.integers(0, 40)),
    st.tuples(st.just("close"), STREAM, st.just(0)),
    st.tuples(st.just("plain"), STREAM, st.integers(1, 900)),
    st.tuples(st.just("step"), STREAM, st.integers(1, 4)),
)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(OP, min_size=12, max_size=40), seed=st.integers(0, 10**6))
def test_every_answer_is_a_cold_engines_and_nothing_leaks(
    engine: Engine, ops: list[tuple[str, int, int]], seed: int
) -> None:
    """Up to four open streams of up to 38 % of the pool each, so that blocks are fought over."""
    engine.settle()  # whatever the example before left, if it failed
    rng = random.Random(seed)
    free = engine.free_blocks
    prompts: dict[int, list[int]] = {}
    asked: list[tuple[str, list[int]]] = []

    for op, stream, amount in ops:
        name = f"s{stream}"
        if op == "step":
            engine.step(amount)
        elif op == "plain":
            prompt = rng.choices(range(10, 49000), k=amount)
            asked.append((engine.ask(prompt), prompt))
        elif stream not in prompts:
            prompts[stream] = rng.choices(range(10, 49000), k=amount)
            assert "error" not in engine.open(name, prompts[stream])
        elif op == "close":
            engine.close(name)
            del prompts[stream]
        elif op in ("append", "replace"):
            keep = len(prompts[stream]) if op == "append" else min(amount, len(prompts[stream]))
            more = rng.choices(range(10, 49000), k=min(amount, 300 if op == "replace" else amount, LONGEST - keep))
            prompts[stream] = prompts[stream][:keep] + more
            ack = engine.put(name, prompts[stream], keep=rng.randint(0, keep))
            assert ack["lcp"] >= keep
        else:
            prompt = [*prompts.pop(stream), *rng.choices(range(10, 49000), k=max(1, amount))]
            request = engine.ask(prompt, name)
            if op == "abort":
                engine.step(rng.randint(0, 4))
                engine.abort(request)
            else:
                asked.append((request, prompt))

    engine.run()
    for stream in prompts:
        engine.close(f"s{stream}")
    engine.run()
    assert engine.free_blocks == free
    for request, prompt in asked:
        assert engine.answer(request) == engine.cold(prompt)
