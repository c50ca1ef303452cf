"""Following a plan: which events are logged in which order, what fails alone, and what a stop leaves behind.

The arms here are scripted; those that speak to a server are in test_arms.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from replay_traces import query
from stream2llm.workloads.events import Arm, Clock, Run, What, read_events
from stream2llm.workloads.replay.plan import plan
from stream2llm.workloads.replay.run import STOPPED, record

RUN = Run(clock=Clock.REAL, arm=Arm.STREAM, workload="test", qps=1, queries=3)


class Refused(Exception):
    """What a scripted arm fails with."""


class Scripted:
    """Answers each query with two tokens; those named in `refused` fail, those in `silent` never answer.

    `stops`: the query with whose answer the run is to be stopped.
    """

    failures = (Refused,)

    def __init__(self, refused=(), silent=(), stops=None):
        self._refused, self._silent, self._stops = refused, silent, stops
        self.stop = None
        self.handed_over = []
        self.given_up = 0

    @asynccontextmanager
    async def delivery(self, contents, notes):
        try:
            yield _Delivery(self, contents, notes)
        finally:
            self.given_up += 1


class _Delivery:
    def __init__(self, arm, contents, notes):
        self._arm, self._contents, self._notes = arm, contents, notes
        self._name = contents._query.id

    def open(self):
        self._arm.handed_over.append((self._name, "open"))

    def hand_over(self, due):
        self._arm.handed_over.append((self._name, due.number))
        self._notes.sent(due.number, due.tokens)

    async def answer(self, due, first):
        if self._name in self._arm._refused:
            raise Refused("the prompt is too long")
        if self._name in self._arm._silent:
            await asyncio.Event().wait()
        first()
        if self._name == self._arm._stops:
            self._arm.stop.set()
        return 2


def recorded(path, arm, queries, arrivals):
    """The log's header, its events by query, and the counters' values."""

    async def run():
        async def count():
            return {}

        arm.stop = asyncio.Event()
        return await record(path, RUN, plan(queries, arrivals), arm, count=count, stop=arm.stop)

    measured = asyncio.run(run())
    _, records = read_events(path)
    *events, counters = records
    by_query = {}
    for event in events:
        by_query.setdefault(event.query, []).append(event)
    return measured, by_query, counters.values


def test_a_query_is_logged_from_its_arrival_to_its_end(tmp_path):
    arm = Scripted()
    one = query("a", [0.01, 0.02, 0.03], tokens=40, opening=8, lead_s=0.05)
    measured, events, counters = recorded(tmp_path / "log.jsonl", arm, [one], [0.1])
    assert [(event.what, event.operation, event.tokens) for event in events["a"]] == [
        (What.ARRIVED, None, None),
        (What.SENT, 0, 48),
        (What.SENT, 1, 88),
        (What.LAST, 2, 133),
        (What.FIRST, None, None),
        (What.END, None, 2),
    ]
    assert arm.handed_over == [("a", "open"), ("a", 0), ("a", 1)]
    due = [0.1, 0.16, 0.18, 0.21]
    for event, at_s in zip(events["a"][:4], due, strict=True):
        assert event.t >= at_s
    assert counters["load_lag_p100_seconds"] >= counters["load_lag_p50_seconds"] >= 0
    assert len(measured.ttft) == 1


def test_a_query_that_fails_is_an_error_in_the_log_and_the_others_go_on(tmp_path):
    arm = Scripted(refused={"b"})
    queries = [query(name, [0.01]) for name in "abc"]
    measured, events, _ = recorded(tmp_path / "log.jsonl", arm, queries, [0.0, 0.01, 0.02])
    assert measured.failed == 1
    assert len(measured.completion) == 2
    assert (events["b"][-1].what, events["b"][-1].detail) == (What.ERROR, "the prompt is too long")
    assert arm.given_up == 3


def test_a_stop_gives_up_what_is_under_way_and_leaves_out_what_is_to_come(tmp_path):
    arm = Scripted(silent={"b"}, stops="a")
    queries = [query(name, [0.01]) for name in "bac"]
    measured, events, counters = recorded(tmp_path / "log.jsonl", arm, queries, [0.0, 0.05, 1000.0])
    assert set(events) == {"a", "b"}
    assert (events["b"][-1].what, events["b"][-1].detail) == (What.ERROR, STOPPED)
    assert events["a"][-1].what is What.END
    assert arm.given_up == 2
    assert not measured.cut_off
    assert counters


def test_a_bug_in_an_arm_ends_the_run(tmp_path):
    class Broken(Scripted):
        failures = ()

    with pytest.raises(Refused):
        recorded(tmp_path / "log.jsonl", Broken(refused={"a"}), [query("a", [0.01])], [0.0])
