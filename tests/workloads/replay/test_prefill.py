"""The curve that a load is matched to, from scripted times; a server's own are in test_arms."""

from __future__ import annotations

import asyncio

import pytest

from stream2llm.workloads.replay.prefill import prefill_curve


class Scripted:
    """Gives these seconds, whatever the length, and says which lengths it was asked for."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self.asked: list[int] = []

    async def __call__(self, tokens: int) -> float:
        self.asked.append(tokens)
        return next(self._seconds)


def test_the_first_call_does_not_count_and_the_median_of_the_others_does():
    times = Scripted(9.0, 1.0, 2.0, 1.2, 2.2, 7.0, 2.1)
    curve = asyncio.run(prefill_curve(times, [64, 32], repeats=3))
    assert times.asked == [32, 32, 64, 32, 64, 32, 64]
    assert (curve(32), curve(64)) == (1.2, 2.1)


def test_it_never_falls():
    curve = asyncio.run(prefill_curve(Scripted(9.0, 2.0, 1.0, 3.0), [32, 64, 128], repeats=1))
    assert [curve(tokens) for tokens in (32, 64, 128)] == [2.0, 2.0, 3.0]


def test_what_would_take_long_is_left_out_but_for_a_second_length():
    times = Scripted(9.0, 0.1, 3.0)
    curve = asyncio.run(prefill_curve(times, [32, 64, 128, 256], repeats=1, enough_s=2.0))
    assert times.asked == [32, 32, 64]
    assert curve(128) == pytest.approx(3.0 + 64 * 2.9 / 32)
