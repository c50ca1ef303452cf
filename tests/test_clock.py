"""The machine's time and virtual time."""

from __future__ import annotations

import time

from stream2llm.clock import SystemClock, VirtualClock


def test_the_system_clock_tells_unix_time_and_does_not_run_back() -> None:
    clock = SystemClock()
    assert time.time() <= clock.time() <= time.time()
    assert time.monotonic() <= clock.monotonic() <= time.monotonic()


def test_a_virtual_clock_stands_until_it_is_set_forward() -> None:
    clock = VirtualClock(5.0)
    assert (clock.time(), clock.monotonic(), clock.time()) == (5.0, 5.0, 5.0)
    clock.now += 2.5
    assert (clock.time(), clock.monotonic()) == (7.5, 7.5)
