"""Every policy on the real engine: plans are carried out exactly, nobody hangs, nothing leaks, answers stay equal. (The
other tests of this package have the default policy.)"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from plans import Watch, run_random_history
from stepping import Engine, left_empty, running_engine
from stream2llm.policy import DEFAULT_POLICY, names

BLOCKS = 161  # 160 blocks of 32 tokens: 5,120 tokens


@pytest.fixture(scope="module", params=sorted({*names()} - {DEFAULT_POLICY}))
def shared(request: pytest.FixtureRequest, model: str) -> Iterator[Engine]:
    chosen = {"stream2llm": {"policy": request.param}}
    with running_engine(model, asynchronous=True, blocks=BLOCKS, additional_config=chosen) as engine:
        assert engine.figures["policy"] == request.param
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    with left_empty(shared, BLOCKS - 1):
        yield shared


def test_every_step_is_as_planned(engine: Engine) -> None:
    watch = Watch(engine.scheduler)
    run_random_history(engine, watch, random.Random(1))
    assert watch.exact > 5
    assert watch.taken
    assert engine.figures["stalls"] == 0
