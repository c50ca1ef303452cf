"""While requests decode, open streams get few tokens a step, but some; and what is kept from them is kept from nobody
else."""

from __future__ import annotations

import random
import time

import pytest

from stepping import STEP_TOKENS, Engine, tokens
from steps import finished, recorded_steps, request, runs
from stream2llm.pacing import DecodePace

EASY = DecodePace(1.5, alone=1.0, known=8)
"""Decodes alone seem to take a second. So on any machine the cap begins low and grows with every step."""
DEAR = DecodePace(1.5, cap=0.0, alone=1e-3, excess=1e9, pure=509, known=8)
"""A context token seems to take hours: only one step in many has some, and the next such is near."""


@pytest.fixture(autouse=True)
def known_pace(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.scheduler.observation, "pace", EASY)


@pytest.mark.parametrize("pace", [EASY, DEAR])
def test_streams_get_what_the_pace_allows_beside_a_decode_and_everything_without(
    engine: Engine, rng: random.Random, monkeypatch: pytest.MonkeyPatch, pace: DecodePace
) -> None:
    decode = engine.ask(tokens(rng, 20), max_tokens=200)
    engine.step(5)
    monkeypatch.setattr(engine.scheduler.observation, "pace", pace)
    engine.open("s", tokens(rng, 1900))
    with recorded_steps(engine) as steps:
        engine.step(8)
    assert [step.context for step in steps] == [min(step.allowed, STEP_TOKENS - 1) for step in steps]
    assert any(0 < step.context <= 16 for step in steps)
    assert all(step.requests == 1 for step in steps)

    engine.abort(decode)
    engine.step(2)
    with recorded_steps(engine) as steps:
        engine.step(2)
    assert [step.context for step in steps] == [STEP_TOKENS, STEP_TOKENS]


@pytest.mark.parametrize("context", [64, 1900])
def test_a_structured_answer_begins_beside_a_decode_and_a_stream(
    engine: Engine, rng: random.Random, context: int
) -> None:
    """The stream is idle, or is being prefilled. A request that waits for its grammar was looked at by nobody until
    the decode had ended."""
    from vllm.sampling_params import StructuredOutputsParams

    engine.open("s", tokens(rng, context))
    engine.step(3)
    decode = engine.ask(tokens(rng, 50), max_tokens=300)
    engine.step(5)
    choice = StructuredOutputsParams(choice=["yes", "no"])
    structured = engine.ask(tokens(rng, 50), structured_outputs=choice, ignore_eos=False)
    for _ in range(1000):
        if request(engine, structured).structured_output_request.is_grammar_ready:
            break
        time.sleep(0.005)
    engine.step(4)
    assert structured in engine.outputs
    assert not finished(engine, decode)
    engine.abort(decode)
    engine.run()
    assert engine.outputs[structured].outputs[0].text in ("yes", "no")


@pytest.mark.parametrize("pace", [DecodePace(1.5), DecodePace(1.5, alone=1e-3, mixed=32, known=8), DEAR])
def test_streams_get_tokens_beside_prefills_that_leave_no_step_to_decodes_alone(
    engine: Engine, rng: random.Random, monkeypatch: pytest.MonkeyPatch, pace: DecodePace
) -> None:
    """Decodes alone are to be measured, or streams to wait: it gains nobody anything as long as prefills go along in
    small chunks."""
    monkeypatch.setattr(engine.scheduler.scheduler_config, "long_prefill_token_threshold", 16)
    decode = engine.ask(tokens(rng, 20), max_tokens=300)
    prefills = [engine.ask(tokens(rng, 900), max_tokens=2) for _ in range(2)]
    while not all(runs(engine, id) for id in (decode, *prefills)):
        engine.step()
    engine.open("s", tokens(rng, 1900))
    monkeypatch.setattr(engine.scheduler.observation, "pace", pace)
    with recorded_steps(engine) as steps:
        engine.step(20)
    assert not any(finished(engine, id) for id in (decode, *prefills))
    assert all(1 <= step.context == step.beside_prefills for step in steps), steps


def test_a_request_is_prefilled_beside_a_decode_and_a_stream_as_fast_as_without_the_stream(
    engine: Engine, rng: random.Random
) -> None:
    """Only the stream is held back: all that the decode leaves goes to the request."""
    decode = engine.ask(tokens(rng, 20), max_tokens=200)
    engine.step(5)
    engine.open("s", tokens(rng, 1800))
    engine.step(5)
    engine.ask(tokens(rng, 5 * (STEP_TOKENS - 1)), max_tokens=20)
    with recorded_steps(engine) as steps:
        engine.step(5)
    assert [step.requests for step in steps] == [STEP_TOKENS] * 5
    assert not finished(engine, decode)
