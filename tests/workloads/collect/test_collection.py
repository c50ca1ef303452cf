"""A trace that grows over several runs."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from stream2llm.workloads.collect.collection import CollectionError, collecting
from stream2llm.workloads.lines import FormatError
from stream2llm.workloads.trace import Header, Kind, Operation, Piece, Query, read_trace

HEADER = Header("crawler", "pages of a site", "CC0-1.0")
NAMES = ("trace.jsonl", "trace.jsonl.gz")


def query(id: str) -> Query:
    noise = random.Random(id)  # hardly compressible
    piece = Piece(text=" ".join(f"{noise.getrandbits(32):x}" for _ in range(40)))
    return Query(id, Piece(text="Why?"), (Operation(Kind.APPEND, 0.5, ("p",)),), {"p": piece})


def ids(path: Path) -> list[str]:
    return [found.id for found in read_trace(path).queries]


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_knows_what_is_there_and_adds_to_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with collecting(path, HEADER) as first:
        assert first.done == set()
        first.add(query("a"))
    with collecting(path, HEADER) as second:
        assert second.done == {"a"}
        second.add(query("b"))

    assert read_trace(path).header == HEADER
    assert read_trace(path).queries == (query("a"), query("b"))


@pytest.mark.parametrize("name", NAMES)
def test_each_query_is_safe_once_it_is_added(tmp_path: Path, name: str) -> None:
    path, copy = tmp_path / name, tmp_path / f"copy-{name}"
    with collecting(path, HEADER) as collection:
        for id in ("a", "b"):
            collection.add(query(id))
            copy.write_bytes(path.read_bytes())  # what a kill would leave
            with collecting(copy, HEADER) as resumed:
                assert id in resumed.done


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lost", [1, 7, 60])
def test_a_query_cut_short_by_a_kill_is_dropped_and_the_others_stay(tmp_path: Path, name: str, lost: int) -> None:
    path = tmp_path / name
    with collecting(path, HEADER) as collection:
        collection.add(query("a"))
        collection.add(query("b"))
    path.write_bytes(path.read_bytes()[:-lost])

    with collecting(path, HEADER) as collection:
        assert "a" in collection.done
        for id in {"b", "c"} - collection.done:
            collection.add(query(id))

    assert sorted(ids(path)) == ["a", "b", "c"]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_an_empty_file_is_a_trace_to_be_begun(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.touch()
    with collecting(path, HEADER) as collection:
        collection.add(query("a"))

    assert ids(path) == ["a"]


def test_a_trace_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with collecting(path, HEADER) as collection:
        collection.add(query("a"))
    before = path.read_bytes()

    with (
        pytest.raises(CollectionError, match="`description` is 'pages of a site', this run's is 'other'"),
        collecting(path, Header("crawler", "other", "CC0-1.0")),
    ):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"Dear diary,\nnothing happened.", b"Dear diary", b'{"format": "stream2llm-tra'])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_no_trace_is_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    for written in (content, gzip.compress(content)):
        path.write_bytes(written)
        with pytest.raises(FormatError, match=r"trace\.jsonl"), collecting(path, HEADER):
            pass
        assert path.read_bytes() == written
