"""Too little memory, too few slots: complete requests come first, nobody hangs, nothing leaks, answers stay equal."""

from __future__ import annotations

import random

import pytest

from ownership import check_invariants
from stepping import BLOCK, MAX_NUM_SEQS, Engine, tokens
from steps import computed, runs
from stream2llm.costs import Mode


def test_more_idle_streams_than_sequence_slots_do_not_delay_a_plain_request(engine: Engine, rng: random.Random) -> None:
    """BUGS 6."""
    for number in range(2 * MAX_NUM_SEQS):
        engine.open(f"s{number}", tokens(rng, 64))
    engine.run()
    request = engine.ask(tokens(rng, 40), max_tokens=1)
    engine.step(3)
    assert engine.outputs[request].finished


def test_prefilling_streams_give_their_slot_to_a_plain_request(engine: Engine, rng: random.Random) -> None:
    """More prefilling streams than slots; the request is admitted in the next step and nothing computed is lost."""
    contexts = [tokens(rng, 600) for _ in range(2 * MAX_NUM_SEQS)]
    before = engine.figures
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
    engine.step(2)
    request = engine.ask(tokens(rng, 40), max_tokens=1)
    engine.step(3)
    assert engine.outputs[request].finished
    assert engine.figures["preempted"] == before["preempted"]
    engine.run()
    assert engine.figures["streams"] == {"ready": 2 * MAX_NUM_SEQS}


@pytest.mark.parametrize("finishing", [True, False])
def test_streams_that_need_more_than_the_pool_all_finish(engine: Engine, rng: random.Random, finishing: bool) -> None:
    """BUGS 5: three streams of 37 % of the pool each, a plain request; one client may never finish."""
    contexts = [tokens(rng, 1900) for _ in range(3)]
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
    plain = tokens(rng, 1000)
    engine.step(10)
    plain_request = engine.ask(plain)
    engine.step(10)
    asked = [(engine.ask([*context, 3], f"s{number}"), context) for number, context in enumerate(contexts) if number]
    if finishing:
        asked.append((engine.ask([*contexts[0], 3], "s0"), contexts[0]))
    engine.run()
    for request, context in asked:
        assert engine.answer(request) == engine.cold([*context, 3])
    assert engine.answer(plain_request) == engine.cold(plain)


def test_the_oldest_streams_keep_their_blocks_and_the_engine_sleeps_when_memory_is_full(
    engine: Engine, rng: random.Random
) -> None:
    for number in range(4):
        engine.open(f"s{number}", tokens(rng, 1600))
    engine.run()
    states = [engine.status(f"s{number}")["state"] for number in range(4)]
    assert states == ["ready", "ready", "ready", "waiting"]
    engine.close("s0")
    engine.run()
    assert engine.status("s3")["state"] == "ready"


def test_a_complete_request_takes_the_memory_of_the_youngest_streams(engine: Engine, rng: random.Random) -> None:
    for number in range(3):
        engine.open(f"s{number}", tokens(rng, 1600))
    engine.run()
    prompt = tokens(rng, 1500)
    request = engine.ask(prompt)
    engine.run()
    assert [engine.status(f"s{number}")["state"] for number in range(3)] == ["ready", "ready", "evicted"]
    assert engine.answer(request) == engine.cold(prompt)


def test_decoding_requests_grow_at_the_cost_of_idle_streams(engine: Engine, rng: random.Random) -> None:
    """A long answer never waits for, nor is preempted because of, an idle stream (BUGS 17: complete output)."""
    for number in range(3):
        engine.open(f"s{number}", tokens(rng, 1600))
    engine.run()
    prompts = [tokens(rng, 60) for _ in range(MAX_NUM_SEQS)]
    requests = [engine.ask(prompt, max_tokens=200) for prompt in prompts]
    engine.run()
    answers = [engine.answer(request) for request in requests]
    assert all(len(answer) == 200 for answer in answers)
    assert answers[0] == engine.cold(prompts[0], max_tokens=200)


def test_what_is_swapped_out_comes_back_and_the_answer_is_the_same(engine: Engine, rng: random.Random) -> None:
    """The youngest stream is evicted; with a host tier its final request finds the blocks there (BUGS 9, 19)."""
    contexts = [tokens(rng, 1600) for _ in range(3)]
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
    engine.run()
    before = engine.figures
    prompt = tokens(rng, 1500)
    plain = engine.ask(prompt)
    engine.run()
    request = engine.ask([*contexts[2], 4, 5], "s2")
    engine.run()

    figures = engine.figures
    dropped = figures["tokens_recomputed"] - before["tokens_recomputed"]
    swapped = figures["tokens_swapped"] - before["tokens_swapped"]
    assert dropped + swapped >= 1500 - 10 * BLOCK
    if "host_tier" in figures:
        assert (dropped, engine.cached(request)) == (0, 1600)  # the head was not given up, the tail came back
    else:
        assert swapped == 0
    assert engine.answer(plain) == engine.cold(prompt)
    assert engine.answer(request) == engine.cold([*contexts[2], 4, 5])


def test_finals_that_wait_behind_a_large_request_do_not_keep_it_waiting(engine: Engine, rng: random.Random) -> None:
    """Their streams pin most of the pool, and the step's tokens are spent on the first in the queue."""
    contexts = [tokens(rng, 1824) for _ in range(2)]
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
    engine.run()
    large = tokens(rng, 2000)
    asked = [(engine.ask(large), large)]
    asked += [(engine.ask([*context, 5], f"s{number}"), [*context, 5]) for number, context in enumerate(contexts)]
    engine.run()
    for request, prompt in asked:
        assert engine.answer(request) == engine.cold(prompt)


def test_finals_that_cannot_use_their_streams_blocks_do_not_wait_for_them(engine: Engine, rng: random.Random) -> None:
    """Prompt log probabilities need every token computed; the pins of three such streams fill the pool."""
    contexts = [tokens(rng, 1650) for _ in range(3)]
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
    engine.run()
    requests = [engine.ask(context, f"s{number}", prompt_logprobs=0) for number, context in enumerate(contexts)]
    engine.run()
    for request, context in zip(requests, contexts, strict=True):
        assert engine.answer(request) == engine.cold(context)


def test_a_stream_that_waits_for_memory_goes_on_when_another_expires(
    engine: Engine, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    for number in range(3):
        engine.open(f"s{number}", tokens(rng, 1650), ttl=50)
    engine.open("waiting", tokens(rng, 600))
    engine.run()
    assert engine.status("waiting")["state"] == "waiting"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 51)
    engine.status("waiting")
    engine.run()
    assert engine.status("waiting")["state"] == "ready"


def test_hundreds_of_waiting_streams_do_not_slow_the_planning_down(engine: Engine, rng: random.Random) -> None:
    """What a step looks at is bounded: a plan for 400 streams, most of them waiting, is no larger than one for 100."""
    for number in range(400):
        engine.open(f"s{number}", tokens(rng, 64))
    engine.run()
    states = [engine.status(f"s{number}")["state"] for number in range(400)]
    assert states.count("waiting") >= 300
    steps = engine.figures["steps"]
    engine.ask(tokens(rng, 30))
    looked_at: list[str] = []
    survey = engine.scheduler.survey
    needed = survey._needed
    survey._needed = lambda request: looked_at.append(request.request_id) or needed(request)
    engine.run()
    del survey._needed
    assert 1 <= len(looked_at) <= 64 * (engine.figures["steps"] - steps)


def test_a_request_that_shares_its_prefix_with_the_youngest_stream_takes_the_next_ones_memory(
    engine: Engine, rng: random.Random
) -> None:
    """What the youngest holds, the request uses itself: to take it gains nothing. It lacks four blocks."""
    shared = tokens(rng, 58 * BLOCK)
    sizes = {"oldest": 40, "old": 40, "young": 20}
    for name, blocks in sizes.items():
        engine.open(name, tokens(rng, blocks * BLOCK))
        engine.run()
    engine.open("youngest", shared)
    engine.run()
    assert engine.free_blocks == 2
    stalls = engine.figures["stalls"]
    request = engine.ask([*shared, *tokens(rng, 5 * BLOCK)], max_tokens=4)
    engine.step(3)
    assert runs(engine, request)
    held = computed(engine)
    engine.run()
    assert engine.figures["stalls"] == stalls
    assert (held["oldest"], held["old"], held["youngest"]) == (40 * BLOCK, 40 * BLOCK, 58 * BLOCK)
    assert held["young"] >= 14 * BLOCK
    assert engine.cached(request) == 58 * BLOCK


def test_a_stream_that_waits_for_memory_goes_on_when_the_prefix_cache_is_reset(
    engine: Engine, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.scheduler.eviction, "_mode", Mode.OFF)
    for number in range(4):
        engine.open(f"s{number}", tokens(rng, 50 * BLOCK))
        engine.run()
    assert engine.status("s3")["state"] == "waiting"
    assert engine.scheduler.reset_prefix_cache()
    engine.run()
    assert engine.status("s3")["state"] == "ready"


@pytest.mark.parametrize("mode", [Mode.RECOMPUTE, Mode.OFF])
def test_a_prefill_that_would_have_to_begin_anew_is_not_interrupted(
    engine: Engine, rng: random.Random, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """With prompt log probabilities a request reads nothing from the cache: blocks kept for it would only stand in its
    own way. The request that comes is shorter, and would go first."""
    monkeypatch.setattr(engine.scheduler.eviction, "_mode", mode)
    for name, blocks in {"a": 40, "b": 38}.items():
        engine.open(name, tokens(rng, blocks * BLOCK))
        engine.run()
    before, held = engine.figures, computed(engine)
    long = engine.ask(tokens(rng, 2000), max_tokens=10, prompt_logprobs=0)
    engine.step(9)
    assert runs(engine, long)
    short = engine.ask(tokens(rng, 30), max_tokens=40)
    for _ in range(8):
        engine.step()
        check_invariants(engine)
        assert runs(engine, long)
    assert runs(engine, short)
    engine.run()
    assert computed(engine) == held
    assert {key: engine.figures[key] for key in ("stalls", "parked_complete", "preempted_complete")} == {
        key: before[key] for key in ("stalls", "parked_complete", "preempted_complete")
    }
    assert len(engine.outputs[long].prompt_logprobs) == 2000
