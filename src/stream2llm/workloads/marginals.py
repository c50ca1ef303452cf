"""The paper's published marginals of its two workloads, from the tables in `paper/`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

Workload = Literal["crawler", "anns"]
WORKLOADS: tuple[Workload, ...] = get_args(Workload)


@dataclass(frozen=True, slots=True)
class Marginal:
    """What is published of one quantity. `percentiles`: by percent, 0 is the minimum and 100 the maximum."""

    count: int
    mean: float
    percentiles: Mapping[float, float]
    std: float | None = None


@dataclass(frozen=True, slots=True)
class Marginals:
    """`gap_s`: seconds between two chunks of a query. `duration_s`: from a query's start to its last chunk."""

    gap_s: Marginal
    chunks: Marginal
    tokens: Marginal
    duration_s: Marginal


@cache
def published(workload: Workload) -> Marginals:
    """What the paper says of this workload."""
    totals = {row["quantity"]: row for row in _rows("query_totals.csv", workload)}
    (gaps,) = _rows("chunk_gaps_ms.csv", workload)
    (chunks,) = _rows("chunks_per_query.csv", workload)
    return Marginals(
        gap_s=_marginal(gaps, count="count", unit=1e-3),
        chunks=_marginal(chunks, count="queries"),
        tokens=_marginal(totals["tokens"], count="n"),
        duration_s=_marginal(totals["duration"], count="n"),
    )


def _rows(table: str, workload: Workload) -> list[dict[str, str]]:
    with files("stream2llm.workloads").joinpath("paper", table).open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["workload"] == workload]


def _marginal(row: Mapping[str, str], *, count: str, unit: float = 1.0) -> Marginal:
    percents = {"min": 0, "median": 50, "max": 100} | {f"p{percent}": percent for percent in range(100)}
    values = {percents[name]: float(value) * unit for name, value in row.items() if name in percents}
    return Marginal(
        count=int(row[count]),
        mean=float(row["mean"]) * unit,
        percentiles=dict(sorted(values.items())),
        std=float(row["std"]) * unit if "std" in row else None,
    )
