"""From a search to a query of the trace."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.crawl.page import Latency
from stream2llm.workloads.collect.anns import SearchRetriever, SearchSettings, query_of
from stream2llm.workloads.collect.documents import Passage
from stream2llm.workloads.collect.embedding import MiniLM
from stream2llm.workloads.collect.index import VectorIndex, built_index
from stream2llm.workloads.collect.questions import Question
from stream2llm.workloads.trace import Kind, Query

PASSAGES = tuple(Passage("a.txt", number, f"Text {number}.") for number in range(1, 7))
POOLS = st.lists(
    st.tuples(st.floats(0, 9), st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple)),
    min_size=1,
    max_size=6,
).map(lambda pools: sorted(pools, key=lambda pool: pool[0]))


@given(POOLS)
def test_each_pool_replaces_the_one_before_at_its_time(pools: list[tuple[float, tuple[int, ...]]]) -> None:
    query = query_of(Question("Why?"), 0.25, pools, PASSAGES)

    assert query.lead_s == 0.25
    assert all(operation.op is Kind.REPLACE for operation in query.operations)
    times = itertools.accumulate(operation.gap_s for operation in query.operations)
    assert list(times) == pytest.approx([at for at, _ in pools], abs=1e-5)
    assert [list(context) for context in query.contexts()] == [[f"a.txt#{n + 1}" for n in pool] for _, pool in pools]
    assert query.pieces.keys() == {f"a.txt#{n + 1}" for _, pool in pools for n in pool}


@pytest.fixture
def index(folder: Path, tmp_path: Path, model: MiniLM) -> VectorIndex:
    return built_index(folder, tmp_path / "index", lambda: model, model.name, 40, lambda *_: None)


def test_the_pool_is_emitted_when_it_changes_and_only_then(index: VectorIndex, model: MiniLM) -> None:
    question = Question("Which animal hunts mice?")
    clock = itertools.count(100)  # a second passes whenever it is asked
    settings = SearchSettings(top_k=3, passage_characters=40)
    query = asyncio.run(SearchRetriever(index, model, settings, lambda: next(clock)).retrieve(question))

    pools = [pool for pool in index.widening(model([question.text]), 3) if pool]
    changes = [pool for pool, _ in itertools.groupby(pools)]
    assert len(changes) < len(pools)
    assert list(query.contexts()) == [tuple(index.passages[n].name for n in pool) for pool in changes]
    assert query.lead_s == 1.0
    assert [operation.gap_s for operation in query.operations] == [1.0] * len(changes)


def test_the_query_holds_the_texts_under_their_documents_names(index: VectorIndex, model: MiniLM) -> None:
    question = Question("What is baked?")
    query: Query = asyncio.run(SearchRetriever(index, model, SearchSettings(2, 40)).retrieve(question))

    assert query.id == question.id
    assert query.question.text == "Question: What is baked?\nAnswer in one or two sentences."
    best = query.context[0]
    assert query.pieces[best].text == "# cooking.rst\nBread is baked of flour, water and\n\n"
    assert query.source.split(", ")[0] == "cooking.rst"


def test_added_latency_delays_each_step_and_is_said_in_the_header(index: VectorIndex, model: MiniLM) -> None:
    settings = SearchSettings(3, 40, Latency(seed=1, median=0.02, sigma=0.1))
    query = asyncio.run(SearchRetriever(index, model, settings).retrieve(Question("Which animal hunts mice?")))

    assert all(operation.gap_s > 0.01 for operation in query.operations)
    header = settings.header("MiniLM", 9, "my notes", "CC0-1.0")
    assert header.workload == "anns"
    assert header.description.startswith("my notes; the 3 nearest of 9 passages of 40 characters at most, by MiniLM")
    assert header.description.endswith(
        "to each step of the search a latency was added: lognormal, median 0.02 s, sigma 0.1, seed 1"
    )
    assert "latency" not in SearchSettings().header("MiniLM", 9).description
