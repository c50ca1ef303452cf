"""Refusals and their form on the wire: vLLM's error body."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

from stream2llm.content import ContentError
from stream2llm.stream import StreamRefusedError

_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.CONFLICT: "ConflictError",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RequestEntityTooLargeError",
    HTTPStatus.UNPROCESSABLE_ENTITY: "UnprocessableEntityError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}
_STREAM_ERRORS = {
    "unknown": HTTPStatus.NOT_FOUND,
    "exists": HTTPStatus.CONFLICT,
    "finished": HTTPStatus.CONFLICT,
    "conflict": HTTPStatus.CONFLICT,
    "too_long": HTTPStatus.BAD_REQUEST,
}
_REPORTED = 5  # of a body's validation errors


class ApiError(Exception):
    """A request that is refused with `status`; `param` names the field at fault."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def error_body(error: Exception) -> ErrorResponse:
    """The body that answers `error`; its `error.code` is the HTTP status."""
    match error:
        case ApiError():
            return create_error_response(str(error), _type(error.status), error.status, error.param)
        case StreamRefusedError():
            status = _STREAM_ERRORS.get(error.code, HTTPStatus.SERVICE_UNAVAILABLE)
            return create_error_response(str(error), _type(status), status)
        case ContentError():
            return create_error_response(str(error))
        case RequestValidationError() | ValidationError():
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            message, param = _validation_message(error.errors())
            return create_error_response(message, _type(status), status, param)
        case _:
            return create_error_response(error)


def _type(status: HTTPStatus) -> str:
    return _TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")


def error_response(error: Exception) -> JSONResponse:
    body = error_body(error)
    return JSONResponse(body.model_dump(), status_code=body.error.code)


class ContextRoute(APIRoute):
    """A route that answers our own refusals; vLLM's handlers answer all other exceptions.

    vLLM's handler makes a 400 of a body that does not validate; for these routes it is a 422, as FastAPI documents it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except (ApiError, StreamRefusedError, ContentError, RequestValidationError, ValidationError) as error:
                return error_response(error)
            except HTTPException as error:
                if error.status_code != HTTPStatus.BAD_REQUEST:
                    raise
                # FastAPI could not decode the body.
                return error_response(ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "The body is not JSON in UTF-8."))

        return answer


def _validation_message(errors: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong, without the offending values: they may be large, or not even be valid Unicode."""
    lines = [
        ": ".join(filter(None, (_field(error), error["msg"].removeprefix("Value error, "))))
        for error in errors[:_REPORTED]
    ]
    if len(errors) > _REPORTED:
        lines.append(f"and {len(errors) - _REPORTED} more")
    return "The body is not of the described form: " + "; ".join(lines), _field(errors[0]) if errors else None


def _field(error: Any) -> str | None:
    parts = [str(part) for part in error.get("loc", ()) if part != "body"]
    return ".".join(part for part in parts if not set(part) & set("[](){}")) or None
