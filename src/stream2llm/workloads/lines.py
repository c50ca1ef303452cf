"""Versioned JSON Lines files: a header, then one record a line, each checked. What traces and event logs share."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

Header = TypeVar("Header", bound=msgspec.Struct)
Record = TypeVar("Record")


class FormatError(ValueError):
    """A file is not of its format; the message names the file, the line and the field."""


class Format(msgspec.Struct, frozen=True):
    """What the header says the file is, beside its own fields."""

    format: str
    version: int


def read_lines(
    path: Path, wanted: Format, header: type[Header], record: type[Record]
) -> tuple[Header, Iterator[Record]]:
    """The header and, one by one, the records of a file (`.gz`: compressed).

    Raises `FormatError`; for a record, when the iterator comes to it. The file is closed when the iterator ends.
    """
    lines = _lines(path)
    try:
        number, line = next(lines)
    except StopIteration:
        raise FormatError(f"{path}: the file is empty; its first line must be the header") from None
    found = _decoded(path, number, line, Format)
    if found.format != wanted.format:
        raise FormatError(f"{path}: this is a {found.format} file, not a {wanted.format} file")
    if found.version != wanted.version:
        raise FormatError(
            f"{path}: version {found.version} of {found.format}; this release reads version {wanted.version}"
        )
    first = _decoded(path, number, line, header)

    def records() -> Iterator[Record]:
        for number, line in lines:
            yield _decoded(path, number, line, record)

    return first, records()


@contextmanager
def writing(path: Path, format: Format, header: msgspec.Struct) -> Iterator[Lines]:
    """A file (`.gz`: compressed) with this header, open for records; it is complete up to the last `flush`."""
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        lines = Lines(file)
        lines.write({**msgspec.structs.asdict(format), **msgspec.to_builtins(header)})
        lines.flush()
        yield lines


class Lines:
    """Records are written in order; what was written is on disk after `flush` and when the file is closed."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()

    def write(self, record: Any) -> None:
        """`record`: a struct, or anything else that is JSON."""
        self._file.write(self._encoder.encode(record) + b"\n")

    def write_all(self, records: Iterable[msgspec.Struct]) -> None:
        for record in records:
            self.write(record)

    def passing(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records, each written as it passes."""
        for record in records:
            self.write(record)
            yield record

    def flush(self) -> None:
        self._file.flush()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (EOFError, gzip.BadGzipFile) as error:
        raise FormatError(f"{path}: {error}") from error


def _decoded(path: Path, number: int, line: bytes, kind: type[Record]) -> Record:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is a DecodeError
        raise FormatError(f"{path}, line {number}: {error}") from error
