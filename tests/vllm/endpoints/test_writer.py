"""What a batch of writes makes of a stream; pure. The writer itself is tested on a server, in test_routes."""

from __future__ import annotations

import asyncio
from typing import Any

from stream2llm import content
from stream2llm.content import Content, ContentError, Text
from stream2llm.stream import StreamRefusedError
from stream2llm.vllm.endpoints.rendering import Settings
from stream2llm.vllm.endpoints.writer import View, Write, _fold


def fold(held: Content | None, *writes: Write, version: int = 5) -> Any:
    async def run() -> Any:
        loop = asyncio.get_running_loop()
        return _fold(View(version, 0.0, Settings(), held), [(write, loop.create_future()) for write in writes])

    return asyncio.run(run())


def append(text: str, expected: int | None = None) -> Write:
    return Write(content.text(text), expected_version=expected)


def replace(text: str) -> Write:
    return Write(content.text(text), replaces=True)


def test_appends_add_up_and_only_they_are_sent() -> None:
    result = fold(Text("a"), append("b"), append("c"))
    assert (result.content, result.pieces, result.replaces) == (Text("abc"), ['"b"', '"c"'], False)
    assert len(result.accepted) == 2


def test_a_replacement_supersedes_what_came_before() -> None:
    result = fold(Text("a"), append("b"), replace("c"), append("d"))
    assert (result.content, result.pieces, result.replaces) == (Text("cd"), ['"c"', '"d"'], True)
    assert len(result.accepted) == 3


def test_each_write_is_a_version_that_the_next_may_expect() -> None:
    result = fold(Text("a"), append("b", 5), append("c", 6), append("d", 5), append("e", 7))
    assert result.content == Text("abce")
    ((refused, error),) = result.refused
    assert refused[0] == append("d", 5)
    assert isinstance(error, StreamRefusedError)
    assert (error.code, error.version) == ("conflict", 7)


def test_one_that_does_not_fit_is_left_out() -> None:
    result = fold(Text("a"), append("b"), Write(content.token_ids([1])), append("c"))
    assert result.content == Text("abc")
    ((_, error),) = result.refused
    assert isinstance(error, ContentError)


def test_nothing_that_fits_leaves_the_content_alone() -> None:
    result = fold(Text("a"), Write(content.token_ids([1])))
    assert (result.content, result.accepted, result.pieces) == (Text("a"), [], [])
