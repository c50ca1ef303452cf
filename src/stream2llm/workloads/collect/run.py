"""A collection from start to end: each question that is not in it yet, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stream2llm.workloads.collect.collection import Collection
from stream2llm.workloads.collect.questions import Question
from stream2llm.workloads.trace import Query


class NothingFound(Exception):
    """A question's retrieval gave nothing; the message says why."""


class Retriever(Protocol):
    """Retrieves for one question and notes when each piece came."""

    async def retrieve(self, question: Question) -> Query:
        """Raises `NothingFound`."""


class View(Protocol):
    """What is shown meanwhile."""

    def begins(self, question: Question) -> None: ...

    def ends(self, question: Question, query: Query | None, reason: str) -> None:
        """`query`: None if there is none, for `reason`."""


async def collect(questions: Sequence[Question], retriever: Retriever, collection: Collection, view: View) -> int:
    """Adds a query for each question that has none, in order. Returns how many have none in the end.

    One at a time: retrievals side by side would change each other's gaps.
    """
    missing = 0
    for question in questions:
        if question.id in collection.done:
            continue
        view.begins(question)
        try:
            query = await retriever.retrieve(question)
        except NothingFound as reason:
            missing += 1
            view.ends(question, None, str(reason))
            continue
        collection.add(query)
        view.ends(question, query, "")
    return missing
