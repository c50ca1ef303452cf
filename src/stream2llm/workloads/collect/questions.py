"""The questions to collect retrievals for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stream2llm.workloads.collect import CollectError


class QuestionsError(CollectError):
    """There is nothing to ask; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question. `start`: the page that its crawl starts at; empty where there is none."""

    text: str
    start: str = ""

    @property
    def id(self) -> str:
        """The same for the same question and start: what a collection that goes on knows it by."""
        return hashlib.sha256(f"{self.start}\n{self.text}".encode()).hexdigest()[:12]


def read_questions(path: Path) -> tuple[Question, ...]:
    """One question a line, each once; before it may stand its start page and a tab. Lines with # are comments.

    Raises `QuestionsError`, and `OSError`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise QuestionsError(f"{path}: not UTF-8 text: {error}") from error
    return distinct((_question(line) for line in map(str.strip, lines) if line and not line.startswith("#")), str(path))


def distinct(questions: Iterable[Question], where: str) -> tuple[Question, ...]:
    """Each question once. Raises `QuestionsError` when there is none in `where`."""
    found = tuple(dict.fromkeys(questions))
    if not found:
        raise QuestionsError(f"{where}: no question in it; write one a line")
    return found


def _question(line: str) -> Question:
    start, tab, text = line.partition("\t")
    if tab and "://" in start and text.strip():
        return Question(text.strip(), start.strip())
    return Question(line)
