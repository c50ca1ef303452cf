"""The operations as messages on a WebSocket: one stream at a time, closed with the socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fastapi import Request, WebSocket, WebSocketDisconnect

from stream2llm.vllm.endpoints.completing import complete, succeeded
from stream2llm.vllm.endpoints.errors import error_body
from stream2llm.vllm.endpoints.models import StreamStatus
from stream2llm.vllm.endpoints.operations import Operation, OwnedStream, parse_operation
from stream2llm.vllm.endpoints.streams import ContextStreams
from stream2llm.vllm.ops import Ack

_MAX_WAITING = 1024  # messages read ahead of the answers

_Received = str | bytes
_Parsed = Operation | Exception


class StreamSocket:
    """One client's socket. Messages are read ahead, so that writes that pile up are merged and its end is noticed."""

    def __init__(self, streams: ContextStreams, websocket: WebSocket) -> None:
        self._streams = streams
        self._socket = websocket
        self._stream = OwnedStream(streams)
        self._inbox: asyncio.Queue[_Received | None] = asyncio.Queue(_MAX_WAITING)
        self._gone = asyncio.Event()

    async def serve(self) -> None:
        """Answer the socket's messages until the client closes it."""
        await self._socket.accept()
        reader = asyncio.create_task(self._read_ahead())
        try:
            with suppress(WebSocketDisconnect):
                while (waiting := await self._waiting()) is not None:
                    await self._answer_all(waiting)
        finally:
            reader.cancel()
            await self._stream.close()

    async def _read_ahead(self) -> None:
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            await self._inbox.put(text if text is not None else message["bytes"])
        self._gone.set()
        await self._inbox.put(None)

    async def _waiting(self) -> list[_Parsed] | None:
        """All messages that are there, at least one; None when the client has gone."""
        received = [await self._inbox.get()]
        while not self._inbox.empty():
            received.append(self._inbox.get_nowait())
        return None if None in received else [_parse(data) for data in received if data is not None]

    async def _answer_all(self, waiting: list[_Parsed]) -> None:
        writes: list[tuple[Operation, asyncio.Future[Ack]]] = []
        for parsed in waiting:
            name = parsed.name if isinstance(parsed, Operation) else None
            try:
                if isinstance(parsed, Exception):
                    raise parsed
                if parsed.is_write:
                    writes.append((parsed, await self._stream.submit(parsed)))
                    continue
                await self._answer_writes(writes)
                if parsed.name == "open":
                    await self._send_ack("open", await self._stream.open(parsed.fields))
                else:
                    await self._complete(parsed)
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await self._answer_writes(writes)
                await self._send_error(name, error)
        await self._answer_writes(writes)

    async def _answer_writes(self, writes: list[tuple[Operation, asyncio.Future[Ack]]]) -> None:
        waiting, writes[:] = list(writes), []
        results = await asyncio.gather(*(future for _, future in waiting), return_exceptions=True)
        for (operation, _), result in zip(waiting, results, strict=True):
            if isinstance(result, Exception):
                await self._send_error(operation.name, result)
            elif isinstance(result, Ack):
                await self._send_ack(operation.name, result)

    async def _complete(self, operation: Operation) -> None:
        stream_id = await self._stream.ensure_open(operation)
        request = Request({**self._socket.scope, "type": "http", "method": "POST"}, self._disconnected)
        response = await complete(self._streams, stream_id, operation.endpoint, operation.body, request)
        if response is None or self._gone.is_set():
            return
        if not succeeded(response):
            await self._send({"op": "complete", **json.loads(bytes(response.body))})
            return
        try:
            if hasattr(response, "body_iterator"):
                await self._unless_gone(self._relay(response))
            else:
                await self._send({"op": "complete", "event": "response", "data": json.loads(bytes(response.body))})
        finally:
            self._stream.release()
            if response.background is not None:
                await response.background()

    async def _relay(self, response: Any) -> None:
        async for data in sse_data(response.body_iterator):
            if data != "[DONE]":
                await self._send({"op": "complete", "event": "chunk", "data": json.loads(data)})
        await self._send({"op": "complete", "event": "done"})

    async def _unless_gone(self, work: Any) -> None:
        """Do the work; stop it, and with it the generation, when the client goes."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            leaving.cancel()
            working.cancel()

    async def _disconnected(self) -> dict[str, Any]:
        """What the stock endpoint listens to: the client's departure."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send_ack(self, name: str, ack: Ack) -> None:
        await self._send({"op": name, **StreamStatus(**asdict(ack)).model_dump()})

    async def _send_error(self, name: str | None, error: Exception) -> None:
        await self._send({"op": name, **error_body(error).model_dump()})

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            await self._socket.send_text(json.dumps(message))
        except RuntimeError as error:  # what sending to a socket that is closed raises
            raise WebSocketDisconnect from error


def _parse(data: _Received) -> _Parsed:
    try:
        return parse_operation(data)
    except Exception as error:
        return error


async def sse_data(chunks: AsyncIterator[str | bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event; comments (keep-alives) are left out."""
    rest = ""
    async for chunk in chunks:
        rest += chunk.decode() if isinstance(chunk, bytes) else chunk
        *events, rest = rest.split("\n\n")
        for event in events:
            data = [line.removeprefix("data:").strip() for line in event.split("\n") if line.startswith("data:")]
            if data:
                yield "\n".join(data)
