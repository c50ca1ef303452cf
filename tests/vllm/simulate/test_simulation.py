"""The simulator: the production scheduler on a virtual clock, with step times from a profile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from stream2llm.costs import Mode
from stream2llm.policy import names
from stream2llm.vllm.simulate import Load, Simulation, simulate
from stream2llm.workloads.arrivals import poisson
from stream2llm.workloads.events import Arm, Counters, Event, What
from stream2llm.workloads.machines import Machine, paper_machine
from stream2llm.workloads.measured import read
from stream2llm.workloads.setup import Setup
from stream2llm.workloads.synthetic import queries
from stream2llm.workloads.trace import Kind, Operation, Piece, Query

MACHINE = paper_machine("2xh200", 2048)
TIGHT = replace(MACHINE, kv_tokens=120_000, host_tokens=40_000)
SETUPS = [Setup(Arm.WAIT), Setup(Arm.WARM), *(Setup(Arm.STREAM, policy) for policy in names())]


def crawl(*tokens: int, gap_s: float = 1.0) -> Query:
    """One page a gap; the question has 20 tokens, the opening 30."""
    return Query(
        id="q",
        question=Piece(tokens=20),
        opening=Piece(tokens=30),
        pieces={f"p{number}": Piece(tokens=count) for number, count in enumerate(tokens)},
        operations=tuple(Operation(Kind.APPEND, gap_s, (f"p{number}",)) for number in range(len(tokens))),
        lead_s=0.5,
    )


def run(machine: Machine, setup: Setup, played: list[Query], arrivals: list[float]) -> tuple[Simulation, list[Event]]:
    simulation = Simulation(machine, setup, played, arrivals)
    before = simulation.engine.free_blocks
    records = list(simulation.run())
    assert isinstance(records[-1], Counters)
    assert simulation.engine.free_blocks == before
    return simulation, [record for record in records if isinstance(record, Event)]


def at(events: list[Event], what: What) -> float:
    (event,) = [event for event in events if event.what is what]
    return event.t


def test_waiting_alone_takes_exactly_what_the_profile_says_of_its_steps() -> None:
    _, events = run(MACHINE, Setup(Arm.WAIT), [crawl(1000, 2000, 2000)], [2.0])
    assert at(events, What.ARRIVED) == 2.0
    assert at(events, What.LAST) == pytest.approx(2.0 + 0.5 + 3.0)
    steps = [(2048, 0), (2048, 2048), (5050 - 4096, 4096)]
    expected = sum(MACHINE.profile.step_seconds([step]) for step in steps)
    assert at(events, What.FIRST) - at(events, What.LAST) == pytest.approx(expected)


def test_a_stream_alone_computes_only_the_last_page_and_the_question_behind_it() -> None:
    simulation, events = run(MACHINE, Setup(Arm.STREAM), [crawl(1600, 1600, 800)], [0.0])
    held = (30 + 1600 + 1600) // 16 * 16
    expected = MACHINE.profile.step_seconds([(4050 - held, held)])
    assert at(events, What.FIRST) - at(events, What.LAST) == pytest.approx(expected)
    assert simulation.engine.tokens_computed == 4050


def test_warm_up_calls_leave_their_whole_blocks_in_the_prefix_cache() -> None:
    _, events = run(MACHINE, Setup(Arm.WARM), [crawl(1600, 1600, 800)], [0.0])
    held = (30 + 1600 + 1600) // 16 * 16
    expected = MACHINE.profile.step_seconds([(4050 - held, held)])
    assert at(events, What.FIRST) - at(events, What.LAST) == pytest.approx(expected)


def test_what_a_replacement_keeps_is_its_common_prefix() -> None:
    query = Query(
        id="q",
        question=Piece(tokens=16),
        pieces={name: Piece(tokens=160) for name in "abcd"},
        operations=tuple(Operation(Kind.REPLACE, 1.0, tuple(pool)) for pool in ("abc", "adc", "adb")),
    )
    simulation, events = run(MACHINE, Setup(Arm.STREAM), [query], [0.0])
    assert simulation.counters()["tokens_invalidated"] == 320 + 160  # the second pool's, and the last one's
    assert [event.computed for event in events if event.what is What.ACKED] == [0, 160]
    assert simulation.engine.tokens_computed == 480 + 320 + 160 + 16


def test_a_query_of_one_operation_opens_a_stream_and_asks() -> None:
    for setup in SETUPS:
        _, events = run(MACHINE, setup, [crawl(500)], [0.0])
        assert Counter(event.what for event in events) == {
            What.ARRIVED: 1, What.LAST: 1, What.FIRST: 1, What.END: 1,
        }  # fmt: skip


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
@pytest.mark.parametrize("workload", ["crawler", "anns"])
def test_under_memory_pressure_every_query_is_answered_and_no_block_is_lost(workload: str, setup: Setup) -> None:
    played = [query.delayed(10) for query in queries(workload, 40, 3)]
    simulation, events = run(TIGHT, setup, played, list(poisson(4.0, 3, 40)))
    assert Counter(event.what for event in events)[What.END] == 40
    assert simulation.engine.tokens_computed >= simulation.needed_tokens
    for query in played:
        times = {event.what: event.t for event in events if event.query == query.id}
        assert times[What.ARRIVED] <= times[What.LAST] <= times[What.FIRST] <= times[What.END]


@pytest.mark.parametrize("mode", [Mode.RECOMPUTE, Mode.SWAP, Mode.COST])
def test_what_is_given_up_is_swapped_or_computed_again_as_told(mode: Mode) -> None:
    played = [query.delayed(10) for query in queries("crawler", 40, 3)]
    simulation, _ = run(TIGHT, Setup(preemption=mode), played, list(poisson(4.0, 3, 40)))
    figures = simulation.counters()
    assert figures["preempted"] + figures["pins_evicted"] > 0
    assert (figures["tokens_swapped"] > 0) == (mode is not Mode.RECOMPUTE)
    assert (simulation.engine.tokens_computed > simulation.needed_tokens) or mode is not Mode.RECOMPUTE


def test_the_same_run_gives_the_same_log(tmp_path: object) -> None:
    played = list(queries("anns", 30, 1))
    twice = [run(TIGHT, Setup(), played, list(poisson(2.0, 1, 30)))[1] for _ in range(2)]
    assert twice[0] == twice[1]


def test_the_event_log_reads_back_as_what_was_measured(tmp_path) -> None:
    path = tmp_path / "run.jsonl.gz"
    load = Load("crawler", list(queries("crawler", 20, 0)), poisson(4.0, 0, 20), 4.0, delay=2.0)
    ended: list[int] = []
    measured = simulate(MACHINE, Setup(), load, path, ended.append)
    again = read(path)
    assert ended == list(range(1, 21))
    assert again.ttft == measured.ttft
    assert again.counters == measured.counters
    assert (again.run.clock, again.run.delay, again.run.policy) == ("virtual", 2.0, "srpf")
    assert again.work_ratio == pytest.approx(measured.counters["tokens_computed"] / measured.counters["tokens_needed"])


def test_a_prompt_that_the_machine_cannot_serve_is_refused_with_both_lengths() -> None:
    load = Load("crawler", [crawl(5000)], [0.0], 1.0)
    with pytest.raises(ValueError, match=r"5050 tokens; the machine serves up to 4095"):
        simulate(replace(MACHINE, longest=4096), Setup(), load)


def test_streaming_input_is_not_simulated() -> None:
    with pytest.raises(ValueError, match="not simulated"):
        Setup(Arm.INPUT)
