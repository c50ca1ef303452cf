"""Arrivals: a Poisson process by seed, or gaps from a file."""

from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.workloads.arrivals import from_gaps, poisson, read_gaps
from stream2llm.workloads.lines import FormatError


def test_the_rate_is_the_one_that_was_asked_for_and_gaps_are_exponential() -> None:
    times = poisson(4.0, seed=1, count=20_000)
    gaps = [later - earlier for earlier, later in zip((0.0, *times), times, strict=False)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.03)
    assert pstdev(gaps) == pytest.approx(0.25, rel=0.05)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.01)


@given(st.floats(0.01, 1000), st.integers(), st.integers(0, 50))
def test_arrivals_are_in_order_the_same_for_a_seed_and_another_rate_only_scales_them(
    qps: float, seed: int, count: int
) -> None:
    times = poisson(qps, seed, count)
    assert len(times) == count
    assert list(times) == sorted(times)
    assert times == poisson(qps, seed, count)
    assert times == pytest.approx([t / qps for t in poisson(1.0, seed, count)])


def test_seeds_differ() -> None:
    assert poisson(1.0, 0, 5) != poisson(1.0, 1, 5)


@pytest.mark.parametrize("qps", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(qps: float) -> None:
    with pytest.raises(ValueError, match=r"`qps` is .*; it must be a number above 0"):
        poisson(qps, 0, 1)


def test_a_count_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="`count` is -1"):
        poisson(1.0, 0, -1)


def test_gaps_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gaps.txt"
    path.write_text("# measured on Monday\n0\n0.5\n\n1e-1  # a burst\n")
    assert read_gaps(path) == (0.0, 0.5, 0.1)
    assert from_gaps(read_gaps(path)) == pytest.approx((0.0, 0.5, 0.6))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\nsoon\n", "line 2: 'soon' is not a number"),
        ("1\n\n-2\n", "line 3: the gap is -2; it must be 0 or more"),
        ("nan\n", "line 1: the gap is nan"),
        ("inf\n", "line 1: the gap is inf"),
        ("# none\n", "there is no gap in it"),
        ("", "there is no gap in it"),
    ],
)
def test_a_file_that_has_other_things_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "gaps.txt"
    path.write_text(text)
    with pytest.raises(FormatError) as refusal:
        read_gaps(path)
    assert says in str(refusal.value)
    assert str(path) in str(refusal.value)
