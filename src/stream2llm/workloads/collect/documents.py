"""A folder of documents as passages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stream2llm.workloads.collect import CollectError

HTML = (".html", ".htm", ".xhtml")
TEXT = (".txt", ".md", ".rst", ".py")


class DocumentsError(CollectError):
    """There is nothing to index; the message names the folder and the remedy."""


class Passage(msgspec.Struct, frozen=True):
    """A part of a document: of which file (a path in the folder), which one (from 1), its text."""

    document: str
    number: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.document}#{self.number}"


def documents(folder: Path) -> tuple[Path, ...]:
    """The files in the folder and below that can be read, in order. Raises `DocumentsError` when there are none."""
    found = tuple(sorted(path for path in folder.rglob("*") if path.suffix.lower() in HTML + TEXT and path.is_file()))
    if not found:
        raise DocumentsError(f"{folder}: no document in it; what is read: {', '.join(TEXT + HTML)}")
    return found


def fingerprint(folder: Path, files: Iterable[Path], *settings: object) -> str:
    """The same as long as no file and no setting changed; by the files' sizes and times, so that it is quick."""
    state = hashlib.sha256(repr(settings).encode())
    for path in files:
        stat = path.stat()
        state.update(f"{path.relative_to(folder)}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return state.hexdigest()


def passages_of(folder: Path, path: Path, characters: int) -> Iterator[Passage]:
    """The passages of one document, of so many characters at most. What is not UTF-8 becomes U+FFFD."""
    document = path.relative_to(folder).as_posix()
    for number, text in enumerate(packed(_paragraphs(path), characters), 1):
        yield Passage(document, number, text)


def _paragraphs(path: Path) -> Iterable[str]:
    if path.suffix.lower() in HTML:
        from stream2llm.crawl.html import read_document

        return read_document(path.read_bytes(), path.resolve().as_uri()).lines
    text = path.read_text(encoding="utf-8", errors="replace")
    return (part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip())


def packed(paragraphs: Iterable[str], characters: int) -> Iterator[str]:
    """Whole paragraphs, as many as fit; one that does not fit by itself is cut between two words."""
    full: list[str] = []
    size = 0
    for paragraph in paragraphs:
        for part in _parts(paragraph, characters):
            if full and size + 1 + len(part) > characters:
                yield "\n".join(full)
                full, size = [], 0
            size += len(part) + (1 if full else 0)
            full.append(part)
    if full:
        yield "\n".join(full)


def _parts(paragraph: str, characters: int) -> Iterator[str]:
    while len(paragraph) > characters:
        blank = re.match(r"(?s).*\S(?=\s)", paragraph[: characters + 1])
        end = blank.end() if blank else characters
        yield paragraph[:end]
        paragraph = paragraph[end:].lstrip()
    if paragraph:
        yield paragraph
