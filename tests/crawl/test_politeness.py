"""The time between two requests, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from stream2llm.crawl.politeness import Politeness


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def turns(politeness: Politeness, clock: Clock, *requests: tuple[str, float]) -> list[float]:
    async def take() -> list[float]:
        times = []
        for host, asked in requests:
            await politeness.turn(host, asked)
            times.append(clock.now)
        return times

    return asyncio.run(take())


def test_spaces_requests_to_one_host_and_lets_other_hosts_go() -> None:
    clock = Clock()
    politeness = Politeness(0.5, lambda: clock.now, clock.sleep)

    assert turns(politeness, clock, ("a", 0), ("b", 0), ("a", 0), ("a", 0)) == [100.0, 100.0, 100.5, 101.0]


def test_the_longer_of_both_intervals_holds() -> None:
    clock = Clock()
    politeness = Politeness(0.5, lambda: clock.now, clock.sleep)

    assert turns(politeness, clock, ("a", 2.0), ("a", 2.0), ("a", 0.1)) == [100.0, 102.0, 104.0]


def test_does_not_wait_for_what_has_long_passed() -> None:
    clock = Clock()
    politeness = Politeness(0.5, lambda: clock.now, clock.sleep)
    turns(politeness, clock, ("a", 0))
    clock.now += 10

    assert turns(politeness, clock, ("a", 0)) == [110.0]


def test_requests_at_the_same_time_are_spaced_too() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    async def run() -> None:
        politeness = Politeness(0.25, lambda: 7.0, sleep)
        await asyncio.gather(*(politeness.turn("a") for _ in range(4)))

    asyncio.run(run())
    assert [later - earlier for earlier, later in pairwise(sorted(slept))] == [0.25] * 3
