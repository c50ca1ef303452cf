"""A whole stream in one request: an upload of JSON Lines, applied as it arrives, answered by the stock response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from stream2llm.vllm.endpoints.completing import complete, succeeded
from stream2llm.vllm.endpoints.errors import ApiError, error_body
from stream2llm.vllm.endpoints.operations import Operation, OwnedStream, parse_operation
from stream2llm.vllm.endpoints.streams import ContextStreams
from stream2llm.vllm.ops import Ack

MAX_LINE = 16 * 2**20
"""Bytes."""
_CLIENT_GONE = 499


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    data: bytes


async def upload(streams: ContextStreams, raw_request: Request) -> Response | None:
    """Apply the lines of the request's body and answer the completion among them.

    The stream is closed if anything is refused, and if the client goes before it is answered.
    """
    stream = OwnedStream(streams)
    answered = False
    try:
        completion = await _apply_lines(stream, raw_request)
        stream_id = await stream.ensure_open(completion)
        response = await complete(streams, stream_id, completion.endpoint, completion.body, raw_request)
        answered = succeeded(response)
        return response
    except ClientDisconnect:
        return Response(status_code=_CLIENT_GONE)
    finally:
        if not answered:
            await stream.close()


async def _apply_lines(stream: OwnedStream, raw_request: Request) -> Operation:
    completion: Operation | None = None
    async for lines in read_lines(raw_request.stream()):
        writes: list[tuple[Line, asyncio.Future[Ack]]] = []
        for line in lines:
            try:
                operation = parse_operation(line.data)
                if operation.is_write:
                    writes.append((line, await stream.submit(operation, completion)))
                elif operation.name == "open":
                    await stream.open(operation.fields)
                elif completion is not None:
                    raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "a second complete; give exactly one", "op")
                else:
                    completion = operation
            except Exception as error:
                await _settle(writes)
                raise _at(line, error) from error
        await _settle(writes)
    if completion is None:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY, 'The upload has no {"op": "complete", ...} line; give exactly one.', "op"
        )
    return completion


async def read_lines(chunks: AsyncIterator[bytes], limit: int = MAX_LINE) -> AsyncIterator[list[Line]]:
    """The lines that each chunk of the body completes, empty ones left out.

    Raises `ApiError` (413) for one that is longer than `limit` bytes.
    """
    number, rest = 0, bytearray()
    async for chunk in chunks:
        rest += chunk
        if b"\n" in chunk:
            *complete_lines, tail = bytes(rest).split(b"\n")
            rest = bytearray(tail)
        else:
            complete_lines = []
        lines = [Line(number + n, data) for n, data in enumerate(complete_lines, 1) if data.strip()]
        number += len(complete_lines)
        longest = max(map(len, [*complete_lines, rest]), default=0)
        if longest > limit:
            raise ApiError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"Line {number + 1} or one just before it is longer than {limit} bytes; send the content in "
                "several lines.",
            )
        if lines:
            yield lines
    if rest.strip():
        yield [Line(number + 1, bytes(rest))]


async def _settle(writes: list[tuple[Line, asyncio.Future[Ack]]]) -> None:
    """Wait for the writes; the first that was refused is the answer."""
    results = await asyncio.gather(*(future for _, future in writes), return_exceptions=True)
    for (line, _), result in zip(writes, results, strict=True):
        if isinstance(result, Exception):
            raise _at(line, result) from result


def _at(line: Line, error: Exception) -> ApiError:
    body = error_body(error).error
    return ApiError(HTTPStatus(body.code), f"Line {line.number}: {body.message}", body.param)
