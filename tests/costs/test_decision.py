"""Recompute or swap, by the victim's own blocks; mode cost is never worse than a pure strategy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs_profiles import profile
from stream2llm.costs import (
    CorrectedCosts,
    Correction,
    Costs,
    Curve,
    Mode,
    Preemption,
    Victim,
    decide,
    paper_profile,
)

PROFILE = profile()  # 1 ms a new token, 1 us a pair, 0.1 ms out, 0.2 ms in: swap is cheaper
H200 = paper_profile("2xh200")
ratios = st.floats(0.25, 4.0)


@st.composite
def victims(draw: st.DrawFn) -> Victim:
    tokens = draw(st.integers(0, 200_000))
    return Victim(tokens, draw(st.integers(0, 200_000)), draw(st.integers(0, tokens)))


@st.composite
def costs(draw: st.DrawFn) -> Costs:
    """A profile whose prices are moved to and fro, so that either way may be the cheaper one."""
    return CorrectedCosts(
        draw(st.sampled_from([PROFILE, H200])),
        Correction(draw(ratios)),
        Correction(draw(ratios)),
        Correction(draw(ratios)),
    )


class Dear:
    """Copies that cost a fixed second each, prefill a millisecond a token: short victims are better recomputed."""

    prefill = Curve((0.0, 1e6), (0.0, 1e3))

    def prefill_seconds(self, new_tokens: float, context_tokens: float = 0) -> float:
        return self.prefill(new_tokens)

    def copy_out_seconds(self, tokens: float) -> float:
        return 1.0 if tokens else 0.0

    def copy_in_seconds(self, tokens: float) -> float:
        return 1.0 if tokens else 0.0


def test_the_cheaper_way_is_taken() -> None:
    assert decide(Victim(1999), Dear()).preemption is Preemption.RECOMPUTE
    assert decide(Victim(2001), Dear()).preemption is Preemption.SWAP


def test_prices_are_those_of_the_victims_own_tokens() -> None:
    """BUGS 19: what the victim holds decides, not the request that takes its place."""
    decision = decide(Victim(500, context_tokens=1000), PROFILE)
    assert decision is not None
    assert decision.recompute_seconds == pytest.approx(0.5 + 500 * 1000 * 1e-6)
    assert decision.swap_seconds == pytest.approx(0.05 + 0.1)
    assert decision.preemption is Preemption.SWAP
    assert decision.seconds == decision.swap_seconds


def test_a_long_context_in_front_makes_recompute_dearer() -> None:
    prices = [decide(Victim(500, context), PROFILE).recompute_seconds for context in (0, 1000, 4000)]
    assert prices == sorted(prices)
    assert prices[0] < prices[-1]


def test_what_has_a_copy_on_the_host_is_not_copied_out_again() -> None:
    assert decide(Victim(1500, on_host=1500), Dear()).preemption is Preemption.SWAP
    assert decide(Victim(1500, on_host=0), Dear()).preemption is Preemption.RECOMPUTE


@pytest.mark.parametrize("mode", [Mode.COST, Mode.RECOMPUTE, Mode.SWAP])
def test_a_victim_that_holds_nothing_alone_is_dropped_for_free(mode: Mode) -> None:
    decision = decide(Victim(0, context_tokens=5000), PROFILE, mode)
    assert decision is not None
    assert decision.preemption is Preemption.RECOMPUTE
    assert decision.seconds == 0.0


def test_pure_modes_do_not_look_at_the_price() -> None:
    assert decide(Victim(1999), Dear(), Mode.SWAP).preemption is Preemption.SWAP
    assert decide(Victim(2001), Dear(), Mode.RECOMPUTE).preemption is Preemption.RECOMPUTE


def test_mode_off_preempts_nobody() -> None:
    assert decide(Victim(500), PROFILE, Mode.OFF) is None


@pytest.mark.parametrize("mode", [Mode.COST, Mode.SWAP])
def test_a_full_host_pool_means_recompute(mode: Mode) -> None:
    full = decide(Victim(500), PROFILE, mode, host_tokens=499)
    assert full is not None
    assert full.preemption is Preemption.RECOMPUTE
    assert full.swap_seconds == math.inf
    assert decide(Victim(500), PROFILE, mode, host_tokens=500).preemption is Preemption.SWAP
    assert decide(Victim(500, on_host=400), PROFILE, mode, host_tokens=100).preemption is Preemption.SWAP


@given(victims(), costs(), st.one_of(st.just(math.inf), st.integers(0, 200_000)))
def test_mode_cost_is_never_worse_than_a_pure_strategy(victim: Victim, prices: Costs, room: float) -> None:
    chosen = decide(victim, prices, Mode.COST, room)
    for mode in (Mode.RECOMPUTE, Mode.SWAP):
        assert chosen.seconds <= decide(victim, prices, mode, room).seconds


@given(st.lists(victims(), max_size=30), costs())
def test_over_many_victims_it_beats_the_better_of_both(crowd: list[Victim], prices: Costs) -> None:
    def total(mode: Mode) -> float:
        return sum(decide(victim, prices, mode).seconds for victim in crowd)

    assert total(Mode.COST) <= min(total(Mode.RECOMPUTE), total(Mode.SWAP)) * (1 + 1e-12)


@pytest.mark.parametrize("counts", [(-1, 0, 0), (1, -1, 0), (1, 0, -1), (1, 0, 2)])
def test_impossible_token_counts_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="token counts"):
        Victim(*counts)
