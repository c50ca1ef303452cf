"""Phase 2 carries plans out exactly: on random histories under pressure, each step is compared with its plan."""

from __future__ import annotations

import random

from plans import Watch, run_random_history
from stepping import Engine


def test_every_step_is_as_planned(engine: Engine) -> None:
    watch = Watch(engine.scheduler)
    stalls = engine.figures["stalls"]
    for seed in range(4):
        run_random_history(engine, watch, random.Random(seed))
        engine.settle()
    assert watch.plans > 100
    assert watch.exact > 10
    assert watch.taken
    assert watch.parked
    assert engine.figures["stalls"] == stalls
