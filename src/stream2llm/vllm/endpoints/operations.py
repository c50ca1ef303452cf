"""Operations on a stream that lives as long as the connection they come through: JSON Lines and WebSocket."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, get_args

from stream2llm.content import Content
from stream2llm.stream import StreamRefusedError
from stream2llm.vllm.endpoints.completing import Endpoint
from stream2llm.vllm.endpoints.errors import ApiError
from stream2llm.vllm.endpoints.models import OpenRequest, WriteRequest
from stream2llm.vllm.endpoints.streams import ContextStreams
from stream2llm.vllm.endpoints.writer import Write
from stream2llm.vllm.ops import Ack

Name = Literal["open", "append", "replace", "complete"]
_NAMES: tuple[Name, ...] = get_args(Name)
_ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
# What a stream that is opened by its first write takes over from a `complete` that came before.
_SETTINGS = ("model", "cache_salt", "priority", "add_special_tokens", "chat_template_kwargs", "tools")


@dataclass(frozen=True, slots=True)
class Operation:
    """One line or message: its name and its other fields."""

    name: Name
    fields: dict[str, Any]

    @property
    def is_write(self) -> bool:
        return self.name in ("append", "replace")

    @property
    def endpoint(self) -> Endpoint | None:
        """Of `complete`: the endpoint it names."""
        return self.fields.get("endpoint")

    @property
    def body(self) -> dict[str, Any]:
        """Of `complete`: the stock body."""
        return {name: value for name, value in self.fields.items() if name != "endpoint"}


def parse_operation(data: bytes | str) -> Operation:
    """The operation that a line or message holds. Raises `ApiError` (422)."""
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise _malformed(f"not JSON ({error})") from None
    except RecursionError:
        raise _malformed("nested too deeply") from None
    if not isinstance(fields, dict) or fields.get("op") not in _NAMES:
        raise _malformed(f'expected an object with "op": one of {", ".join(_NAMES)}', "op")
    name = fields.pop("op")
    if name == "complete" and fields.get("endpoint") not in (None, *_ENDPOINTS):
        raise _malformed(f'"endpoint" is one of {", ".join(_ENDPOINTS)}', "endpoint")
    return Operation(name, fields)


def _malformed(message: str, param: str | None = None) -> ApiError:
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, message, param)


class OwnedStream:
    """The stream that a connection has opened, if it has, and that is closed with it."""

    def __init__(self, streams: ContextStreams) -> None:
        self._streams = streams
        self.id: str | None = None

    async def open(self, fields: dict[str, Any]) -> Ack:
        if self.id is not None:
            raise ApiError(HTTPStatus.CONFLICT, f"Stream {self.id} is open already; complete it first.", "op")
        ack = await self._streams.open(OpenRequest.model_validate(fields))
        self.id = ack.id
        return ack

    async def ensure_open(self, completion: Operation | None = None) -> str:
        """The stream's id; an empty stream is opened where there is none, set up to suit the completion."""
        if self.id is None:
            fields = completion.fields if completion is not None else {}
            await self.open({name: fields[name] for name in _SETTINGS if fields.get(name) is not None})
        assert self.id is not None
        return self.id

    async def submit(self, operation: Operation, completion: Operation | None = None) -> asyncio.Future[Ack]:
        """Queue an `append` or `replace`; what was queued together is written together."""
        request = WriteRequest.model_validate(operation.fields)
        more: Content | None = request.to_content()
        assert more is not None
        stream_id = await self.ensure_open(completion)
        write = Write(more, operation.name == "replace", request.expected_version)
        return self._streams.writer(stream_id).submit(write)

    def release(self) -> None:
        """The stream is finished: nothing is left to close."""
        self.id = None

    async def close(self) -> None:
        """Close the stream if it is still there."""
        if self.id is None:
            return
        stream_id, self.id = self.id, None
        with suppress(StreamRefusedError):  # expired, or closed by another connection
            await self._streams.close(stream_id)
