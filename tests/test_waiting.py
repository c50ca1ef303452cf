from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stream2llm.waiting import WaitingTimes


@given(st.lists(st.floats(1e-3, 300), min_size=1, max_size=60), st.floats(0.01, 1))
def test_a_quantile_is_at_most_ten_percent_too_long(waits: list[float], share: float) -> None:
    times = WaitingTimes()
    for seconds in waits:
        times.add(seconds)
    exact = sorted(waits)[math.ceil(share * len(waits)) - 1]
    assert exact * 0.999 <= times.quantile(share) <= exact * 1.101
    assert (times.longest, times.total) == (max(waits), len(waits))


def test_without_requests_nobody_waited() -> None:
    assert WaitingTimes().quantile(0.99) == 0


def test_waits_beyond_the_last_bucket_are_counted_in_it() -> None:
    times = WaitingTimes()
    times.add(1e6)
    assert 300 < times.quantile(1) < 1e6
    assert times.longest == 1e6
