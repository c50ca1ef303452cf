"""What a trace is like."""

from __future__ import annotations

import pytest

from stream2llm.workloads.characteristics import QUANTITIES, characterise, deviations
from stream2llm.workloads.marginals import published
from stream2llm.workloads.trace import Kind, Operation, Piece, Query


def query(*gaps: float, lead: float = 0.0, op: Kind = Kind.APPEND, tokens: int = 10) -> Query:
    names = tuple(f"p{number}" for number in range(len(gaps)))
    return Query(
        id="q",
        question=Piece(tokens=1),
        operations=tuple(Operation(op, gap, (name,)) for gap, name in zip(gaps, names, strict=True)),
        pieces={name: Piece(tokens=tokens) for name in names},
        lead_s=lead,
        opening=Piece(text="12345678"),
    )


def test_the_opening_after_a_search_is_a_chunk() -> None:
    found = characterise("crawler", [query(1.0, 2.0, lead=3.0)])
    assert list(found.values["gap_s"]) == [1.0, 2.0]
    assert list(found.values["chunks"]) == [3]
    assert list(found.values["tokens"]) == [2 + 20 + 1]
    assert list(found.values["duration_s"]) == [6.0]


def test_without_a_lead_the_first_operation_is_the_first_chunk() -> None:
    found = characterise("mine", [query(1.0, 2.0, 5.0), query(4.0)])
    assert list(found.values["gap_s"]) == [2.0, 5.0]
    assert list(found.values["chunks"]) == [3, 1]
    assert list(found.values["duration_s"]) == [8.0, 4.0]


def test_the_papers_pools_are_counted_from_the_beginning_of_their_times() -> None:
    found = characterise("anns", [query(0.1, 0.2, 4.0, op=Kind.REPLACE), query(3.0, op=Kind.REPLACE)])
    assert list(found.values["gap_s"]) == [0.1, 0.2]
    assert list(found.values["chunks"]) == [3, 1]
    assert found.values["duration_s"][1] == 3.0


def test_a_summary() -> None:
    found = characterise("mine", (query(*[0.0] * chunks) for chunks in (1, 2, 3, 4)))
    summary = found.summary("chunks")
    assert (summary.count, summary.mean, summary.minimum, summary.maximum) == (4, 2.5, 1, 4)
    assert summary.std == pytest.approx(1.118, abs=1e-3)
    assert summary.percentiles[50] == 2.5
    assert summary.percentiles[95] == pytest.approx(3.85)
    assert list(summary.json()) == ["count", "mean", "std", "min", "p5", "p25", "p50", "p75", "p95", "p99", "max"]


def test_of_nothing_everything_is_0() -> None:
    summary = characterise("crawler", []).summary("gap_s")
    assert set(summary.json().values()) == {0}
    assert deviations("gap_s", summary, "crawler") == {}


def test_deviations_are_shares_of_the_published_figures() -> None:
    found = characterise("crawler", [query(1.053, lead=1.0)])
    off = deviations("gap_s", found.summary("gap_s"), "crawler")
    assert off["mean"] == pytest.approx(0)
    assert off["p95"] == pytest.approx(1.053 / published("crawler").gap_s.percentiles[95] - 1)
    assert off["std"] == -1
    assert list(off) == ["mean", "std", "min", "p5", "p25", "p50", "p75", "p95", "p99", "max"]
    assert list(deviations("tokens", found.summary("tokens"), "crawler")) == ["mean", "p50", "p75", "p95"]


def test_other_workloads_have_no_published_figures() -> None:
    found = characterise("mine", [query(1.0, 1.0)])
    assert [deviations(quantity, found.summary(quantity), "mine") for quantity in QUANTITIES] == [{}] * 4
