"""The host tier on the real engine: whoever is evicted when, answers equal a cold engine's, and no block is lost."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import pytest

from stepping import BLOCK, MAX_NUM_SEQS, STEP_TOKENS
from stream2llm.vllm.offload import host_tier

VOCABULARY = range(10, 49000)
Swapping = Any  # the fixture's class


@pytest.fixture
def rng() -> random.Random:
    return random.Random(9)


def tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(VOCABULARY, k=count)


def computed(swapping: Swapping) -> int:
    return int(swapping.engine.figures["tokens_computed"])


def counted(swapping: Swapping, before: Any) -> tuple[int, int]:
    """Blocks copied out and back since `before`."""
    now = swapping.host.statistics()
    return now.copied_out - before.copied_out, now.copied_back - before.copied_back


def test_an_evicted_stream_is_copied_back_and_not_computed_again(swapping: Swapping, rng: random.Random) -> None:
    engine, before = swapping.engine, swapping.host.statistics()
    context = tokens(rng, 10 * BLOCK)
    engine.open("s", context)
    engine.run()
    assert swapping.evict_stream("s") == 10
    tokens_before = computed(swapping)

    request = engine.ask([*context, 7], "s", max_tokens=3)
    engine.run()

    assert engine.cached(request) == 10 * BLOCK
    assert computed(swapping) - tokens_before <= 4
    assert counted(swapping, before) == (10, 10)
    assert engine.answer(request) == swapping.cold([*context, 7], 3)


def test_any_later_request_with_the_prefix_finds_it(swapping: Swapping, rng: random.Random) -> None:
    """A plain request that knows of no stream, and another stream; each after a local hit of two blocks."""
    engine = swapping.engine
    context = tokens(rng, 8 * BLOCK)
    engine.open("s", context)
    engine.run()
    swapping.evict_stream("s")
    engine.ask([*context[: 2 * BLOCK], 5], max_tokens=1)
    engine.run()

    before = swapping.host.statistics()
    request = engine.ask([*context, 6, 7])
    engine.run()

    assert engine.cached(request) == 8 * BLOCK
    assert counted(swapping, before)[1] == 6
    assert engine.answer(request) == swapping.cold([*context, 6, 7])


def test_an_update_while_the_blocks_are_on_the_host_loads_up_to_the_common_prefix(
    swapping: Swapping, rng: random.Random
) -> None:
    """BUGS 10."""
    engine = swapping.engine
    first = tokens(rng, 12 * BLOCK)
    second = [*first[: 7 * BLOCK + 5], *tokens(rng, 90)]
    engine.open("s", first)
    engine.run()
    swapping.evict_stream("s")

    before = swapping.host.statistics()
    engine.put("s", second, keep=7 * BLOCK)
    engine.run()
    assert counted(swapping, before)[1] == 7

    plain, final = engine.ask(first), engine.ask(second, "s")
    engine.run()
    assert engine.answer(plain) == swapping.cold(first)
    assert engine.answer(final) == swapping.cold(second)


@pytest.mark.parametrize("steps", [2, 5, 12])
def test_a_request_preempted_at_any_step_resumes_from_the_host(
    swapping: Swapping, rng: random.Random, steps: int
) -> None:
    """BUGS 17, in prefill and in decode, beside a neighbour that is not disturbed."""
    engine = swapping.engine
    prompt, neighbour = tokens(rng, 4 * STEP_TOKENS + 20), tokens(rng, 100)
    other = engine.ask(neighbour, max_tokens=12)
    request = engine.ask(prompt, max_tokens=20)
    engine.step(steps)

    before = swapping.host.statistics()
    kept = swapping.preempt(request)
    engine.run()

    assert kept >= min(steps - 1, 4)
    assert counted(swapping, before) == (kept, kept)
    assert engine.answer(request) == swapping.cold(prompt, 20)
    assert engine.answer(other) == swapping.cold(neighbour, 12)


def test_preempted_resumed_and_preempted_again_while_copies_are_slow(swapping: Swapping, rng: random.Random) -> None:
    """BUGS 10: blocks come back while their copy out is under way, and go again while their copy back is."""
    engine = swapping.engine
    prompt = tokens(rng, 9 * BLOCK + 3)
    with swapping.slow_copies(lambda: 0.02):
        request = engine.ask(prompt, max_tokens=24)
        engine.step(5)
        for steps in (1, 1, 2, 1, 3, 1):
            if swapping.is_running(request):
                assert swapping.preempt(request)
            engine.step(steps)
        engine.run()
    assert swapping.scheduler.num_waiting_for_streaming_input == 0
    assert engine.answer(request) == swapping.cold(prompt, 24)


@pytest.mark.parametrize("steps", range(4))
def test_an_update_while_copies_out_and_back_are_under_way(swapping: Swapping, rng: random.Random, steps: int) -> None:
    """BUGS 10: a new version comes between a slow copy out and its end, and again while blocks are copied back."""
    engine = swapping.engine
    first = tokens(rng, 8 * BLOCK)
    second = [*first[: 5 * BLOCK + 7], *tokens(rng, 3 * BLOCK)]
    third = [*second[: 6 * BLOCK], *tokens(rng, 2 * BLOCK)]
    with swapping.slow_copies(lambda: 0.02):
        engine.open("s", first)
        engine.run()
        assert swapping.evict_stream("s") == 8
        engine.step(steps)
        engine.put("s", second, keep=5 * BLOCK)
        engine.step(steps)
        engine.put("s", third, keep=6 * BLOCK)
        finals = [engine.ask(third, "s"), engine.ask(first), engine.ask(second)]
        engine.run()
    for request, prompt in zip(finals, (third, first, second), strict=True):
        assert engine.answer(request) == swapping.cold(prompt)


def test_what_the_host_has_no_room_for_is_computed_again(swapping: Swapping, rng: random.Random) -> None:
    """BUGS 19: host memory has an end."""
    engine, before = swapping.engine, swapping.host.statistics()
    contexts = [tokens(rng, 30 * BLOCK) for _ in range(2)]
    for name, context in enumerate(contexts):
        engine.open(str(name), context)
    engine.run()

    assert swapping.evict_stream("0") == 30
    assert swapping.evict_stream("1") == 10, "the first stream's copies are not made yet: their slots are taken"
    assert swapping.host.statistics().refused - before.refused == 20
    finals = [engine.ask([*context, 3], str(name)) for name, context in enumerate(contexts)]
    engine.run()

    assert [engine.cached(final) for final in finals] == [30 * BLOCK, 10 * BLOCK]
    for final, context in zip(finals, contexts, strict=True):
        assert engine.answer(final) == swapping.cold([*context, 3])


def test_a_full_tier_evicts_the_block_used_longest_ago(swapping: Swapping, rng: random.Random) -> None:
    engine, before = swapping.engine, swapping.host.statistics()
    contexts = [tokens(rng, 30 * BLOCK) for _ in range(2)]
    for name, context in enumerate(contexts):
        engine.open(str(name), context)
        engine.run()
        assert swapping.evict_stream(str(name)) == 30
        engine.ask([1, 2], max_tokens=1)  # a step, in which the copies are made
        engine.run()
    assert swapping.host.statistics().evicted - before.evicted == 20
    assert swapping.host.statistics().held_blocks == swapping.host.statistics().capacity_blocks

    finals = [engine.ask([*context, 3], str(name)) for name, context in enumerate(contexts)]
    engine.run()

    assert [engine.cached(final) for final in finals] == [10 * BLOCK, 30 * BLOCK]
    for final, context in zip(finals, contexts, strict=True):
        assert engine.answer(final) == swapping.cold([*context, 3])


def test_a_block_evicted_again_while_its_copy_is_there_is_not_copied_again(
    swapping: Swapping, rng: random.Random
) -> None:
    engine = swapping.engine
    context = tokens(rng, 6 * BLOCK)
    engine.open("s", context)
    engine.run()
    swapping.evict_stream("s")
    engine.put("s", [*context, *tokens(rng, BLOCK)], keep=6 * BLOCK)
    engine.run()

    before = swapping.host.statistics()
    assert swapping.evict_stream("s") == 7
    assert counted(swapping, before) == (1, 0)
    assert swapping.host.statistics().already_held - before.already_held == 6


def test_copies_are_made_in_a_step_that_computes_nothing(swapping: Swapping, rng: random.Random) -> None:
    """The fence is passed in every step, with or without a forward pass, whether anybody was preempted or not."""
    engine = swapping.engine
    context = tokens(rng, 3 * BLOCK)
    engine.open("s", context)
    engine.run()
    gone = engine.ask(tokens(rng, 20), max_tokens=50)
    engine.step(4)
    engine.abort(gone)
    assert swapping.evict_stream("s") == 3

    copies: list[Any] = []
    copier = swapping.worker.copier
    copy_out = copier.copy_out
    copier.copy_out = lambda out: copies.extend(out) or copy_out(out)
    tokens_before = computed(swapping)
    engine.step()
    del copier.copy_out

    assert computed(swapping) == tokens_before
    assert len(copies) == 3


@pytest.mark.parametrize("slow", [False, True], ids=["prompt copies", "slow copies"])
@pytest.mark.parametrize("seed", range(3))
def test_evictions_at_random_steps_change_no_answer(swapping: Swapping, seed: int, slow: bool) -> None:
    """BUGS 9: streams that are written and finished, plain requests with and without a common prefix, in a pool that
    is too small for them, with a host tier that is smaller still; victims at random, several in one step."""
    dice = random.Random(seed)
    engine = swapping.engine
    common = tokens(dice, 5 * BLOCK)
    contexts = {f"s{number}": [*common[: dice.randrange(161)], *tokens(dice, 350)] for number in range(4)}
    plain = [[*common[: dice.randrange(161)], *tokens(dice, dice.randrange(1, 300))] for _ in range(5)]
    asked: dict[str, tuple[list[int], int]] = {}
    before = swapping.host.statistics()

    def ask(prompt: list[int], stream: str | None = None) -> None:
        answer = dice.randrange(1, 12)
        asked[engine.ask(prompt, stream, max_tokens=answer)] = (prompt, answer)

    def act() -> None:
        action = dice.random()
        open_streams = [name for name in contexts if name in opened and name not in finished]
        if action < 0.25 and len(opened) < len(contexts):
            name = f"s{len(opened)}"
            opened.add(name)
            engine.open(name, contexts[name][: dice.randrange(350)])
        elif action < 0.6 and open_streams:
            name = dice.choice(open_streams)
            context = contexts[name]
            cut = dice.randrange(len(context))
            if dice.random() < 0.4:
                context[cut:] = tokens(dice, len(context) - cut)
            engine.put(name, context[: dice.randrange(len(context))])
        elif action < 0.75 and open_streams:
            name = dice.choice(open_streams)
            finished.add(name)
            ask(contexts[name], name)
        elif plain:
            ask(plain.pop())

    opened: set[str] = set()
    finished: set[str] = set()
    with swapping.slow_copies(lambda: dice.choice([0, 0, 0.01])) if slow else nullcontext():
        for _ in range(60):
            if dice.random() < 0.5:
                act()
            while dice.random() < 0.3:
                victims = [*swapping.running, *swapping.idle]
                if victims:
                    victim = dice.choice(victims)
                    (swapping.preempt if victim in swapping.running else swapping.evict_stream)(victim)
            engine.step(dice.randrange(3))
        for name in contexts:
            if name not in finished:
                ask(contexts[name], name if name in opened else None)
        engine.run()

    copied_out, copied_back = counted(swapping, before)
    assert copied_out > 20
    assert copied_back > 10
    assert len(asked) >= MAX_NUM_SEQS
    for request, (prompt, answer) in asked.items():
        assert engine.answer(request) == swapping.cold(prompt, answer)


def test_a_reset_of_the_connector_forgets_the_host_blocks(swapping: Swapping, rng: random.Random) -> None:
    """vLLM's `reset_prefix_cache(reset_connector=True)`, for new weights."""
    engine = swapping.engine
    context = tokens(rng, 4 * BLOCK)
    engine.open("s", context)
    engine.run()
    swapping.evict_stream("s")
    assert swapping.scheduler.reset_prefix_cache(reset_connector=True)
    assert swapping.host.statistics().held_blocks == 0

    request = engine.ask([*context, 1], "s")
    engine.run()
    assert engine.cached(request) == 0


def test_it_is_found_in_the_scheduler(swapping: Swapping) -> None:
    assert host_tier(swapping.scheduler.connector) is swapping.scheduler.connector
    assert host_tier(None) is None
