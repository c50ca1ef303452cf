"""The routes under /v1/context_streams; docs/http-api.md is their contract."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response, WebSocket
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from stream2llm.content import Content, Messages, Text, TokenIds
from stream2llm.vllm.endpoints.completing import complete
from stream2llm.vllm.endpoints.errors import ContextRoute
from stream2llm.vllm.endpoints.jsonl import upload
from stream2llm.vllm.endpoints.models import (
    OpenRequest,
    SchedulerStatistics,
    StreamClosed,
    StreamDetails,
    StreamList,
    StreamStatus,
    WriteRequest,
)
from stream2llm.vllm.endpoints.streams import ContextStreams
from stream2llm.vllm.endpoints.websocket import StreamSocket
from stream2llm.vllm.endpoints.writer import Write
from stream2llm.vllm.ops import Ack


def _errors(**descriptions: str) -> dict[int | str, dict[str, Any]]:
    return {
        int(status.removeprefix("s")): {"model": ErrorResponse, "description": text}
        for status, text in descriptions.items()
    }


_UNKNOWN = {"s404": "No such stream: never opened, closed, or expired."}
_OVER = {"s409": "The stream is finished, or `expected_version` does not match."}
_TOO_LONG = {"s400": "Too long for the model or the KV cache, kinds of content mixed, or an unknown token id."}
_MALFORMED = {"s422": "The body is not of the described form."}
_WRITE_ERRORS = _errors(**_TOO_LONG, **_UNKNOWN, **_OVER, **_MALFORMED)
_STOCK_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "The stock endpoint's answer.", "content": {"application/json": {}, "text/event-stream": {}}}
}

router = APIRouter(prefix="/v1/context_streams", tags=["context streams"], route_class=ContextRoute)


def _streams_of(raw_request: Request) -> ContextStreams:
    return raw_request.app.state.context_streams


Streams = Annotated[ContextStreams, Depends(_streams_of)]
StreamId = Annotated[str, Path(description="The stream's id.", max_length=64)]


@router.post("", status_code=201, responses=_errors(**_TOO_LONG, s409="The id is taken.", **_MALFORMED))
async def open_stream(request: OpenRequest, streams: Streams) -> StreamStatus:
    """Open a context stream: a prompt prefix that is prefilled while it is being retrieved."""
    return _status(await streams.open(request))


@router.get("")
async def list_streams(streams: Streams) -> StreamList:
    """The open streams, oldest first."""
    return StreamList(data=[_status(ack) for ack in await streams.ops.list_all()])


_JSON_LINES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"op": "open"}\n{"op": "append", "text": "Some context. "}\n'
                '{"op": "complete", "prompt": "The answer is", "max_tokens": 8}\n',
            }
        },
    }
}
_UPLOAD_ERRORS = _errors(**_TOO_LONG, **_OVER, s413="A line is longer than 16 MiB.", **_MALFORMED)


@router.post("/jsonl", response_model=None, responses={**_STOCK_ANSWER, **_UPLOAD_ERRORS}, openapi_extra=_JSON_LINES)
async def upload_post(raw_request: Request, streams: Streams) -> Response | None:
    """Open, fill and complete a stream in one chunked upload of JSON Lines, applied as they arrive."""
    return await upload(streams, raw_request)


@router.put("/jsonl", response_model=None, responses={**_STOCK_ANSWER, **_UPLOAD_ERRORS}, openapi_extra=_JSON_LINES)
async def upload_put(raw_request: Request, streams: Streams) -> Response | None:
    """The same by PUT, as `curl -T -` sends it."""
    return await upload(streams, raw_request)


@router.websocket("/ws")
async def socket(websocket: WebSocket) -> None:
    """The same operations as messages; see docs/http-api.md."""
    await StreamSocket(websocket.app.state.context_streams, websocket).serve()


@router.get("/statistics")
async def read_statistics(streams: Streams) -> SchedulerStatistics:
    """What the scheduler counted since it started: tokens computed, preemptions, waits."""
    return SchedulerStatistics(data=await streams.ops.statistics())


@router.get("/{stream_id}", response_model_exclude_unset=True, responses=_errors(**_UNKNOWN, **_OVER))
async def read_stream(
    stream_id: StreamId,
    streams: Streams,
    content: Annotated[bool, Query(description="Give the content too.")] = False,
) -> StreamDetails:
    """A stream's state; its lcp and invalidated tokens are those of the last write."""
    if content:
        ack, held = await streams.read(stream_id)
        return StreamDetails(**_status(ack).model_dump(), **_content_fields(held))
    return StreamDetails(**_status(await streams.ops.status(stream_id)).model_dump())


@router.post("/{stream_id}/append", responses=_WRITE_ERRORS)
async def append_to_stream(stream_id: StreamId, request: WriteRequest, streams: Streams) -> StreamStatus:
    """Append content. Writes that pile up while the engine is busy are merged; each is a version of its own."""
    return await _write(streams, stream_id, request, replaces=False)


@router.put("/{stream_id}", responses=_WRITE_ERRORS)
async def replace_content(stream_id: StreamId, request: WriteRequest, streams: Streams) -> StreamStatus:
    """Replace the content. What the new prompt has in common with the old one, from the front, stays computed."""
    return await _write(streams, stream_id, request, replaces=True)


@router.delete("/{stream_id}", responses=_errors(**_UNKNOWN))
async def close_stream(stream_id: StreamId, streams: Streams) -> StreamClosed:
    """Close a stream and let go of its memory."""
    await streams.close(stream_id)
    return StreamClosed(id=stream_id)


StockBody = Annotated[
    dict[str, Any],
    Body(
        description="A stock request body with only what comes after the context.",
        examples=[{"prompt": " The answer is", "max_tokens": 16, "stream": True}],
    ),
]
ChatBody = Annotated[
    dict[str, Any],
    Body(
        description="A stock request body with only the last messages, if any.",
        examples=[{"messages": [{"role": "user", "content": "What is the capital?"}], "max_tokens": 16}],
    ),
]
_FINISH_RESPONSES = {**_STOCK_ANSWER, **_WRITE_ERRORS}


@router.post("/{stream_id}/completions", response_model=None, responses=_FINISH_RESPONSES)
async def complete_stream(
    stream_id: StreamId, body: StockBody, raw_request: Request, streams: Streams
) -> Response | None:
    """Finish a stream of text or token ids, as /v1/completions answers the whole prompt."""
    return await complete(streams, stream_id, "completions", body, raw_request)


@router.post("/{stream_id}/chat/completions", response_model=None, responses=_FINISH_RESPONSES)
async def chat_complete_stream(
    stream_id: StreamId, body: ChatBody, raw_request: Request, streams: Streams
) -> Response | None:
    """Finish a stream of messages, as /v1/chat/completions answers all of them."""
    return await complete(streams, stream_id, "chat/completions", body, raw_request)


async def _write(streams: ContextStreams, stream_id: str, request: WriteRequest, *, replaces: bool) -> StreamStatus:
    more = request.to_content()
    assert more is not None
    return _status(await streams.write(stream_id, Write(more, replaces, request.expected_version)))


def _status(ack: Ack) -> StreamStatus:
    return StreamStatus(**asdict(ack))


def _content_fields(held: Content | None) -> dict[str, Any]:
    match held:
        case Text():
            return {"text": held.closed}
        case TokenIds(ids):
            return {"token_ids": list(ids)}
        case Messages():
            return {"messages": held.closed}
    return {}
