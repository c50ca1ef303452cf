"""Whatever a trace holds, the simulator answers all of it or refuses it before the run."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream2llm.costs import Mode
from stream2llm.policy import names
from stream2llm.vllm.simulate import Load, Simulation, simulate
from stream2llm.vllm.simulate.engine import Step
from stream2llm.workloads.events import Arm, Counters, Event, What
from stream2llm.workloads.machines import Machine, paper_machine
from stream2llm.workloads.playable import check
from stream2llm.workloads.setup import Setup
from stream2llm.workloads.trace import Kind, Operation, Piece, Query

TINY = replace(paper_machine("2xh200", 2048), kv_tokens=1024, host_tokens=512, step_tokens=128, sequences=4)
MACHINES = {
    "tiny": TINY,
    "short": replace(TINY, longest=300),
    "narrow": replace(TINY, step_tokens=16, sequences=1024),
    "no host tier": replace(TINY, host_tokens=0),
    "less than a block of host": replace(TINY, host_tokens=15),
}
SETUPS = [
    Setup(Arm.WAIT),
    Setup(Arm.WARM),
    *(Setup(Arm.STREAM, policy, mode) for policy in names() for mode in Mode),
]
RUNS = {
    f"{machine}, {setup.name}": (machine, setup)
    for machine in MACHINES
    for setup in SETUPS
    if "host" not in machine or setup.preemption is not Mode.SWAP  # which is refused
}
STEPS = 20_000  # of the engine; far more than any of these runs can need

NAMES = ("?", "a", "b", "\n", "é" * 40)  # of pieces
lengths = st.one_of(st.integers(0, 40), st.sampled_from([15, 16, 17, 128, 300, 900]))
gaps = st.sampled_from([0.0, 0.0, 1e-6, 0.005, 1.0, 7.0])


def of_arm(arm: Arm) -> st.SearchStrategy[str]:
    """Every arm as often as the others, though one has many more setups."""
    return st.sampled_from(sorted(run for run, (_, setup) in RUNS.items() if setup.arm is arm))


@st.composite
def query(draw: st.DrawFn, number: int) -> Query:
    """Ids look like what vLLM or a feed might call another's request."""
    operation = st.builds(
        Operation, st.sampled_from(Kind), gaps, st.lists(st.sampled_from(NAMES), max_size=4).map(tuple)
    )
    return Query(
        id=("0", "0~0", "0#1.0", "?", "q" * 500, "1", "1~0", "1#1.1")[number],
        question=Piece(tokens=draw(st.integers(0, 40))),
        opening=Piece(tokens=draw(lengths)),
        pieces={name: Piece(tokens=draw(lengths)) for name in NAMES} | {"": Piece(text="never named")},
        operations=tuple(draw(st.lists(operation, min_size=1, max_size=6))),
        lead_s=draw(gaps),
    )


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[Query], list[float]]:
    played = [draw(query(number)) for number in range(draw(st.integers(1, 8)))]
    return played, [draw(gaps) for _ in played]


def served(
    machine: Machine, setup: Setup, played: list[Query], arrivals: list[float]
) -> tuple[list[Query], list[float]]:
    """Those that the machine can serve."""
    kept = []
    for each, arrival in zip(played, arrivals, strict=True):
        try:
            check([each], machine, setup)
        except ValueError:
            continue
        kept.append((each, arrival))
    return [each for each, _ in kept], [arrival for _, arrival in kept]


def bound(simulation: Simulation) -> None:
    """A run that goes on for ever fails."""
    step, numbers = simulation.engine.step, itertools.count()

    def counted() -> Step:
        assert next(numbers) < STEPS, "the engine steps for ever"
        return step()

    simulation.engine.step = counted  # type: ignore[method-assign]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([Arm.WAIT, Arm.WARM, Arm.STREAM]).flatmap(of_arm), traces())
def test_every_query_that_is_not_refused_is_answered_and_no_block_is_lost(
    run: str, trace: tuple[list[Query], list[float]]
) -> None:
    machine, setup = MACHINES[RUNS[run][0]], RUNS[run][1]
    played, arrivals = served(machine, setup, *trace)
    simulation = Simulation(machine, setup, played, arrivals)
    bound(simulation)
    free = simulation.engine.free_blocks
    happened: list[Event] = []
    for record in simulation.run():
        if isinstance(record, Event):
            happened.append(record)
    assert isinstance(record, Counters)
    assert Counter(event.query for event in happened if event.what is What.END) == {each.id: 1 for each in played}
    assert simulation.engine.free_blocks == free
    final = {event.query: event.tokens for event in happened if event.what is What.LAST}
    assert final == {each.id: each.tokens for each in played}
    for each in played:
        times = {event.what: event.t for event in happened if event.query == each.id}
        assert times[What.ARRIVED] <= times[What.LAST] < times[What.FIRST] == times[What.END]


def test_a_warm_up_call_without_a_token_is_not_made() -> None:
    """No server takes one."""
    operations = (Operation(Kind.APPEND, 1.0, ()), Operation(Kind.APPEND, 1.0, ("a",)))
    query = Query(id="q", question=Piece(tokens=4), pieces={"a": Piece(tokens=40)}, operations=operations)
    simulation = Simulation(TINY, Setup(Arm.WARM), [query], [0.0])
    asked: list[int] = []
    complete = simulation.engine.complete

    def noted(request_id: str, prompt: list[int], stream: str | None = None) -> None:
        asked.append(len(prompt))
        complete(request_id, prompt, stream)

    simulation.engine.complete = noted  # type: ignore[method-assign]
    list(simulation.run())
    assert asked == [44]


def test_an_id_may_be_what_a_warm_up_call_of_another_query_would_be_called() -> None:
    operations = (Operation(Kind.APPEND, 1.0, ("a",)), Operation(Kind.APPEND, 1.0, ("a",)))
    first = Query(id="q", question=Piece(tokens=4), pieces={"a": Piece(tokens=400)}, operations=operations)
    played = [first, msgspec.structs.replace(first, id="q~0", operations=operations[1:])]
    measured = simulate(TINY, Setup(Arm.WARM), Load("mine", played, [0.0, 0.0], 1.0))
    assert [len(measured.ttft), measured.counters["tokens_computed"]] == [2, 400 + 404 + 404]


def of_length(*contexts: int, question: int) -> Query:
    """Contexts that replace each other, a second apart."""
    return Query(
        id="q",
        question=Piece(tokens=question),
        pieces={f"{number}": Piece(tokens=tokens) for number, tokens in enumerate(contexts)},
        operations=tuple(Operation(Kind.REPLACE, 1.0, (f"{number}",)) for number in range(len(contexts))),
    )


@pytest.mark.parametrize("run", sorted(RUNS))
def test_a_prompt_as_long_as_the_machine_serves_is_answered_and_one_token_more_is_refused(run: str) -> None:
    machine, setup = MACHINES[RUNS[run][0]], RUNS[run][1]
    limit = machine.longest_prompt
    for served in (of_length(100, limit - 1, question=1), of_length(limit, 50, question=10)):
        load = Load("mine", [served, replace_id(served)], [0.0, 0.5], 1.0)
        assert len(simulate(machine, setup, load).ttft) == 2
    for refused in (of_length(100, limit, question=1), of_length(limit + 1, 50, question=10)):
        with pytest.raises(ValueError, match=f"{limit + 1} tokens; the machine serves up to {limit}"):
            simulate(machine, setup, Load("mine", [refused], [0.0], 1.0))


def replace_id(query: Query) -> Query:
    return msgspec.structs.replace(query, id="r")
