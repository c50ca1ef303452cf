"""Scales a trace so that a small machine sees the load of a large one. Pure.

Two ratios make a load what it is: the work that arrives over the capacity, and how long retrieval takes over how long
prefill takes. If the small machine needs r times as long for the mean prompt as the large one, both stay the same when
all times of the trace, arrivals included, are multiplied by r. Dividing the tokens of all pieces by a factor before
brings r near 1, so that a run takes about as long as on the large machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from stream2llm.workloads.trace import Piece, Query

TOKEN_SCALES = tuple(2**power for power in range(9))

Seconds = Callable[[float], float]
"""Seconds to prefill a prompt of so many tokens."""


@dataclass(frozen=True, slots=True)
class Match:
    """How to scale a trace: its tokens divided by `token_scale`, then its times multiplied by `time_scale`.

    `load`: seconds of prefill that arrive per second, one prompt after the other: 1 is a machine that has nothing but
    to prefill whole prompts all the time. `retrieval_ratio`: mean retrieval time over mean prefill time.
    """

    token_scale: float
    time_scale: float
    load: float
    retrieval_ratio: float


def match(
    queries: Sequence[Query],
    qps: float,
    there: Seconds,
    here: Seconds,
    *,
    token_scale: float | None = None,
    longest: int | None = None,
) -> Match:
    """What makes `queries`, at `qps` in the trace's own time, the same load `here` as the unscaled ones are `there`.

    `token_scale`: left out, the power of two that brings the time scale nearest to 1 among those with which no prompt
    has more than `longest` tokens. Raises `ValueError`.
    """
    if not queries:
        raise ValueError("there are no queries to match")
    on_the_large = fmean(there(query.tokens) for query in queries)
    if on_the_large <= 0:
        raise ValueError("the queries have no tokens")
    most = max(query.tokens for query in queries)
    scales = TOKEN_SCALES if token_scale is None else (token_scale,)
    fitting = [scale for scale in scales if longest is None or most / scale <= longest]
    if not fitting:
        raise ValueError(
            f"the longest prompt has {most} tokens, and the server takes {longest}: scale the tokens by "
            f"{math.ceil(most / (longest or most))} at least (--token-scale), or serve with a larger --max-model-len"
        )

    def time_scale(scale: float) -> float:
        return fmean(here(query.tokens / scale) for query in queries) / on_the_large

    chosen = min(fitting, key=lambda scale: abs(math.log(time_scale(scale))))
    return Match(
        token_scale=chosen,
        time_scale=time_scale(chosen),
        load=qps * on_the_large,
        retrieval_ratio=fmean(query.retrieval_s for query in queries) / on_the_large,
    )


def shrunk(query: Query, factor: float) -> Query:
    """The query with the tokens of every piece divided by `factor`; of a text, its front is kept.

    A piece that has tokens keeps one at least. Raises `ValueError` for a factor of 0 or less.
    """
    if not factor > 0:
        raise ValueError(f"the token scale is {factor}; it must be above 0")
    return msgspec.structs.replace(
        query,
        opening=_part(query.opening, factor),
        question=_part(query.question, factor),
        pieces={name: _part(piece, factor) for name, piece in query.pieces.items()},
    )


def _part(piece: Piece, factor: float) -> Piece:
    if piece.text is not None:
        return Piece(text=piece.text[: max(1, round(len(piece.text) / factor))])
    tokens = piece.tokens or 0
    return Piece(tokens=max(1, round(tokens / factor)) if tokens else 0)


def probes(queries: Sequence[Query], longest: int | None = None) -> tuple[int, ...]:
    """Prompt lengths to measure prefill at: from 32 tokens on each twice the one before, up to the longest prompt.

    Of the queries, or of the server, where it takes `longest` tokens at most.
    """
    most = max((query.tokens for query in queries), default=0)
    top = max(64, most if longest is None else min(most, longest))
    return (*itertools.takewhile(lambda tokens: tokens < top, (32 << step for step in range(32))), top)
