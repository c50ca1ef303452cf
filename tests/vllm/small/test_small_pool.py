"""An engine whose KV cache holds one request of the greatest length and no more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ownership import check_invariants
from stepping import BLOCK, MAX_MODEL_LEN, MAX_NUM_SEQS, Engine, left_empty, running_engine, tokens
from steps import computed, finished

BLOCKS = 65  # 64 blocks of 32 tokens: 2,048 tokens


@pytest.fixture(scope="module", params=["asynchronous", "synchronous"])
def shared(request: pytest.FixtureRequest, model: str) -> Iterator[Engine]:
    with running_engine(model, asynchronous=request.param == "asynchronous", blocks=BLOCKS) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    with left_empty(shared, BLOCKS - 1):
        yield shared


@pytest.fixture
def rng() -> random.Random:
    return random.Random(17)


@pytest.mark.parametrize("finishing", [(0, 1), (1, 0), (1,)])
def test_two_streams_that_need_60_percent_of_the_pool_each_and_a_plain_request_all_finish(
    engine: Engine, rng: random.Random, finishing: tuple[int, ...]
) -> None:
    """BUGS 5; in the last case one client never finishes its stream."""
    contexts = [tokens(rng, MAX_MODEL_LEN * 6 // 10) for _ in range(2)]
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
    engine.step(14)
    plain = tokens(rng, 300)
    asked = [(engine.ask(plain), plain)]
    engine.step(3)
    for number in finishing:
        prompt = [*contexts[number], 3]
        asked.append((engine.ask(prompt, f"s{number}"), prompt))
        engine.step(2)
    engine.run()
    for request, prompt in asked:
        assert engine.answer(request) == engine.cold(prompt)


def test_a_request_that_needs_the_whole_pool_is_served_and_a_larger_one_is_an_error(
    engine: Engine, rng: random.Random
) -> None:
    """BUGS 16: streams hold most of the pool; nothing waits for ever."""
    from vllm.exceptions import VLLMValidationError

    longest = tokens(rng, MAX_MODEL_LEN - 8)
    for number in range(2):
        engine.open(f"s{number}", tokens(rng, 900))
    engine.run()
    request = engine.ask(longest)
    engine.run()
    final = engine.ask([*longest[:-1], 5], "s0")
    engine.run()
    assert engine.answer(final) == engine.cold([*longest[:-1], 5])
    assert engine.answer(request) == engine.cold(longest)

    larger = tokens(rng, MAX_MODEL_LEN + 1)
    for stream in ("s1", None):
        with pytest.raises(VLLMValidationError, match="maximum context length"):
            engine.ask(larger, stream)
    assert engine.put("s1", larger)["error"] == "too_long"
    request = engine.ask(longest[:50])
    engine.run()
    assert engine.answer(request) == engine.cold(longest[:50])


@pytest.mark.parametrize("streams", [0, 2])
def test_an_answer_preempted_while_it_is_decoded_is_complete(engine: Engine, rng: random.Random, streams: int) -> None:
    """BUGS 17: the answers under way outgrow the pool, with and without streams beside them."""
    contexts = [tokens(rng, 400) for _ in range(streams)]
    for number, context in enumerate(contexts):
        engine.open(f"s{number}", context)
    engine.run()
    prompts = [tokens(rng, 350) for _ in range(MAX_NUM_SEQS)]
    prompts[:streams] = [[*context, 9] for context in contexts]
    requests = [
        engine.ask(prompt, f"s{number}" if number < streams else None, max_tokens=250)
        for number, prompt in enumerate(prompts)
    ]
    preempted: set[str] = set()
    while engine.scheduler.has_requests():
        engine.step()
        check_invariants(engine)
        preempted |= {
            request.request_id
            for request in engine.scheduler.requests.values()
            if request.num_preemptions and request.num_output_tokens
        }
    engine.run()
    assert preempted
    for request, prompt in zip(requests, prompts, strict=True):
        assert engine.scheduler.reset_prefix_cache()
        cold = engine.ask(prompt, max_tokens=250)
        engine.run()
        assert len(engine.answer(request)) == 250
        assert engine.answer(request) == engine.answer(cold)
        assert engine.outputs[request].outputs[0].text == engine.outputs[cold].outputs[0].text


@pytest.fixture
def longer_prompts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes prompts that its KV cache cannot hold. Started with such a maximum length, vLLM refuses to run,
    as far as it can tell."""
    monkeypatch.setattr(engine.engine.model_config, "max_model_len", 2 * MAX_MODEL_LEN)
    # The renderer remembers the limit once it has been asked for it.
    renderer = engine.engine.input_processor.renderer
    limits = replace(renderer.default_cmpl_tok_params, max_total_tokens=2 * MAX_MODEL_LEN)
    monkeypatch.setattr(renderer, "default_cmpl_tok_params", limits)
    monkeypatch.setattr(engine.scheduler, "max_model_len", 2 * MAX_MODEL_LEN)


@pytest.mark.usefixtures("longer_prompts")
@pytest.mark.parametrize("streams", [0, 2])
@pytest.mark.parametrize("length", [MAX_MODEL_LEN + 1, MAX_MODEL_LEN + 900])
def test_a_plain_request_larger_than_the_pool_ends_with_an_error_and_nobody_else_notices(
    engine: Engine, rng: random.Random, length: int, streams: int
) -> None:
    """BUGS 16."""
    for number in range(streams):
        engine.open(f"s{number}", tokens(rng, 20 * BLOCK))
    engine.run()
    stalls = engine.figures["stalls"]
    prompt = tokens(rng, 100)
    neighbour = engine.ask(prompt, max_tokens=30)
    engine.step(4)
    larger = engine.ask(tokens(rng, length))
    for _ in range(3):
        engine.step()
        check_invariants(engine)
    assert finished(engine, larger)
    assert engine.outputs[larger].outputs[0].finish_reason == "error"
    assert not finished(engine, neighbour)
    engine.run()
    assert computed(engine) == {f"s{number}": 20 * BLOCK for number in range(streams)}
    assert engine.figures["stalls"] == stalls
    assert engine.answer(neighbour) == engine.cold(prompt, max_tokens=30)


@pytest.mark.usefixtures("longer_prompts")
def test_a_final_request_larger_than_the_pool_leaves_nothing_behind(engine: Engine, rng: random.Random) -> None:
    """Nobody else runs, and the blocks of its stream go to the one that waits for memory."""
    contexts = {"s": tokens(rng, 30 * BLOCK), "other": tokens(rng, 20 * BLOCK), "waiting": tokens(rng, 40 * BLOCK)}
    for name, context in contexts.items():
        engine.open(name, context)
        engine.run()
    assert engine.status("waiting")["state"] == "waiting"
    larger = engine.ask([*contexts["s"], *tokens(rng, 40 * BLOCK)], "s")
    engine.run()
    assert engine.outputs[larger].outputs[0].finish_reason == "error"
    assert engine.status("s")["state"] == "finished"
    assert computed(engine) == {"other": 20 * BLOCK, "waiting": 40 * BLOCK}
