"""What a trace is like: gaps between chunks, chunks, tokens and seconds per query, as the paper's tables give them.

Percentiles are interpolated linearly between the two nearest ranks, as in numpy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from stream2llm.workloads.marginals import WORKLOADS, Marginal, published
from stream2llm.workloads.trace import Query

PERCENTILES = (5, 25, 50, 75, 95, 99)

QUANTITIES: Mapping[str, str] = {
    "gap_s": "gap between chunks, s",
    "chunks": "chunks per query",
    "tokens": "tokens per query",
    "duration_s": "duration, s",
}
"""The quantities by their names, with what they are called; in the order of the paper's tables."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one quantity. All but `count` are 0 where there is no value. `percentiles`: by percent."""

    count: int
    mean: float
    std: float
    minimum: float
    maximum: float
    percentiles: Mapping[int, float]

    def json(self) -> dict[str, float]:
        return {
            "count": self.count,
            "mean": self.mean,
            "std": self.std,
            "min": self.minimum,
            **{f"p{percent}": value for percent, value in self.percentiles.items()},
            "max": self.maximum,
        }


@dataclass(frozen=True, slots=True)
class Characteristics:
    """The values of each quantity, in the trace's order.

    A chunk is what comes at one moment: an operation's pieces, or the opening of a context that has a lead, such as the
    search before a crawl. In the workload "anns" a gap is the time for which a pool was the best, before it is handed
    over; the last pool's, until the search ends, is no gap. Both as the paper counts.
    """

    workload: str
    values: Mapping[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in QUANTITIES})

    def add(self, query: Query) -> None:
        gaps = tuple(_gaps(self.workload, query))
        self.values["gap_s"].extend(gaps)
        self.values["chunks"].append(len(gaps) + 1)
        self.values["tokens"].append(query.tokens)
        self.values["duration_s"].append(query.retrieval_s)

    def summary(self, quantity: str) -> Summary:
        values = np.asarray(self.values[quantity])
        if not len(values):
            return Summary(0, 0.0, 0.0, 0.0, 0.0, dict.fromkeys(PERCENTILES, 0.0))
        percentiles = np.percentile(values, PERCENTILES)
        return Summary(
            count=len(values),
            mean=float(values.mean()),
            std=float(values.std()),
            minimum=float(values.min()),
            maximum=float(values.max()),
            percentiles=dict(zip(PERCENTILES, map(float, percentiles), strict=True)),
        )


def characterise(workload: str, queries: Iterable[Query]) -> Characteristics:
    """Keeps the numbers only, so that a trace of long texts need not be in memory."""
    found = Characteristics(workload)
    for query in queries:
        found.add(query)
    return found


def deviations(quantity: str, summary: Summary, workload: str) -> dict[str, float]:
    """How far each figure is from the published one, as a share of that; empty if nothing is published."""
    if workload not in WORKLOADS or not summary.count:
        return {}
    known: Marginal = getattr(published(workload), quantity)
    names: dict[float, str] = {0: "min", 100: "max"}
    expected = {"mean": known.mean, **{names.get(p, f"p{p:g}"): value for p, value in known.percentiles.items()}}
    if known.std is not None:
        expected["std"] = known.std
    found = summary.json()
    return {name: found[name] / expected[name] - 1 for name in found if name in expected}


def _gaps(workload: str, query: Query) -> Iterator[float]:
    gaps = [operation.gap_s for operation in query.operations]
    if workload == "anns":
        yield from gaps[:-1]
    else:
        yield from gaps if query.lead_s else gaps[1:]
