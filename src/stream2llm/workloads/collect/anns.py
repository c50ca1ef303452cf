"""Traces of a vector search: for each question the candidate pool, replaced whenever a wider search changes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stream2llm.crawl.page import Latency
from stream2llm.workloads.collect.documents import Passage
from stream2llm.workloads.collect.embedding import Embedding
from stream2llm.workloads.collect.index import VectorIndex
from stream2llm.workloads.collect.prompt import OPENING, added, asked, name_of, titled
from stream2llm.workloads.collect.questions import Question
from stream2llm.workloads.collect.run import NothingFound
from stream2llm.workloads.trace import Header, Kind, Operation, Query

WORKLOAD = "anns"

STEP_MEDIAN, STEP_SIGMA = 0.0367, 1.7  # seconds between two changes of the pool in the paper: median 0.0367, mean 0.157

Pool = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How to search. `top_k`: passages in the pool; `passage_characters`: of each at most; `latency`: of each step."""

    top_k: int = 10
    passage_characters: int = 1000
    latency: Latency = field(default_factory=lambda: Latency(median=0.0, sigma=STEP_SIGMA))

    def header(self, model: str, passages: int, description: str = "", license: str = "") -> Header:
        """The trace's header; it says what the times are made of."""
        found = (
            f"the {self.top_k} nearest of {passages} passages of {self.passage_characters} characters at most, "
            f"by {model} in an IVF index on disk, searched in 1, 2, 4, ... cells and at last in all"
        )
        parts = (description, found, added("step of the search", self.latency))
        return Header(WORKLOAD, "; ".join(filter(None, parts)), license)


class SearchRetriever:
    """Embeds a question and searches for it."""

    def __init__(
        self,
        index: VectorIndex,
        embedding: Embedding,
        settings: SearchSettings,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._index = index
        self._embedding = embedding
        self._settings = settings
        self._clock = clock

    async def retrieve(self, question: Question) -> Query:
        """Raises `NothingFound` when the index is empty."""
        begin = self._clock()
        vector = self._embedding([question.text])
        embedded = self._clock()
        pools: list[tuple[float, Pool]] = []
        for step, pool in enumerate(self._index.widening(vector, self._settings.top_k)):
            await asyncio.sleep(self._settings.latency(f"/{question.id}/{step}"))  # 0: others may run all the same
            if pool and (not pools or pool != pools[-1][1]):
                pools.append((self._clock() - embedded, pool))
        if not pools:
            raise NothingFound("no passage in the index")
        return query_of(question, embedded - begin, pools, self._index.passages)


def query_of(
    question: Question, lead: float, pools: Sequence[tuple[float, Pool]], passages: Sequence[Passage]
) -> Query:
    """The search as a query: embedding the question is the lead; each pool, at so many seconds, replaces the last."""
    operations = []
    before = 0.0
    for at, pool in pools:
        names = tuple(name_of(passages[number].name) for number in pool)
        operations.append(Operation(Kind.REPLACE, round(at - before, 6), names))
        before = at
    seen = dict.fromkeys(number for _, pool in pools for number in pool)
    return Query(
        id=question.id,
        question=asked(question.text),
        operations=tuple(operations),
        pieces={name_of(p.name): titled(p.document, p.text) for p in (passages[number] for number in seen)},
        lead_s=round(lead, 6),
        opening=OPENING,
        source=", ".join(dict.fromkeys(passages[number].document for number in pools[-1][1])),
    )
