"""CSV and JSON files of others, read row by row, with messages that name file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from stream2llm.workloads.lines import FormatError

Decoded = TypeVar("Decoded")

LONGEST_FIELD = 1 << 30  # characters; a page is one field, and the csv module's own limit is 131,072


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table; `line` is where it ends."""

    path: Path
    line: int
    cells: dict[str, str | None]

    def text(self, column: str) -> str:
        """The cell's text; empty if the row or the table ends before it."""
        return self.cells.get(column) or ""

    def number(self, column: str) -> float:
        """Raises `FormatError` for what is not a number from 0 on."""
        try:
            number = float(self.text(column))
        except ValueError:
            raise self.error(column, "is not a number") from None
        if not 0 <= number < math.inf:
            raise self.error(column, "must be 0 or more, and finite")
        return number

    def error(self, column: str, says: str) -> FormatError:
        return FormatError(f"{self.path}, line {self.line}, column {column}: {self.text(column)[:40]!r} {says}")


def read_rows(path: Path, columns: Iterable[str]) -> Iterator[Row]:
    """The rows of a CSV file that has these columns, maybe among others. Raises `FormatError` and `OSError`."""
    csv.field_size_limit(LONGEST_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            found = reader.fieldnames or ("none",)
            for column in columns:
                if column not in found:
                    raise FormatError(f"{path}, line 1: there is no column {column}; there are {', '.join(found)}")
            for cells in reader:
                yield Row(path, reader.line_num, cells)
        except (csv.Error, UnicodeDecodeError) as error:
            raise FormatError(f"{path}, line {reader.line_num + 1}: {error}") from error


def read_json(path: Path, kind: type[Decoded]) -> Decoded:
    """A JSON file of this type. Raises `FormatError` and `OSError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}") from error
