"""A trace that grows query by query, over as many runs as it takes."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import msgspec

from stream2llm.workloads.collect import CollectError
from stream2llm.workloads.lines import Lines, read_lines
from stream2llm.workloads.trace import FORMAT, Header, Query, read_trace


class CollectionError(CollectError):
    """The file holds another trace; the message names the field and the remedy."""


class Collection:
    """The trace file of a collector. `done`: ids of the queries in it."""

    def __init__(self, lines: Lines, done: set[str]) -> None:
        self._lines = lines
        self.done = done

    def add(self, query: Query) -> None:
        """The query is in the file when this returns. Raises `OSError`."""
        self._lines.write(query)
        self._lines.flush()
        self.done.add(query.id)


@contextmanager
def collecting(path: Path, header: Header) -> Iterator[Collection]:
    """The trace at `path` (`.gz`: compressed), with what earlier runs collected; open for more.

    A query that a killed run left unfinished is dropped. Raises `CollectionError` if the file's header is another one,
    `FormatError` if it is no trace, and `OSError`.
    """
    done = _mended(path, header)
    with _opened(path, "ab") as file:
        lines = Lines(file)
        if done is None:
            lines.write({**msgspec.structs.asdict(FORMAT), **msgspec.to_builtins(header)})
            lines.flush()
        yield Collection(lines, done or set())


def _mended(path: Path, header: Header) -> set[str] | None:
    """The ids in the file, once a torn end is off; None when there is no file yet."""
    if not path.exists() or not path.stat().st_size:
        return None
    found, _ = read_lines(path, FORMAT, Header, Query)
    if found != header:  # before anything is written: the file may be somebody else's
        _refuse(path, found, header)
    intact, torn = _intact(path)
    if torn:
        scratch = path.with_name(f".{path.name}.mended{path.suffix}")
        with _opened(scratch, "wb") as file:
            file.writelines(intact)
        os.replace(scratch, path)
    return {query.id for query in read_trace(path).queries}


def _refuse(path: Path, found: Header, wanted: Header) -> None:
    for field in Header.__struct_fields__:
        there, here = getattr(found, field), getattr(wanted, field)
        if there != here:
            raise CollectionError(
                f"{path} holds another trace: its `{field}` is {there!r}, this run's is {here!r}; "
                "use the same options or another file"
            )


def _intact(path: Path) -> tuple[list[bytes], bool]:
    """The complete lines, and whether something incomplete follows them."""
    lines: list[bytes] = []
    try:
        with _opened(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return lines, True
                lines.append(line)
    except (EOFError, zlib.error, gzip.BadGzipFile):  # the compressed file ends early
        return lines, True
    return lines, False


def _opened(path: Path, mode: str) -> IO[bytes]:
    """The file, of bytes."""
    return cast(IO[bytes], gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode))
