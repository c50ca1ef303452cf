"""From a folder to passages."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.workloads.collect.documents import DocumentsError, documents, fingerprint, packed, passages_of

PARAGRAPHS = st.lists(st.text("ab ", min_size=1, max_size=30).filter(str.strip).map(str.strip), max_size=12)


@given(PARAGRAPHS, st.integers(min_value=1, max_value=40))
def test_passages_hold_the_whole_text_in_order_within_their_limit(paragraphs: list[str], characters: int) -> None:
    passages = list(packed(paragraphs, characters))

    assert all(0 < len(passage) <= characters for passage in passages)
    assert "".join("".join(passages).split()) == "".join("".join(paragraphs).split())


@given(PARAGRAPHS)
def test_paragraphs_stay_whole_where_they_fit_and_passages_are_full(paragraphs: list[str]) -> None:
    passages = list(packed(paragraphs, 30))

    assert [line for passage in passages for line in passage.split("\n")] == paragraphs
    for passage, following in pairwise(passages):
        assert len(passage) + 1 + len(following.split("\n")[0]) > 30


def test_a_long_paragraph_is_cut_between_words() -> None:
    assert list(packed(["one two three four"], 9)) == ["one two", "three", "four"]
    assert list(packed(["abcdefgh ij"], 4)) == ["abcd", "efgh", "ij"]


def test_every_kind_of_document_is_read_and_named_by_its_path(folder: Path) -> None:
    files = documents(folder)
    read = {passage.name: passage.text for file in files for passage in passages_of(folder, file, 60)}

    assert sorted({name.split("#")[0] for name in read}) == [
        "animals/cat.md",
        "animals/dog.txt",
        "astronomy.html",
        "cooking.rst",
        "money.py",
    ]
    assert read["animals/cat.md#1"] == "Cats purr."
    assert read["animals/cat.md#2"] == "A cat is a small animal that likes to sleep on a sofa and to"
    assert "Planets revolve around the sun" in read["astronomy.html#1"]
    assert "<p>" not in read["astronomy.html#1"]


def test_a_folder_without_documents_is_an_error_that_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "picture.png").touch()
    with pytest.raises(DocumentsError, match=r"no document in it; what is read: \.txt, \.md, \.rst, \.py, \.html"):
        documents(tmp_path)


def test_the_fingerprint_changes_with_files_their_contents_and_settings(folder: Path) -> None:
    def mark(*settings: object) -> str:
        return fingerprint(folder, documents(folder), *settings)

    first = mark(1000)
    assert mark(1000) == first
    assert mark(500) != first
    (folder / "money.py").write_text("x = 1")
    changed = mark(1000)
    assert changed != first
    os.utime(folder / "money.py", (1, 1))
    touched = mark(1000)
    assert touched != changed
    (folder / "new.txt").write_text("New.")
    assert mark(1000) != touched
