"""Synthetic traces with the paper's published marginals, by seed. Content is token counts.

What is published: gaps between chunks, chunks per query, tokens and seconds per query (`marginals`). What is not, and
is a model here: how tokens are shared among pieces, how chunks and tokens are correlated, how a candidate pool changes,
and the smallest and largest totals. docs/traces.md lists it all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from stream2llm.workloads.marginals import Marginal, Workload, published
from stream2llm.workloads.sampling import Counts, LogNormalPieces, divided, stratified
from stream2llm.workloads.trace import Kind, Operation, Piece, Query

OPENING_TOKENS = QUESTION_TOKENS = 20
"""The prompt's template in front of the context, and the question behind it."""

POOL = 10
"""Passages in a candidate pool."""

NEWCOMERS = 1
"""Passages that enter a pool at each change, each at a random rank; as many leave it at the end."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is not published of a workload, chosen so that the published means come out.

    `tokens`, `duration_s`: smallest and largest. `dispersion` of the chunks per query: it gives the published medians
    and makes the published maxima likely. `spread`: standard deviation of the logarithm of a piece's length, relative
    to the others. `lead`: share of the search before the first page in the time to that page. `soonest_s`: shortest
    time to the first chunk.
    """

    tokens: tuple[float, float]
    duration_s: tuple[float, float]
    dispersion: float
    spread: float
    lead: float
    soonest_s: float


MODELS: dict[Workload, Model] = {
    "crawler": Model((500, 60_000), (2.0, 30.0), dispersion=1000, spread=1.0, lead=0.5, soonest_s=0.2),
    "anns": Model((4_000, 60_000), (1.2, 17.0), dispersion=2, spread=0.5, lead=0.0, soonest_s=0.5),
}


@dataclass(frozen=True, slots=True)
class _Timeline:
    """Seconds to the first chunk, and between each two after it."""

    first_s: float
    gaps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Contexts:
    """`steps`: the pieces after each operation, by number, or only the new ones. `weights`: relative lengths."""

    op: Kind
    steps: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]

    @property
    def last(self) -> tuple[int, ...]:
        """The pieces of the final context."""
        return self.steps[-1] if self.op is Kind.REPLACE else tuple(range(len(self.weights)))

    @property
    def weight(self) -> float:
        """Of the final context."""
        return sum(self.weights[number] for number in self.last)


def queries(workload: Workload, count: int, seed: int) -> Iterator[Query]:
    """`count` queries whose characteristics are the published ones of that workload, as closely as so many can be.

    Deterministic by all three arguments together: the first queries of a longer trace are others. Times are in whole
    microseconds. Raises `ValueError`.
    """
    if workload not in MODELS:
        raise ValueError(f"`workload` is {workload!r}; there are {', '.join(MODELS)}")
    if count < 1:
        raise ValueError(f"`count` is {count}; it must be 1 or more")
    return _queries(workload, count, random.Random(f"{workload} {seed}"))


def _queries(workload: Workload, count: int, draws: random.Random) -> Iterator[Query]:
    model = MODELS[workload]
    numbers = stratified(_chunks(workload), count, draws)
    timelines = _timelines(workload, numbers, draws)
    contexts = [_contexts(workload, number, model.spread, draws) for number in numbers]
    totals = _totals(workload, contexts, draws)
    for index, (timeline, context, tokens) in enumerate(zip(timelines, contexts, totals, strict=True)):
        yield _query(f"{workload}-{index:05}", timeline, context, tokens, model.lead)


def _chunks(workload: Workload) -> Callable[[float], int]:
    chunks = published(workload).chunks
    return Counts(chunks.mean, int(chunks.percentiles[100]), MODELS[workload].dispersion)


def _totals_of(marginal: Marginal, ends: tuple[float, float]) -> LogNormalPieces:
    return LogNormalPieces({0: ends[0], **marginal.percentiles, 100: ends[1]}, marginal.count)


def _timelines(workload: Workload, chunks: Sequence[int], draws: random.Random) -> list[_Timeline]:
    """Gaps are independent of each other; a duration is any that is long enough for the gaps."""
    marginals, model = published(workload), MODELS[workload]
    gap = LogNormalPieces(marginals.gap_s.percentiles, marginals.gap_s.count)
    every = iter(stratified(gap, sum(chunks) - len(chunks), draws))
    gaps = [tuple(islice(every, number - 1)) for number in chunks]
    durations = stratified(_totals_of(marginals.duration_s, model.duration_s), len(chunks), draws)
    firsts = _rests([sum(each) for each in gaps], durations, model.soonest_s, draws)
    return [_Timeline(first, each) for first, each in zip(firsts, gaps, strict=True)]


def _rests(sums: Sequence[float], totals: Sequence[float], least: float, draws: random.Random) -> list[float]:
    """What remains of a total for each sum, when each gets a random one of those that leave it `least`.

    The largest sum chooses first; if no total is large enough, one is made that just is.
    """
    rests = [least] * len(sums)
    waiting, fitting = sorted(totals), list[float]()
    for index in sorted(range(len(sums)), key=sums.__getitem__, reverse=True):
        while waiting and waiting[-1] - sums[index] >= least:
            fitting.append(waiting.pop())
        if fitting:
            chosen = draws.randrange(len(fitting))
            fitting[chosen], fitting[-1] = fitting[-1], fitting[chosen]
            rests[index] = fitting.pop() - sums[index]
        else:
            waiting.pop()
    return rests


def _contexts(workload: Workload, chunks: int, spread: float, draws: random.Random) -> _Contexts:
    steps: tuple[tuple[int, ...], ...]
    match workload:
        case "crawler":
            op, steps = Kind.APPEND, tuple((number,) for number in range(chunks))
        case "anns":
            op, steps = Kind.REPLACE, tuple(islice(_pools(draws), chunks))
        case _:
            assert_never(workload)
    pieces = 1 + max(number for step in steps for number in step)
    return _Contexts(op, steps, tuple(draws.lognormvariate(0.0, spread) for _ in range(pieces)))


def _pools(draws: random.Random) -> Iterator[tuple[int, ...]]:
    """Candidate pools in rank order. What stays in front of the best newcomer is a common prefix."""
    pool, known = list(range(POOL)), POOL
    while True:
        yield tuple(pool)
        for newcomer in range(known, known + NEWCOMERS):
            pool.insert(draws.randrange(POOL), newcomer)
        known += NEWCOMERS
        del pool[POOL:]


def _totals(workload: Workload, contexts: Sequence[_Contexts], draws: random.Random) -> list[int]:
    """Tokens of each final prompt: the heavier its pieces, and so the more of them, the more tokens."""
    quantile = _totals_of(published(workload).tokens, MODELS[workload].tokens)
    tokens = sorted(stratified(quantile, len(contexts), draws))
    totals = [0] * len(contexts)
    for index, total in zip(sorted(range(len(contexts)), key=lambda i: contexts[i].weight), tokens, strict=True):
        totals[index] = round(total)
    return totals


def _query(name: str, timeline: _Timeline, contexts: _Contexts, tokens: int, lead: float) -> Query:
    context = tokens - OPENING_TOKENS - QUESTION_TOKENS
    lengths = dict(zip(contexts.last, divided(context, [contexts.weights[n] for n in contexts.last]), strict=True))
    scale = context / contexts.weight
    for number, weight in enumerate(contexts.weights):  # those that have left the pool
        lengths.setdefault(number, max(1, round(weight * scale)))
    gaps = [timeline.first_s * (1 - lead), *timeline.gaps_s]
    return Query(
        id=name,
        question=Piece(tokens=QUESTION_TOKENS),
        operations=tuple(
            Operation(contexts.op, round(gap, 6), tuple(f"p{number}" for number in step))
            for gap, step in zip(gaps, contexts.steps, strict=True)
        ),
        pieces={f"p{number}": Piece(tokens=length) for number, length in sorted(lengths.items())},
        lead_s=round(timeline.first_s * lead, 6),
        opening=Piece(tokens=OPENING_TOKENS),
        source="synthetic",
    )
