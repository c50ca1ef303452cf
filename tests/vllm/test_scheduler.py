"""Streams on the real engine: greedy answers equal to a cold engine's, and no KV block lost, whatever happens when."""

from __future__ import annotations

import random

import pytest

from stepping import BLOCK, MAX_MODEL_LEN, STEP_TOKENS, Engine, tokens


def test_appended_context_is_prefilled_before_the_question_comes(engine: Engine, rng: random.Random) -> None:
    context = tokens(rng, 500)
    engine.open("s", context[:200])
    engine.run()
    engine.put("s", context, keep=200)
    engine.run()
    assert engine.status("s")["state"] == "ready"

    request = engine.ask([*context, 5, 6, 7], "s")
    engine.run()

    assert engine.cached(request) == 500 // BLOCK * BLOCK
    assert engine.answer(request) == engine.cold([*context, 5, 6, 7])


def test_a_replacement_keeps_the_cache_up_to_the_longest_common_prefix(engine: Engine, rng: random.Random) -> None:
    first = tokens(rng, 600)
    second = [*first[:333], *tokens(rng, 200)]
    engine.open("s", first)
    engine.run()

    ack = engine.put("s", second, keep=300)

    assert (ack["version"], ack["tokens"], ack["lcp"]) == (2, 533, 333)
    assert ack["invalidated_tokens"] == 600 // BLOCK * BLOCK - 333
    assert ack["computed_tokens"] == 333 // BLOCK * BLOCK
    engine.run()
    request = engine.ask(second, "s")
    engine.run()
    assert engine.cached(request) == 532 // BLOCK * BLOCK
    assert engine.answer(request) == engine.cold(second)


def test_an_idle_stream_holds_blocks_but_no_request_and_the_engine_sleeps(engine: Engine, rng: random.Random) -> None:
    engine.open("s", tokens(rng, 320))
    engine.run()
    assert not engine.scheduler.requests
    assert not engine.scheduler.has_requests()
    assert engine.figures["pinned_blocks"] == 10


def test_only_whole_blocks_are_computed_for_a_version(engine: Engine, rng: random.Random) -> None:
    """16 tokens at a time cost 16 tokens each, not a block each."""
    context = tokens(rng, 20 * 16)
    before = engine.figures["tokens_computed"]
    engine.open("s", context[:16])
    for end in range(32, len(context) + 1, 16):
        engine.put("s", context[:end], keep=end - 16)
        engine.run()
    assert engine.figures["tokens_computed"] - before == len(context)


@pytest.mark.parametrize("steps", range(6))
def test_a_version_that_comes_mid_prefill_supersedes_the_running_one(
    engine: Engine, rng: random.Random, steps: int
) -> None:
    """BUGS 2: put between two steps at every offset."""
    context = tokens(rng, 5 * STEP_TOKENS)
    engine.open("s", context[: 4 * STEP_TOKENS])
    engine.step(steps)
    engine.put("s", context, keep=4 * STEP_TOKENS)
    engine.step(steps)
    request = engine.ask([*context, 9], "s")
    engine.run()
    assert engine.answer(request) == engine.cold([*context, 9])


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("length", [64, 65, 95, 96, 320])
def test_finishing_without_new_tokens_gives_one_answer(
    engine: Engine, rng: random.Random, steps: int, length: int
) -> None:
    """BUGS 2, 19: an empty last chunk, and a final prompt identical to the stream, at block boundaries and beside."""
    context = tokens(rng, length)
    engine.open("s", context)
    engine.step(steps)
    assert engine.put("s", context, keep=length)["lcp"] == length
    engine.step(steps)
    request = engine.ask(context, "s")
    engine.run()
    assert engine.answer(request) == engine.cold(context)


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("action", ["finish", "abort", "update", "close"])
def test_anything_may_happen_at_any_step(engine: Engine, rng: random.Random, steps: int, action: str) -> None:
    """BUGS 3, 13: no output-placeholder count below zero, no leak (the fixture checks), the neighbour undisturbed."""
    context, neighbour = tokens(rng, 400), tokens(rng, 150)
    other = engine.ask(neighbour, max_tokens=12)
    engine.open("s", context)
    engine.step(steps)
    if action == "finish":
        engine.ask(context, "s", max_tokens=1)
    elif action == "abort":
        request = engine.ask([*context, 1], "s", max_tokens=12)
        engine.step(steps)
        engine.abort(request)
    elif action == "update":
        for cut in (390, 200, 31, 0):
            engine.put("s", [*context[:cut], *tokens(rng, 50)], keep=cut)
            engine.step()
    else:
        engine.close("s")
    engine.run()
    assert engine.answer(other) == engine.cold(neighbour, max_tokens=12)


@pytest.mark.parametrize("steps", range(0, 14, 2))
def test_aborting_the_final_request_in_each_state_leaks_nothing(engine: Engine, rng: random.Random, steps: int) -> None:
    """BUGS 13, 14: waiting, prefilling, decoding; the engine is idle within a few steps."""
    context = tokens(rng, 500)
    engine.open("s", context[:200])
    engine.step()
    request = engine.ask(context, "s", max_tokens=64)
    engine.step(steps)
    engine.abort(request)
    engine.step(3)
    assert not engine.scheduler.has_requests()
    assert not engine.figures["streams"]
    assert engine.figures["pinned_blocks"] == 0


def test_old_and_new_prompt_are_answered_right_after_text_changed_inside_a_block(
    engine: Engine, rng: random.Random
) -> None:
    """BUGS 1: no stale hash of the old tail, no stale partial block (BUGS 19)."""
    old = tokens(rng, 300)
    new = [*old[:100], *tokens(rng, 5), *old[105:]]
    engine.open("s", old)
    engine.run()
    engine.put("s", new, keep=100)
    engine.run()
    answers = [engine.ask(prompt, max_tokens=12) for prompt in (old, new)]
    engine.run()
    assert [engine.answer(request) for request in answers] == [
        engine.cold(prompt, max_tokens=12) for prompt in (old, new)
    ]


def test_the_final_request_may_differ_from_the_stream_in_any_way(engine: Engine, rng: random.Random) -> None:
    context = tokens(rng, 300)
    for number, prompt in enumerate([context[:64], tokens(rng, 90), [*context[:150], *tokens(rng, 40)], [7]]):
        engine.open(f"s{number}", context)
        engine.step(2)
        request = engine.ask(prompt, f"s{number}")
        engine.run()
        assert engine.answer(request) == engine.cold(prompt)


def test_a_second_final_request_is_an_ordinary_one(engine: Engine, rng: random.Random) -> None:
    context = tokens(rng, 200)
    engine.open("s", context)
    engine.run()
    requests = [engine.ask([*context, last], "s") for last in (5, 6)]
    engine.run()
    for request, last in zip(requests, (5, 6), strict=True):
        assert engine.answer(request) == engine.cold([*context, last])


def test_one_token_too_many_is_refused_and_harms_nobody(engine: Engine, rng: random.Random) -> None:
    """BUGS 4, 16."""
    neighbour = tokens(rng, 200)
    request = engine.ask(neighbour)
    context = tokens(rng, MAX_MODEL_LEN)
    engine.open("s", context[: MAX_MODEL_LEN - 1])
    refusal = engine.put("s", context, keep=MAX_MODEL_LEN - 1)
    assert refusal["error"] == "too_long"
    assert f"limit is {MAX_MODEL_LEN - 1}" in refusal["message"]
    assert engine.status("s")["version"] == 1
    assert engine.open("t", context)["error"] == "too_long"
    engine.run()
    assert engine.answer(request) == engine.cold(neighbour)


def test_ops_on_streams_that_are_not_open_are_refused_with_the_reason(engine: Engine, rng: random.Random) -> None:
    """BUGS 19: a write after the end is an error, and the engine goes on."""
    context = tokens(rng, 50)
    assert engine.status("nobody")["error"] == "unknown"
    assert engine.close("nobody")["error"] == "unknown"
    engine.open("s", context)
    assert engine.open("s", context)["error"] == "exists"
    assert engine.put("s", context, base=7)["error"] == "conflict"
    engine.ask(context, "s", max_tokens=1)
    engine.run()
    assert engine.put("s", context, base=1)["error"] == "finished"
    assert engine.status("s")["state"] == "finished"
    engine.close("s")
    assert engine.status("s")["error"] == "unknown"


def test_an_expired_stream_is_gone_and_its_blocks_with_it(
    engine: Engine, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    engine.open("short", tokens(rng, 100), ttl=50)
    engine.open("long", tokens(rng, 100), ttl=500)
    engine.run()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 51)
    engine.core.context_sweep()
    assert engine.status("short")["error"] == "unknown"
    assert engine.status("long")["state"] == "ready"
    assert engine.figures["pinned_blocks"] == 3


def test_resetting_the_prefix_cache_works_with_open_streams(engine: Engine, rng: random.Random) -> None:
    context = tokens(rng, 200)
    engine.open("s", context)
    engine.run()
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert engine.status("s")["state"] == "evicted"
    request = engine.ask([*context, 4], "s")
    engine.run()
    assert engine.cached(request) == 0
    assert engine.answer(request) == engine.cold([*context, 4])


def test_a_stream_written_during_a_pause_is_prefilled_afterwards(engine: Engine, rng: random.Random) -> None:
    from vllm.v1.core.sched.interface import PauseState

    engine.ask(tokens(rng, 40), max_tokens=30)
    engine.step(3)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    engine.open("s", tokens(rng, 200))
    engine.step(5)
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    assert engine.status("s")["state"] == "ready"
