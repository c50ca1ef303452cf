"""The index: what it finds, what it keeps, where it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.workloads.collect.embedding import MiniLM
from stream2llm.workloads.collect.index import (
    BATCH,
    INDEX,
    PASSAGES,
    VECTORS,
    IndexFolderError,
    VectorIndex,
    built_index,
    rings,
)


class Counting:
    """The model, with what it was given."""

    name = MiniLM.name

    def __init__(self, model: MiniLM, limit: int | None = None) -> None:
        self._model = model
        self._limit = limit
        self.dimensions = model.dimensions
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        if self._limit is not None and len(self.texts) >= self._limit:
            raise KeyboardInterrupt
        self.texts += texts
        return self._model(texts)


def build(folder: Path, directory: Path, model: Counting, characters: int = 40) -> VectorIndex:
    return built_index(folder, directory, lambda: model, model.name, characters, lambda what, done, total: None)


def words(folder: Path, count: int) -> None:
    """Documents enough for several batches."""
    for number in range(count):
        (folder / f"number-{number:03}.txt").write_text(f"The number {number} comes before {number + 1}.")


@given(st.integers(min_value=1, max_value=5000))
def test_rings_cover_1_2_4_and_at_last_all_cells(cells: int) -> None:
    ends = [end for _, end in rings(cells)]

    assert [begin for begin, _ in rings(cells)] == [0, *ends[:-1]]
    assert ends[:-1] == [2**n for n in range(len(ends) - 1)]
    assert ends[-1] == cells


def test_the_widest_search_finds_what_comparing_with_every_passage_finds(
    folder: Path, tmp_path: Path, model: MiniLM
) -> None:
    words(folder, 40)
    index = build(folder, tmp_path / "index", Counting(model))
    vectors = np.fromfile(tmp_path / "index" / VECTORS, dtype=np.float32).reshape(-1, model.dimensions)
    for question in ("Which animal hunts mice?", "What is baked?", "What comes before 12?"):
        vector = model([question])
        pools = list(index.widening(vector, 5))

        exact = np.argsort(-(vectors @ vector[0]))[:5]
        assert list(pools[-1]) == list(exact)
        assert len(pools) > 3
        similarity = [sum(float(vectors[n] @ vector[0]) for n in pool) for pool in pools if len(pool) == 5]
        assert similarity == sorted(similarity)  # a wider search never finds worse


def test_the_best_passage_answers_the_question(folder: Path, tmp_path: Path, model: MiniLM) -> None:
    index = build(folder, tmp_path / "index", Counting(model), characters=200)

    def best(question: str) -> str:
        return index.passages[list(index.widening(model([question]), 3))[-1][0]].document

    assert best("Which pet hunts rodents?") == "animals/cat.md"
    assert best("What moves through the solar system?") == "astronomy.html"
    assert best("How do I earn with my savings account?") == "money.py"


def test_a_pool_larger_than_the_collection_holds_all_of_it(folder: Path, tmp_path: Path, model: MiniLM) -> None:
    index = build(folder, tmp_path / "index", Counting(model), characters=500)

    assert sorted(list(index.widening(model(["cat"]), 100))[-1]) == list(range(len(index.passages)))


def test_what_is_built_is_kept(folder: Path, tmp_path: Path, model: MiniLM) -> None:
    first, again = Counting(model), Counting(model)
    built = build(folder, tmp_path / "index", first)
    kept = build(folder, tmp_path / "index", again)

    assert len(first.texts) == len(built.passages) > 5
    assert again.texts == []
    vector = model(["cat"])
    assert list(kept.widening(vector, 4)) == list(built.widening(vector, 4))


def test_an_interrupted_build_goes_on_where_it_was_and_comes_to_the_same(
    folder: Path, tmp_path: Path, model: MiniLM
) -> None:
    words(folder, 90)
    whole = Counting(model)
    expected = build(folder, tmp_path / "whole", whole)
    cut = Counting(model, limit=2 * BATCH)
    with pytest.raises(KeyboardInterrupt):
        build(folder, tmp_path / "cut", cut)
    with (tmp_path / "cut" / VECTORS).open("ab") as file:
        file.write(b"half a vector")  # as a kill may leave it
    rest = Counting(model)
    resumed = build(folder, tmp_path / "cut", rest)

    assert cut.texts + rest.texts == whole.texts
    assert resumed.passages == expected.passages
    assert (tmp_path / "cut" / VECTORS).read_bytes() == (tmp_path / "whole" / VECTORS).read_bytes()
    vector = model(["Which number comes before 7?"])
    assert list(resumed.widening(vector, 5)) == list(expected.widening(vector, 5))


def test_other_documents_or_settings_make_the_index_anew(folder: Path, tmp_path: Path, model: MiniLM) -> None:
    directory = tmp_path / "index"
    build(folder, directory, Counting(model), characters=40)
    shorter = Counting(model)
    assert all(len(passage.text) <= 20 for passage in build(folder, directory, shorter, characters=20).passages)
    assert shorter.texts

    (folder / "new.txt").write_text("A zebra has stripes.")
    more = Counting(model)
    index = build(folder, directory, more, characters=20)
    assert "A zebra has stripes." in more.texts
    assert index.passages[list(index.widening(model(["zebra stripes"]), 3))[-1][0]].document == "new.txt"


@pytest.mark.parametrize("name", ["thesis.txt", PASSAGES])
def test_a_folder_that_holds_something_else_is_left_alone(
    folder: Path, tmp_path: Path, model: MiniLM, name: str
) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / name).write_text("Precious.\n")

    with pytest.raises(IndexFolderError, match="name another folder for the index"):
        build(folder, directory, Counting(model))
    assert (directory / name).read_text() == "Precious.\n"
    assert not (directory / INDEX).exists()
