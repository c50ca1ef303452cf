"""Synthetic traces with the paper's published marginals, by seed. Content is token counts.

Timelines are those of the paper's replay. A crawl: a search, which is the first chunk and opens the context, then a
page at a time. A vector search: each candidate pool is handed over when the time for which it was the best is over, so
the last pool comes with the end of the search, seconds after the one before.

What is published: gaps between chunks, chunks per query, tokens and seconds per query (`marginals`). What is not, and
is a model here: how tokens are shared among pieces, how chunks and tokens are correlated, how a candidate pool changes,
and the smallest and largest totals. docs/traces.md lists it all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
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

    `chunks`: the fewest; a crawl without a page has no context and is left out, as in the paper's replay. `dispersion`
    of the chunks: it gives the published medians and makes the published maxima likely. `tokens`, `duration_s`:
    smallest and largest. `tail`: percentiles of the tokens beyond the published P95, from the tails of the published
    TTFT without streaming at the lowest rates, where a query hardly waits: P99 and P99.9 (crawler 1.77 and 4.36 s, anns
    3.11 and 4.49 s) tell how long such a prompt is. `least_s`: the least of a duration that is left for the search
    before a crawl, or for the time before the last pool. `spread`: standard deviation of the logarithm of a piece's
    length, relative to the others.
    """

    chunks: int
    dispersion: float
    tokens: tuple[float, float]
    tail: Mapping[float, float]
    duration_s: tuple[float, float]
    least_s: float
    spread: float


MODELS: dict[Workload, Model] = {
    "crawler": Model(2, 1000, (430, 110_000), {99: 46_000, 99.9: 90_000}, (2.0, 30.0), least_s=0.2, spread=1.0),
    "anns": Model(1, 2, (2_600, 112_000), {99: 75_000, 99.9: 102_000}, (1.2, 17.0), least_s=0.5, spread=0.5),
}


@dataclass(frozen=True, slots=True)
class _Timeline:
    """`gaps_s` between the chunks, and what else there is of the query's duration."""

    gaps_s: tuple[float, ...]
    rest_s: float

    @property
    def chunks(self) -> int:
        return len(self.gaps_s) + 1


@dataclass(frozen=True, slots=True)
class _Draft:
    """A query without its length. `steps`: the pieces of each operation, by number; `weights`: their lengths, relative.

    `final`: the pieces of the final context.
    """

    lead_s: float
    op: Kind
    gaps_s: tuple[float, ...]
    steps: tuple[tuple[int, ...], ...]
    final: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def weight(self) -> float:
        """Of the final context."""
        return sum(self.weights[number] for number in self.final)


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
    drafts = [_draft(workload, timeline, draws) for timeline in _timelines(workload, count, draws)]
    lengths = _lengths(workload, drafts, draws)
    for index, (draft, tokens) in enumerate(zip(drafts, lengths, strict=True)):
        yield _query(f"{workload}-{index:05}", draft, tokens)


def _timelines(workload: Workload, count: int, draws: random.Random) -> list[_Timeline]:
    """Gaps are independent of each other; a duration is any that is long enough for the gaps."""
    marginals, model = published(workload), MODELS[workload]
    most = int(marginals.chunks.percentiles[100])
    chunks = stratified(Counts(marginals.chunks.mean, model.chunks, most, model.dispersion), count, draws)
    gap = LogNormalPieces(marginals.gap_s.percentiles, marginals.gap_s.count)
    every = iter(stratified(gap, sum(chunks) - count, draws))
    gaps = [tuple(islice(every, number - 1)) for number in chunks]
    durations = stratified(_total(marginals.duration_s, model.duration_s), count, draws)
    rests = _rests([sum(each) for each in gaps], durations, model.least_s, draws)
    return [_Timeline(each, rest) for each, rest in zip(gaps, rests, strict=True)]


def _total(marginal: Marginal, ends: tuple[float, float], tail: Mapping[float, float] | None = None) -> LogNormalPieces:
    return LogNormalPieces({0: ends[0], **marginal.percentiles, **(tail or {}), 100: ends[1]}, marginal.count)


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


def _draft(workload: Workload, timeline: _Timeline, draws: random.Random) -> _Draft:
    def weights(pieces: int) -> tuple[float, ...]:
        return tuple(draws.lognormvariate(0.0, MODELS[workload].spread) for _ in range(pieces))

    match workload:
        case "crawler":
            pages = tuple(range(timeline.chunks - 1))
            steps = tuple((page,) for page in pages)
            return _Draft(timeline.rest_s, Kind.APPEND, timeline.gaps_s, steps, pages, weights(len(pages)))
        case "anns":
            pools = tuple(islice(_pools(draws), timeline.chunks))
            gaps = (*timeline.gaps_s, timeline.rest_s)
            passages = POOL + NEWCOMERS * (timeline.chunks - 1)
            return _Draft(0.0, Kind.REPLACE, gaps, pools, pools[-1], weights(passages))
        case _:
            assert_never(workload)


def _pools(draws: random.Random) -> Iterator[tuple[int, ...]]:
    """Candidate pools in rank order. What stays in front of the best newcomer is a common prefix."""
    pool, known = list(range(POOL)), POOL
    while True:
        yield tuple(pool)
        for newcomer in range(known, known + NEWCOMERS):
            pool.insert(draws.randrange(POOL), newcomer)
        known += NEWCOMERS
        del pool[POOL:]


def _lengths(workload: Workload, drafts: Sequence[_Draft], draws: random.Random) -> list[int]:
    """Tokens of each final prompt: the heavier its pieces, and so the more of them, the more tokens."""
    quantile = _total(published(workload).tokens, MODELS[workload].tokens, MODELS[workload].tail)
    ascending = sorted(stratified(quantile, len(drafts), draws))
    lengths = [0] * len(drafts)
    for index, tokens in zip(sorted(range(len(drafts)), key=lambda i: drafts[i].weight), ascending, strict=True):
        lengths[index] = round(tokens)
    return lengths


def _query(name: str, draft: _Draft, tokens: int) -> Query:
    context = tokens - OPENING_TOKENS - QUESTION_TOKENS
    lengths = dict(zip(draft.final, divided(context, [draft.weights[n] for n in draft.final]), strict=True))
    for number, weight in enumerate(draft.weights):  # those that have left the pool
        lengths.setdefault(number, max(1, round(weight * context / draft.weight)))
    return Query(
        id=name,
        question=Piece(tokens=QUESTION_TOKENS),
        operations=tuple(
            Operation(draft.op, round(gap, 6), tuple(f"p{number}" for number in step))
            for gap, step in zip(draft.gaps_s, draft.steps, strict=True)
        ),
        pieces={f"p{number}": Piece(tokens=length) for number, length in sorted(lengths.items())},
        lead_s=round(draft.lead_s, 6),
        opening=Piece(tokens=OPENING_TOKENS),
        source="synthetic",
    )
