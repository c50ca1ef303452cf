"""The published marginals, as the tables have them."""

import pytest

from stream2llm.workloads.marginals import WORKLOADS, published


def test_gaps_are_in_seconds_and_min_and_max_are_percentiles_0_and_100() -> None:
    gaps = published("crawler").gap_s
    assert gaps.count == 29_656
    assert gaps.mean == pytest.approx(1.053)
    assert gaps.std == pytest.approx(1.17026)
    assert list(gaps.percentiles) == [0, 5, 25, 50, 75, 95, 99, 100]
    assert gaps.percentiles[0] == pytest.approx(0.00301)
    assert gaps.percentiles[95] == pytest.approx(3.07799)
    assert gaps.percentiles[100] == pytest.approx(34.94656)


def test_totals() -> None:
    anns = published("anns")
    assert dict(anns.tokens.percentiles) == {50: 10_126, 75: 14_615, 95: 30_618}
    assert anns.duration_s.mean == 4.471
    assert anns.duration_s.std is None
    assert dict(anns.chunks.percentiles) == {0: 1, 50: 4, 100: 26}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_gaps_are_those_between_the_chunks_of_a_query(workload: str) -> None:
    found = published(workload)  # type: ignore[arg-type]
    assert found.gap_s.count / found.chunks.count == pytest.approx(found.chunks.mean - 1, rel=0.01)
    assert found.gap_s.mean * (found.chunks.mean - 1) < found.duration_s.mean
